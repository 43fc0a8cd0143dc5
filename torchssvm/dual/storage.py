"""Storages of dual blocks.

The weights are w = (1/(lam n)) sum_i Phi_i^T psi_i. Here psi_i = p(y_i) - mu_i is the difference of the target's parts
and the mean parts of the block's dual distribution. A storage keeps psi_i, or data that determine Phi_i^T psi_i.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchssvm.core.batch import tree_tensors
from torchssvm.core.decoding import Labeling, OracleResult
from torchssvm.core.gradients import adjoint
from torchssvm.core.memory import available_memory
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.row_sparse import doubled
from torchssvm.core.states import Stateful
from torchssvm.core.structure import Structure


def check_memory(needed: int, device: torch.device, limit: int | None, what: str, advice: str) -> None:
    """Raise MemoryError if ``needed`` bytes exceed ``limit`` (None means the available memory of ``device``)."""
    allowed = available_memory(device) if limit is None else limit
    if needed > allowed:
        raise MemoryError(
            f"{what} takes about {needed / 2**20:,.1f} MiB of {allowed / 2**20:,.1f} MiB allowed on {device}: {advice}"
        )


class Stored(ABC):
    """The blocks of one batch; rows are those of the batch."""

    num_examples: int
    psi: Parts  # psi_i in the shapes of the potentials; a storage without them has its own ``contribution``

    @abstractmethod
    def inner(self, potentials: Potentials) -> Tensor:
        """``<psi_i, theta_i> / n``, ``[B]`` float64."""

    def atoms(self, potentials: Potentials, losses: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mass, score, loss and validity of the blocks' atoms, ``[B, A]``; see ``Atoms``. ``losses`` are l_i."""
        mass = torch.ones(len(losses), 1, dtype=torch.float64, device=losses.device)
        n = self.num_examples
        scores, losses = (-n * self.inner(potentials)).unsqueeze(1), (n * losses).unsqueeze(1)
        return mass, scores, losses, torch.ones_like(mass, dtype=torch.bool)

    def mean_loss(self, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        """``n l_i`` computed from the blocks, as in ``Structure._mean_loss``; None if they do not determine it."""
        return None

    def lookup(self, labeling: Labeling) -> Tensor:
        """The column of the atom that equals each labeling, ``[B]`` int64; 0 where there is none."""
        return torch.zeros(len(tree_tensors(labeling)[0]), dtype=torch.int64, device=tree_tensors(labeling)[0].device)

    def cached(self, columns: Tensor) -> Labeling:
        """The labelings of the atoms ``columns``, ``[B]``, each at least 1."""
        raise NotImplementedError

    def curvature(self, corner: OracleResult, respond: Callable[[Parts], Parts]) -> Tensor:
        """Inner products of atoms and corner, ``[B, A + 1, A + 1]`` float64, without the factor 1/(lam n^2).

        The corner becomes the last column; ``respond`` maps parts to ``Phi_i Phi_i^T parts_i``.
        """
        raise NotImplementedError

    @abstractmethod
    def combine(self, change: Tensor | None, corner: OracleResult) -> tuple[Parts, list[Tensor] | None]:
        """The direction in parts space for a change of the masses. Called once, after :meth:`inner` and :meth:`atoms`.

        Args:
            change: ``[B, A + 1]`` float64; the last column is that of the corner. None moves all mass to the corner, if
                the storage keeps no labelings.

        Returns:
            Parts, still to go through the head's adjoint, and gradients to add (``[B, *parameter.shape]`` for each
            parameter, or None); both without the factor 1/n.
        """

    @abstractmethod
    def move(
        self, coefficients: Tensor, rows: Tensor, change: Tensor | None, parts: Parts, gradients: list[Tensor] | None
    ) -> None:
        """Move the batch's ``rows`` by ``coefficients_i`` times their direction; the only method that changes blocks.

        Args:
            coefficients: ``[B]`` float64.
            rows: ``[R]`` int64, rows of the batch, of distinct examples.
            change: The argument of ``combine``.
            parts: The first value of ``combine``.
            gradients: ``Phi_i^T Delta_i``, ``[B, *parameter.shape]`` for each parameter; None unless
                ``needs_gradients``.
        """


class Storage(Stateful):
    """Keeps the dual blocks of all examples of the problem that ``DualState`` binds it to."""

    state_name = "storage"

    needs_gradients = False
    """Whether steps need the gradient of every example."""

    keeps_labelings = False
    """Whether blocks are kept as labelings with mass, so that mass can move between labelings."""

    num_examples: int
    own: range
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
        own: range | None = None,
    ) -> None:
        """Set the problem, of which the blocks of the examples ``own`` are kept (None is all); allocates no blocks."""
        if hasattr(self, "num_examples"):
            raise ValueError(f"storage={type(self).__name__}() already belongs to a DualState: make a new one")
        self.num_examples = num_examples
        self.own = range(num_examples) if own is None else own
        self.lam = lam
        self.structure = structure
        self.parameters = list(parameters)
        self.memory_limit = memory_limit

    def unbound(self) -> Storage:
        """A new storage of the same kind, for another dual."""
        return type(self)()

    @abstractmethod
    def estimate(self, potentials: Potentials, target: Labeling = None) -> int:
        """Bytes that the blocks of all examples will take, extrapolated from this batch; its target may be None."""

    @abstractmethod
    def gather(self, index: Tensor, potentials: Potentials, target: Labeling) -> Stored:
        """The blocks of a batch; changes nothing. ``target`` comes from ``structure.check_target``.

        Potentials carry no graph. Where they are float64 and the parameters float32, blocks take part in float64.

        Raises:
            ValueError: An example came with another shape than before.
        """

    @abstractmethod
    def check_together(self, batches: Sequence[Stored], rows: Sequence[Tensor]) -> None:
        """Raise ValueError if one step cannot move these ``rows`` of the batches together; changes nothing."""

    def remember(self, stored: Stored, corner: OracleResult) -> Callable[[], None] | None:
        """A function that caches the corners, without mass; None if there is nothing to cache."""
        return None

    def check_features(self, stored: Stored, potentials: Potentials, weights: Sequence[Tensor] | None = None) -> None:
        """Raise RuntimeError if the features have changed and the storage needs fixed ones.

        ``weights`` are as in :meth:`contribution`.
        """
        return

    def keep_curvature(self) -> None:
        """Keep the inner products of each block's labelings; for storages that keep labelings."""
        raise ValueError(f"storage={type(self).__name__}() keeps no labelings: use storage=Labelings()")

    def forget_features(self) -> None:
        """Drop data that depend on features; called when the features have moved."""
        return

    def contribution(
        self, stored: Stored, potentials: Potentials, weights: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """``(1/(lam n)) sum_i Phi_i^T psi_i`` of a batch, gathered for these potentials, float64, for every parameter.

        The default takes ``stored.psi`` through one backward pass of the head. ``weights`` are the leaves of the graph,
        in the order of the parameters; None means the parameters.
        """
        gradients = adjoint(potentials, stored.psi, self.parameters if weights is None else weights, sparse=True)
        return doubled(gradients, 1.0 / (self.lam * self.num_examples))

    @abstractmethod
    def rescale(self, factor: float) -> None:
        """``psi_i *= factor`` in every block; the caller then multiplies :attr:`lam` by it too, and weights stay.

        Dual variables become ``alpha_i(y) *= factor`` for ``y != y_i``; the target gets the rest.
        """

    def change_lam(self, lam: float) -> None:
        """Adapt data that depend on ``lam``, for the same psi_i; the caller then sets :attr:`lam`."""
        return

    def widen(self, potentials: Potentials) -> None:
        """Make room for rows as wide as the potentials', which new labels have widened."""
        return

    def change_number(self, share: float) -> None:
        """Adapt data that depend on n, for the same psi_i: ``share`` is the old n over the new one."""
        return

    def products(self) -> Tensor | None:
        """``lam <w, w_i>`` of every block, ``[n]`` float64; None if the blocks alone do not determine it."""
        return None

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes in use."""

    @abstractmethod
    def to(self, device: torch.device) -> None:
        """Move all tensors to the device."""

    @property
    def _device(self) -> torch.device:
        return self.parameters[0].device

    def check_memory(self, potentials: Potentials, target: Labeling, advice: str) -> None:
        """Raise MemoryError, naming a cheaper storage, if the estimate is over the limit."""
        needed, what = self.estimate(potentials, target), f"storage={type(self).__name__}()"
        check_memory(needed, potentials.device, self.memory_limit, what, advice)
