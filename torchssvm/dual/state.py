"""The state of the dual: blocks, losses, gap estimates and counters of one training problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import as_number, check_int64, check_limit
from torchssvm.core.batch import first_occurrences
from torchssvm.core.bounds import Box
from torchssvm.core.digest import UNKNOWN
from torchssvm.core.linearity import check_at_first_call
from torchssvm.core.mailbox import Mailbox
from torchssvm.core.potentials import Potentials
from torchssvm.core.problem import check_lam, check_problem, check_range, find_structure
from torchssvm.core.row_sparse import add_to, flat, products, squared_norm
from torchssvm.core.structure import Structure
from torchssvm.dual.checkpoint import SavedDual
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.storage import Storage

_LARGE = 1 << 17  # weights
_PER_BLOCK = 1000  # weights that may be read for every block that moves


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
        self.parameters = check_problem(num_examples, lam, structure, parameters)
        self.dtype = self.parameters[0].dtype
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
        self.box = Box(self.parameters)
        self.unclipped: list[Tensor] = list(self.parameters)
        self.recomputed: list[Tensor] | None = None
        self.held_norm = self._held_square = 0.0
        self._written = [-1 for _ in self.parameters]
        self._numbers = sum(p.numel() for p in self.parameters)
        self._unread = 0  # blocks moved since all weights were read
        self.version = 0
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

    def check_batch(self, index: Tensor, potentials: Potentials) -> Tensor:
        """The index on the right device, or an error, as :meth:`check_rows`."""
        return self.check_rows(index, potentials)[0]

    def check_rows(self, index: Tensor, potentials: Potentials) -> tuple[Tensor, Tensor]:
        """The index on the right device, and the rows that hold an example for the first time, ``[R]`` int64.

        Raises:
            ValueError: ``index`` is not int64 ``[B]`` within 0 .. n - 1.
            TypeError: The potentials are not of the weights' dtype, or the weights not of the dual's.
        """
        size, weights = potentials.batch_size, self.parameters[0]
        check_int64(index, "index", (size,), ", one number for each example")
        if not size:
            raise ValueError("the batch is empty: index holds no example")
        numbers = index.tolist()
        if min(numbers) < 0 or max(numbers) >= self.num_examples:
            raise ValueError(
                f"index holds {min(numbers)} to {max(numbers)}; the dual has num_examples={self.num_examples}, so that "
                f"an index is 0 to {self.num_examples - 1}"
            )
        if potentials.dtype is not self.dtype:
            if not potentials.dtype.is_floating_point:
                raise TypeError(
                    f"the potentials are {potentials.dtype}: the first argument must be what the head returned, "
                    "loss(head(x), y, index)"
                )
            self.check_dtype()
            raise TypeError(
                f"the potentials are {potentials.dtype} and the head's weights {weights.dtype}: run the head in the "
                "dtype of its weights, with autocast off"
            )
        self.to(weights.device)
        index = index.to(weights.device)
        return index, first_occurrences(index, numbers)

    def check_dtype(self) -> None:
        """Raise TypeError if the weights are not of the dtype that the dual was made for, as after ``head.half()``."""
        for parameter in self.parameters:
            if parameter.dtype is not self.dtype:
                raise TypeError(
                    f"the head's weights are {parameter.dtype}, and were {self.dtype} when the dual was made: blocks "
                    f"and weights must agree. Call head.to({self.dtype}) and load the weights again, or convert the "
                    "head to torch.float32 or torch.float64 first and make a new DualState and BCFW"
                )

    def check_targets(self, targets: Tensor, index: Tensor | None = None) -> None:
        """Compare digests of targets with those that the blocks were trained on; changes nothing.

        Args:
            targets: ``[B]`` int64.
            index: ``[B]`` int64, whose they are; None is all examples in order.

        Raises:
            RuntimeError: Some differ: blocks belong to the targets that they were trained on.
        """
        known = self.targets if index is None else self.targets[index]
        targets = targets.to(known.device)
        if torch.equal(known, targets):
            return
        wrong = (known != targets) & (known != UNKNOWN)
        if not bool(wrong.any()):
            return
        rows = wrong.nonzero().flatten()
        examples = (rows if index is None else index[rows]).unique().tolist()
        raise RuntimeError(
            f"{len(examples)} of {len(targets)} examples have other targets than those that the dual was trained on, "
            f"{examples[:5]} among them: the dual belongs to the data that it was trained on, in the same order; make "
            "a new DualState for other data"
        )

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

    @torch.no_grad()
    def set_weights(self, unclipped: Iterable[Tensor]) -> None:
        """Set v, rounded to the weights' dtype, and the weights to ``clip(v)``: they are now those of the dual."""
        for held, value in zip(self.unclipped, unclipped, strict=True):
            held.copy_(value)
        if self.box.has_bounds:
            for parameter, weights in zip(self.parameters, self.box.clip(self.unclipped), strict=True):
                if parameter is not weights:
                    parameter.copy_(weights)
        self.recomputed = None
        self.remember_weights()

    @torch.no_grad()
    def move_weights(self, directions: Sequence[Tensor], rate: float, known: tuple[float, float] | None = None) -> None:
        """``v += rate d``, from the v that an exact pass has recomputed if there is one, and the weights with it.

        Args:
            directions: d, for each parameter; sparse ones coalesced.
            rate: How far.
            known: ``<w, d>`` and ``|d|^2``, if they are known already.
        """
        if self.recomputed is not None:
            self.set_weights(torch.add(v, d, alpha=rate) for v, d in zip(self.recomputed, directions, strict=True))
        elif not any(d.is_sparse for d in directions):
            if self.box.has_bounds:
                self.set_weights(torch.add(v, d, alpha=rate) for v, d in zip(self.unclipped, directions, strict=True))
            else:
                torch._foreach_add_(self.unclipped, list(directions), alpha=rate)
                self.remember_weights()
        elif self.box.has_bounds:
            self.remember_weights(self._held_square + self._move_each(directions, rate))
        else:
            inner, squared = products(self.parameters, directions) if known is None else known
            for held, direction in zip(self.unclipped, directions, strict=True):
                add_to(held, direction, rate)
            self.remember_weights(self._held_square + rate * (2.0 * inner + rate * squared))

    def _move_each(self, directions: Sequence[Tensor], rate: float) -> float:
        """Move some parameters by sparse directions, and those with bounds as a whole; the change of ``|w|^2``."""
        change = 0.0
        clipped = self.box.bounded
        for place, (held, direction) in enumerate(zip(self.unclipped, directions, strict=True)):
            weights = self.parameters[place]
            if not clipped[place]:
                inner, squared = products([weights], [direction])
                change += rate * (2.0 * inner + rate * squared)
                add_to(held, direction, rate)
                continue
            change -= squared_norm([weights])
            add_to(held, direction, rate)
            weights.copy_(self.box.clip(self.unclipped)[place])
            change += squared_norm([weights])
        return change

    def norm_changed(self, norm: float) -> bool:
        """Whether weights of this norm are not those that the last step left, beyond rounding."""
        return abs(norm - self.held_norm) > 1e-5 * max(norm, self.held_norm)

    def discard(self) -> None:
        """Forget proposed steps, as ``zero_grad`` forgets their gradients; their batches count as seen."""
        if self.mailbox.waiting:
            self.visits += len(self.mailbox.take())
            self.mailbox.notify()

    def written_to(self) -> bool:
        """Whether somebody has written to the weights since they were remembered, as far as torch knows of it.

        It does not know of writes through ``.data`` or numpy.
        """
        return [p._version for p in self.parameters] != self._written

    @property
    def is_large(self) -> bool:
        """Whether there are so many weights that their norm is kept up to date, and not read in every step."""
        return self._numbers > _LARGE

    def remember_weights(self, squared: float | None = None, blocks: int = 1) -> None:
        """Note the weights as those of the dual; ``BCFW.step`` refuses others, and directions computed before.

        Args:
            squared: ``|w|^2``, where it is known without looking at every weight; up to rounding, so that all are read
                now and then.
            blocks: How many blocks have moved since the last time.
        """
        self.version += 1
        self._unread += blocks
        self._written = [p._version for p in self.parameters]
        if squared is None or not self.is_large or self._unread * _PER_BLOCK >= self._numbers:
            squared, self._unread = squared_norm(self.parameters), 0
        self._held_square = max(squared, 0.0)
        self.held_norm = math.sqrt(self._held_square)

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


def check_dual(dual: Any) -> DualState:
    """The dual state, or TypeError if it is something else."""
    if isinstance(dual, DualState):
        return dual
    raise TypeError(
        f"dual is a {type(dual).__name__}, and must be a DualState: make one by "
        "DualState.for_head(head, num_examples, lam)"
    )
