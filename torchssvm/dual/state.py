"""The state of the dual: blocks, losses, gap estimates and counters of one training problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import as_number, check_limit
from torchssvm.core.bounds import Box
from torchssvm.core.digest import UNKNOWN
from torchssvm.core.linearity import check_at_first_call
from torchssvm.core.mailbox import Mailbox
from torchssvm.core.problem import check_lam, check_problem, check_range, find_structure
from torchssvm.core.row_sparse import flat, squared_norm
from torchssvm.core.structure import Structure
from torchssvm.dual.checkpoint import SavedDual
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.storage import Storage


class DualState(SavedDual):
    """One dual block for every training example, and what is known of it.

    The weights follow from it: ``w = (1/(lam n)) sum_i Phi_i^T (p(y_i) - mu_i)``; the dual objective is
    ``D = sum_i l_i - lam/2 |w|^2``, with ``l_i`` = :attr:`loss`. Scalars are float64; blocks have the weights' dtype.
    ``BCFW`` carries this state in its ``state_dict``.

    Where weights have bounds ([G16] appendix H), that formula gives v, the head holds ``w = clip(v)``, and
    ``D = sum_i l_i - lam <v, w> + lam/2 |w|^2``. The block gaps at w still add up to primal minus dual.

    Args:
        num_examples: n, the size of the training set.
        lam: Regularisation, the lambda of ``lam/2 |w|^2``; positive.
        structure: What an output is.
        parameters: The head's parameters, in the order of ``head.parameters()``; float32 or float64.
        storage: How blocks are kept; None is ``MeanParts()``.
        memory_limit: Bytes that the blocks may take; None is what the device has left when they are first needed.

    Attributes:
        loss: ``[n]`` float64, l_i = (1/n) times the mean loss of the block.
        gap_estimates: ``[n]`` float64, each block's gap when it was last seen; infinite before that.
        oracle_gaps: ``[n]`` float64, each block's gap when the max oracle last saw it; infinite before that.
        certified_gap: The gap of the last exact pass; infinite before that.
        steps: Steps taken.
        cache_hits: Examples that went to a cached labeling instead of being decoded.
        oracle_calls: Examples decoded with loss augmentation, exact passes included.
        visits: Training batches seen, those that a step was taken on and those given up; refused ones do not count.
        mailbox: Steps that losses have proposed and no optimizer has taken yet, and who wants to know of steps; never
            in checkpoints.
        moved: Blocks moved by all steps; a step of B blocks adds B.
        targets: ``[n]`` int64, a digest of every example's target from its first visit on, or from the first exact pass
            after a step; ``UNKNOWN`` before that.
        relaxed: Whether an oracle has returned labelings outside of the hull of outputs (``Decoding.relaxed``): blocks
            and certificates are then those of the relaxation.
        box: Bounds of the weights; the optimizer sets them.
        unclipped: v, for each parameter; the parameter itself where it has no bounds.
        recomputed: The v that the next step starts from, if an exact pass has recomputed it.
        dtype: Dtype of the weights when the dual was made; they must keep it.
        held_norm: Norm of the weights as the last step left them.
        version: Counts changes of blocks or weights: directions computed before one are void after it.
        restarts: Counts changes of the weights that no step made: recomputed after the features moved, another ``lam``,
            a loaded state. An average of the weights across one would be that of no dual.

    Raises:
        ValueError: ``num_examples`` or ``lam`` is not positive, or there is no parameter.
        TypeError: A parameter is not float32 or float64, or ``structure`` is not a Structure.
    """

    def __init__(
        self,
        num_examples: int,
        lam: float,
        structure: Structure,
        parameters: Iterable[nn.Parameter],
        *,
        storage: Storage | None = None,
        memory_limit: int | None = None,
    ) -> None:
        super().__init__(check_problem(num_examples, lam, structure, parameters))
        memory_limit = check_limit(memory_limit)
        self.num_examples = num_examples = int(num_examples)
        self._lam = float(lam)
        self.structure = structure
        if storage is not None and not isinstance(storage, Storage):
            raise TypeError(f"storage={storage!r} must be an object such as Labelings()")
        self.storage = storage if storage is not None else MeanParts()
        self.storage.bind(num_examples, self.lam, structure, self.parameters, memory_limit)
        self.loss = torch.zeros(num_examples, dtype=torch.float64)
        self.gap_estimates = torch.full((num_examples,), math.inf, dtype=torch.float64)
        self.oracle_gaps = self.gap_estimates.clone()
        self.certified_gap = math.inf
        self.steps = self.visits = 0
        self.mailbox = Mailbox()
        self.cache_hits = 0
        self.oracle_calls = 0
        self.moved = 0
        self.targets = torch.full((num_examples,), UNKNOWN, dtype=torch.int64)
        self.relaxed = False
        self.restarts = 0

    @classmethod
    def for_head(
        cls,
        head: nn.Module,
        num_examples: int,
        lam: float,
        *,
        structure: Structure | None = None,
        storage: Storage | None = None,
        memory_limit: int | None = None,
    ) -> DualState:
        """The dual state of a head; the head's linearity is checked when it is first called.

        Args:
            head: An ``nn.Module`` linear in all its weights.
            num_examples: n, the size of the training set.
            lam: Regularisation; positive.
            structure: What an output is; None is ``head.structure``.
            storage: How blocks are kept; None is ``MeanParts()``.
            memory_limit: Bytes that the blocks may take; None is what the device has left.

        Raises:
            ValueError: As the constructor, or there is no structure, or a parameter does not require a gradient.
        """
        structure = find_structure(head, structure)
        frozen = [name for name, parameter in head.named_parameters() if not parameter.requires_grad]
        if frozen:
            raise ValueError(
                f"parameters {frozen} of the head do not require a gradient: a head must be linear in the weights that "
                "are trained, so move constants into the features"
            )
        dual = cls(num_examples, lam, structure, head.parameters(), storage=storage, memory_limit=memory_limit)
        check_at_first_call(head)
        return dual

    @property
    def lam(self) -> float:
        """The regularisation; :meth:`change_lam` and :meth:`rescale` change it with all that depends on it."""
        return self._lam

    @property
    def passes(self) -> float:
        """Effective passes: oracle calls divided by n."""
        return self.oracle_calls / self.num_examples

    @property
    def gap_estimate(self) -> float:
        """Sum of the block gaps as last seen: a figure for a progress bar, not a certificate."""
        return float(self.gap_estimates.sum())

    @torch.no_grad()
    def value(self) -> float:
        """The dual objective at the weights held now, ``sum_i l_i - lam <v, w> + lam/2 |w|^2``."""
        self.to(self.parameters[0].device)
        if not self.box.has_bounds and not self.written_to():
            return float(self.loss.sum()) - self.lam / 2 * self._held_square
        return self.objective(float(self.loss.sum()), self.unclipped)

    def objective(self, loss: float, unclipped: Sequence[Tensor]) -> float:
        """The dual objective of any blocks.

        Args:
            loss: ``sum_i l_i``.
            unclipped: v, for each parameter; without bounds ``v = w``, and the objective is ``loss - lam/2 |w|^2``.
        """
        if not self.box.has_bounds:
            return loss - self.lam / 2 * squared_norm(unclipped)
        v, w = flat(unclipped), flat(self.box.clip(unclipped))
        return loss - self.lam * float(w @ (v - w / 2))

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        """Go from ``lam`` to ``factor * lam`` with the weights as they are ([G16] Proposition 1).

        ``alpha_i(y) *= factor`` for ``y != y_i`` and the target takes the rest, so ``psi_i`` and l_i are multiplied by
        ``factor``. Gaps known at this moment become ``g_i + (1 - factor) (l_i - lam <w, w_i>)``. Where the storage
        cannot tell the products, each estimate takes the n-th part of the change of their sum, which is known.

        Args:
            factor: rho in (0, 1].

        Raises:
            ValueError: ``factor`` is out of range, or would bring ``lam`` out of that of the weights' dtype.
        """
        if not (0.0 < as_number(factor, "factor") <= 1.0 and self.lam * factor > 0.0):
            raise ValueError(f"factor={factor} must be in (0, 1]: blocks can be shrunk towards their targets only")
        check_range(self.lam * factor, self.num_examples, self.parameters[0].dtype)
        products = self.storage.products()
        if products is None:
            inner = float(flat(self.parameters) @ flat(self.unclipped))
            slopes = (self.loss.sum() - self.lam * inner) / self.num_examples
        else:
            slopes = self.loss - products
        self.gap_estimates = (self.gap_estimates + (1.0 - factor) * slopes).clamp_(min=0.0)
        self.oracle_gaps = (self.oracle_gaps + (1.0 - factor) * slopes).clamp_(min=0.0)
        self.certified_gap = math.inf
        self.storage.rescale(factor)
        self.loss = self.loss * factor
        self._set_lam(self.lam * factor)

    @torch.no_grad()
    def change_lam(self, lam: float) -> None:
        """Go to another ``lam`` with the dual as it is; the weights are multiplied by the old ``lam`` over the new one.

        Gap estimates become unknown.

        Args:
            lam: The new regularisation; positive.

        Raises:
            ValueError: ``lam`` is not positive and finite, or out of the range of the weights' dtype.
        """
        lam = check_lam(lam)
        check_range(lam, self.num_examples, self.parameters[0].dtype)
        held = self.unclipped if self.recomputed is None else self.recomputed
        self.set_weights([tensor * (self.lam / lam) for tensor in held])
        self.gap_estimates = torch.full_like(self.gap_estimates, math.inf)
        self.oracle_gaps = self.gap_estimates.clone()
        self.certified_gap = math.inf
        self.storage.change_lam(lam)
        self._set_lam(lam)

    def _set_lam(self, lam: float) -> None:
        self._lam = self.storage.lam = lam
        self.restarts += 1
        self.remember_weights()

    def to(self, device: torch.device) -> None:
        """Move what is stored."""
        if self.loss.device != device:
            self.loss, self.gap_estimates = self.loss.to(device), self.gap_estimates.to(device)
            self.oracle_gaps, self.targets = self.oracle_gaps.to(device), self.targets.to(device)
            self.storage.to(device)
            self.box.to(device)
            self.unclipped = self.box.separate([v.to(device) for v in self.unclipped], self.parameters)
            if self.recomputed is not None:
                self.recomputed = [tensor.to(device) for tensor in self.recomputed]

    @torch.no_grad()
    def begin(self, box: Box) -> bool:
        """Set the bounds; if the dual is new, v = 0 and the weights become those within the bounds nearest to zero.

        Returns:
            Whether weights that were not zero have been overwritten.

        Raises:
            ValueError: The dual has been trained within other bounds.
        """
        if self.steps and not box.same_as(self.box):
            raise ValueError(
                f"params has other bounds than those within which the dual has taken {self.steps} steps, and the dual "
                "value depends on them: give the same lower and upper, or make a new DualState"
            )
        if self.steps:
            return False
        zeros = [torch.zeros_like(p) for p in self.parameters]
        self.box, self.unclipped = box, box.separate(zeros, self.parameters)
        changed = [p.clone() for p, w in zip(self.parameters, box.clip(zeros), strict=True) if not torch.equal(p, w)]
        if changed:
            self.set_weights(zeros)
        return any(bool(p.any()) for p in changed)

    def discard(self) -> None:
        """Forget proposed steps, as ``zero_grad`` forgets their gradients; their batches count as seen."""
        if self.mailbox.waiting:
            self.visits += len(self.mailbox.take())
            self.mailbox.notify()

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`check_state` has let pass."""
        super().restore(state)
        self.mailbox.take()
        self.restarts += 1
        self.remember_weights()

    def __repr__(self) -> str:
        return (
            f"DualState(num_examples={self.num_examples}, lam={self.lam:g}, structure={self.structure}, "
            f"storage={type(self.storage).__name__}, steps={self.steps})"
        )
