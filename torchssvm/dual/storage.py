"""What every storage of the dual blocks offers.

The block of example i enters the weights through psi_i = p(y_i) - mu_i, the target's parts less the mean parts of its
dual distribution: w = (1/(lam n)) sum_i Phi_i^T psi_i. A storage keeps psi_i, or what psi_i's effect follows from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.memory import check_memory
from torchssvm.potentials import Parts, Potentials


class Stored(ABC):
    """The blocks of one batch, as a storage gave them out; rows follow the batch."""

    @abstractmethod
    def inner(self, potentials: Potentials) -> Tensor:
        """``<psi_i, theta_i> / n``, ``[B]`` float64."""

    @abstractmethod
    def combine(self, parts: Parts, decay: Tensor | None) -> tuple[Parts, list[Tensor] | None]:
        """The direction ``parts_i + decay_i psi_i``.

        Args:
            parts: What the direction says explicitly, ``[B, ...]``.
            decay: ``[B]``, or None for 1 everywhere.

        Returns:
            The part of it that goes through the head's adjoint, and the part that is a gradient of the parameters
            already (``[B, *parameter.shape]`` each, or None); both without the factor 1/n.
        """

    @abstractmethod
    def subtract(self, coefficients: Tensor, rows: Tensor, parts: Parts, gradients: list[Tensor] | None) -> None:
        """``psi_i -= coefficients_i Delta_i`` for the batch's ``rows``; the only method that changes the storage.

        Args:
            coefficients: ``[B]`` float64.
            rows: ``[R]`` int64, rows of the batch, of distinct examples.
            parts: The first value of ``combine``.
            gradients: ``Phi_i^T Delta_i`` in full, for each parameter ``[B, *parameter.shape]``; only given where
                ``needs_gradients``.
        """


class Storage(ABC):
    """Keeps the dual blocks of all examples. Made empty; ``DualState`` binds it to a problem."""

    needs_gradients = False
    """Whether steps need every example's own gradient."""

    num_examples: int
    lam: float
    parameters: list[torch.nn.Parameter]
    memory_limit: int | None

    def bind(
        self, num_examples: int, lam: float, parameters: Sequence[torch.nn.Parameter], memory_limit: int | None
    ) -> None:
        """Tell the storage its problem; it allocates nothing yet."""
        if hasattr(self, "num_examples"):
            raise ValueError(f"storage={type(self).__name__}() already belongs to another DualState; make a new one")
        self.num_examples = num_examples
        self.lam = lam
        self.parameters = list(parameters)
        self.memory_limit = memory_limit

    @abstractmethod
    def estimate(self, potentials: Potentials) -> int:
        """Bytes that the blocks of all examples will take, judged by this batch."""

    @abstractmethod
    def gather(self, index: Tensor, potentials: Potentials) -> Stored:
        """The blocks of a batch; changes nothing.

        Raises:
            ValueError: An example came with another shape than before.
        """

    @abstractmethod
    def check_together(self, batches: Sequence[Stored]) -> None:
        """Raise ValueError if batches that are to be stored in one step contradict each other; changes nothing."""

    @abstractmethod
    def contribution(self, stored: Stored, potentials: Potentials) -> list[Tensor]:
        """``(1/(lam n)) sum_i Phi_i^T psi_i`` of a batch, float64, for every parameter."""

    @abstractmethod
    def rescale(self, factor: float) -> None:
        """``psi_i *= factor`` in every block, as ``lam`` is multiplied by it too, so that no weight changes.

        In terms of the dual variables ``alpha_i(y) *= factor`` for ``y != y_i``; the target takes the rest. The caller
        sets :attr:`lam`, after this.
        """

    def change_lam(self, lam: float) -> None:
        """Another ``lam`` for the same psi_i; what depends on it changes. The caller sets :attr:`lam`, after this."""
        return

    def products(self) -> Tensor | None:
        """``lam <w, w_i>`` of every block, ``[n]`` float64, where that follows from the blocks alone."""
        return None

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes held now."""

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move what is stored."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and numbers."""

    @abstractmethod
    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ValueError if ``state`` does not fit; changes nothing."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` gave, to the bit."""

    def check_memory(self, potentials: Potentials, advice: str) -> None:
        """Raise MemoryError, naming a cheaper storage, if the estimate is over the limit."""
        check_memory(
            self.estimate(potentials), potentials.device, self.memory_limit, f"storage={type(self).__name__}()", advice
        )


def require(state: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """An entry of a checkpoint, or a ValueError that names it."""
    if not isinstance(state, dict) or not isinstance(state.get(name), kind):
        found = type(state.get(name)).__name__ if isinstance(state, dict) else type(state).__name__
        raise ValueError(f"the checkpoint is damaged: {where}[{name!r}] should be a {kind.__name__}, it is {found}")
    return state[name]
