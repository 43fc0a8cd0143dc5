"""What every storage of the dual blocks offers.

The block of example i enters the weights through psi_i = p(y_i) - mu_i, the target's parts less the mean parts of its
dual distribution: w = (1/(lam n)) sum_i Phi_i^T psi_i. A storage keeps psi_i, or what psi_i's effect follows from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.batch import tree_tensors
from torchssvm.core.memory import check_memory
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.schema import Stateful
from torchssvm.core.structure import Labeling, OracleResult, Structure


class Stored(ABC):
    """The blocks of one batch, as a storage gave them out; rows follow the batch."""

    num_examples: int

    @abstractmethod
    def inner(self, potentials: Potentials) -> Tensor:
        """``<psi_i, theta_i> / n``, ``[B]`` float64."""

    def atoms(self, potentials: Potentials, losses: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mass, score, loss and validity of what the blocks consist of, ``[B, A]``; see ``Atoms``.

        Args:
            potentials: The batch.
            losses: ``[B]``, l_i.
        """
        mass = torch.ones(len(losses), 1, dtype=torch.float64, device=losses.device)
        n = self.num_examples
        scores, losses = (-n * self.inner(potentials)).unsqueeze(1), (n * losses).unsqueeze(1)
        return mass, scores, losses, torch.ones_like(mass, dtype=torch.bool)

    def mean_loss(self, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        """``n l_i`` as it follows from the blocks; see ``Structure.mean_loss``. None where it does not."""
        return None

    def lookup(self, labeling: Labeling) -> Tensor:
        """``[B]`` int64: the column of the atom that is this labeling, 0 where none is."""
        return torch.zeros(len(tree_tensors(labeling)[0]), dtype=torch.int64, device=tree_tensors(labeling)[0].device)

    def cached(self, columns: Tensor) -> Labeling:
        """The labelings of the atoms ``columns`` (``[B]``, at least 1)."""
        raise NotImplementedError(f"{type(self).__name__} keeps no labelings")

    def curvature(self, found: OracleResult, respond: Callable[[Parts], Parts]) -> Tensor:
        """Inner products of atoms and corner, ``[B, A + 1, A + 1]`` float64, without the factor 1/(lam n^2).

        Args:
            found: The corner, which becomes the last column.
            respond: Parts -> ``Phi_i Phi_i^T parts_i``.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps no labelings")

    @abstractmethod
    def combine(self, change: Tensor | None, found: OracleResult) -> tuple[Parts, list[Tensor] | None]:
        """The direction in parts space for a change of the masses. Called once, after :meth:`inner` and :meth:`atoms`.

        Args:
            change: ``[B, A + 1]`` float64; the last column is the corner's. None, where the storage keeps no labelings,
                moves all mass to the corner.
            found: The corner.

        Returns:
            The part of it that goes through the head's adjoint, and the part that is a gradient of the parameters
            already (``[B, *parameter.shape]`` each, or None); both without the factor 1/n.
        """

    @abstractmethod
    def move(
        self,
        coefficients: Tensor,
        rows: Tensor,
        change: Tensor | None,
        parts: Parts,
        gradients: list[Tensor] | None,
    ) -> None:
        """Move the batch's ``rows`` by ``coefficients_i`` times their direction; the only method that changes blocks.

        Args:
            coefficients: ``[B]`` float64.
            rows: ``[R]`` int64, rows of the batch, of distinct examples.
            change: As ``combine`` was given it.
            parts: The first value of ``combine``.
            gradients: ``Phi_i^T Delta_i`` in full, for each parameter ``[B, *parameter.shape]``; only given where
                ``needs_gradients``.
        """


class Storage(Stateful):
    """Keeps the dual blocks of all examples. Made empty; ``DualState`` binds it to a problem."""

    state_name = "storage"

    needs_gradients = False
    """Whether steps need every example's own gradient."""

    keeps_labelings = False
    """Whether blocks are kept as labelings with their mass, so that mass can move between them."""

    num_examples: int
    lam: float
    structure: Structure
    parameters: list[torch.nn.Parameter]
    memory_limit: int | None

    def bind(
        self,
        num_examples: int,
        lam: float,
        structure: Structure,
        parameters: Sequence[torch.nn.Parameter],
        memory_limit: int | None,
    ) -> None:
        """Tell the storage its problem; it allocates nothing yet."""
        if hasattr(self, "num_examples"):
            raise ValueError(f"storage={type(self).__name__}() already belongs to another DualState; make a new one")
        self.num_examples = num_examples
        self.lam = lam
        self.structure = structure
        self.parameters = list(parameters)
        self.memory_limit = memory_limit

    @abstractmethod
    def estimate(self, potentials: Potentials) -> int:
        """Bytes that the blocks of all examples will take, judged by this batch."""

    @abstractmethod
    def gather(self, index: Tensor, potentials: Potentials, target: Labeling) -> Stored:
        """The blocks of a batch; changes nothing. ``target`` comes from ``structure.check_target``.

        Raises:
            ValueError: An example came with another shape than before.
        """

    @abstractmethod
    def check_together(self, batches: Sequence[Stored], rows: Sequence[Tensor]) -> None:
        """Raise ValueError if batches that are to be stored in one step contradict each other; changes nothing.

        ``rows`` are the rows of each batch that will move.
        """

    def remember(self, stored: Stored, corner: OracleResult) -> Callable[[], None] | None:
        """Keeps what the max oracle found, without mass, when it is called; None where there is nothing to keep."""
        return None

    def check_features(self, stored: Stored, potentials: Potentials) -> None:
        """Raise RuntimeError if the features are not those of the blocks, for storages that cannot follow them."""
        return

    def keep_curvature(self) -> None:
        """Keep the inner products of each block's labelings; for storages that keep labelings."""
        raise ValueError(f"storage={type(self).__name__}() keeps no labelings: use storage=Labelings()")

    def forget_features(self) -> None:
        """The features have moved: drop what depended on them."""
        return

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

    def check_memory(self, potentials: Potentials, advice: str) -> None:
        """Raise MemoryError, naming a cheaper storage, if the estimate is over the limit."""
        check_memory(
            self.estimate(potentials), potentials.device, self.memory_limit, f"storage={type(self).__name__}()", advice
        )
