"""The state of the dual: blocks, losses, gap estimates and counters of a training problem."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import override

from torchssvm.core.arguments import as_number, check_limit, check_type
from torchssvm.core.linearity import check_at_first_call
from torchssvm.core.problem import Box, check_lam, check_problem, check_range, find_structure
from torchssvm.core.ranks import Ranks, sum_in_order
from torchssvm.core.row_sparse import add_to, flat, inner_product, products, squared_distance, squared_norm
from torchssvm.core.states import ByRank, Numbers, Stateful, check_entries, check_seal, copied
from torchssvm.core.structure import Structure
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.storage import Storage


class ProposedStep(Protocol):
    """A step that an optimizer can take."""

    def take(self, optimizer: Any, together: list[Any]) -> None:
        """Take this step and those accumulated with it, this one first; the optimizer's weights change."""
        ...


class Observer(Protocol):
    """An object that is told about steps."""

    def after_step(self) -> None:
        """Called after a step was taken or discarded."""
        ...


class Mailbox:
    """Proposed steps in the order of their proposal, ``waiting`` to be taken; several if gradients are accumulated."""

    def __init__(self) -> None:
        self.waiting: list[ProposedStep] = []
        self._observers: weakref.WeakSet[Observer] = weakref.WeakSet()

    def put(self, step: ProposedStep) -> None:
        """Add a step."""
        self.waiting.append(step)

    def take(self) -> list[ProposedStep]:
        """Remove and return all waiting steps."""
        taken, self.waiting = self.waiting, []
        return taken

    def observe(self, observer: Observer) -> None:
        """Call ``observer.after_step()`` after each step taken or discarded; the reference is weak."""
        self._observers.add(observer)

    def forget(self, observer: Observer) -> None:
        """Stop calling ``observer.after_step()``."""
        self._observers.discard(observer)

    def notify(self) -> None:
        """Tell the observers that a step was taken or discarded."""
        for observer in list(self._observers):
            observer.after_step()

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles; observers copied together with the mailbox observe the copy."""
        return {**vars(self), "_observers": list(self._observers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._observers = weakref.WeakSet(state["_observers"])


FORMAT = 4
UNKNOWN = 0
"""Stands for a target that was not seen yet; no target has this digest."""

_COUNTERS = ("cache_hits", "steps", "oracle_calls", "visits", "moved")
_LARGE = 1 << 17  # more weights than this are not all read in every step, ...
_PER_BLOCK = 1000  # ... but on average at most so many for each block that moves


class DualState(ByRank):
    """One dual block for every training example, with its loss and its last known gap.

    The blocks determine the weights, ``w = (1/(lam n)) sum_i Phi_i^T (p(y_i) - mu_i)``. The dual objective is
    ``D = sum_i l_i - lam/2 |w|^2``, with ``l_i`` = :attr:`loss`. Scalars are float64; blocks have the weights' dtype.
    The ``state_dict`` of ``BCFW`` contains this state.

    Under bounds ([G16] appendix H) this formula gives v, the head holds ``w = clip(v)``, and
    ``D = sum_i l_i - lam <v, w> + lam/2 |w|^2``. The block gaps at w still sum to primal minus dual.

    Under ``torch.distributed`` every rank has the same weights, and the blocks of a contiguous part of the examples;
    n, gaps, losses and counters count all ranks together.

    Args:
        num_examples: n, the size of the training set.
        lam: Regularisation, the lambda of ``lam/2 |w|^2``; positive.
        parameters: The head's parameters, in the order of ``head.parameters()``; float32 or float64.
        storage: How blocks are kept; None is ``MeanParts()``.
        memory_limit: Bytes that the blocks may take; None is what the device has left when they are first needed.

    Attributes:
        ranks: The processes that train together.
        own: The examples whose blocks are in this process, of 0 to n - 1; m of them below.
        loss: ``[m]`` float64, l_i = (1/n) times the mean loss of the block.
        gap_estimates: ``[m]`` float64, each block's gap at its last visit; infinite before the first.
        oracle_gaps: ``[m]`` float64, each block's gap when its example was last decoded; infinite before.
        certified_gap: The gap of the last exact pass; infinite before the first.
        steps: Steps taken.
        cache_hits: Visits that took a cached labeling instead of decoding.
        oracle_calls: Examples decoded with loss augmentation, exact passes included.
        visits: Training batches whose step was taken or discarded; refused steps do not count.
        mailbox: Proposed steps that no optimizer has taken yet, and the observers of steps; not in checkpoints.
        moved: Blocks moved by all steps; a step of B blocks adds B.
        targets: ``[m]`` int64 on the CPU, a digest of every example's target; ``UNKNOWN`` until its first visit, or the
            first exact pass after a step.
        relaxed: Whether an oracle has returned labelings outside of the hull of outputs (``Decoding.relaxed``).
        parameters: w, the head's parameters.
        dtype: Dtype of the weights, which they must keep.
        box: Bounds of the weights; the optimizer sets them.
        unclipped: v, for each parameter; the parameter itself where it has no bounds.
        recomputed: v recomputed by an exact pass, from which the next step starts; None otherwise.
        damped: Whether the head holds damped weights, with a smaller primal than w(alpha), which is ``recomputed``.
        held_norm: Norm of the weights after the last step.
        version: Counts changes of blocks or weights; a direction is valid for the version that it was computed at.
        rho: How much the directions of the ranks overlapped in the last round: 1 for no overlap, up to their number.
        restarts: Counts changes of the weights without a step, after which averages restart: recomputed weights,
            another ``lam``, a loaded state.

    Raises:
        ValueError: ``num_examples`` or ``lam`` is not positive, or an argument, or the release of torchssvm, is not the
            same in all processes.
        TypeError: A parameter is not float32 or float64, or ``structure`` or ``storage`` has another type.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> dual = DualState.for_head(head, num_examples=30, lam=0.1, storage=Labelings())
        >>> dual.num_examples, dual.lam
        (30, 0.1)
    """

    state_name = "dual"
    per_example = ("loss", "gap_estimates", "oracle_gaps", "targets")

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
        self.ranks = Ranks.here()

        def check() -> tuple[list[nn.Parameter], int | None]:
            if storage is not None:
                check_type(storage, Storage, "storage", "an object such as Labelings()")
            return check_problem(num_examples, lam, structure, parameters), check_limit(memory_limit)

        self.parameters, memory_limit = self.ranks.run_on_all(check)
        self.dtype = self.parameters[0].dtype
        self.box = Box(self.parameters)
        self.unclipped: list[Tensor] = list(self.parameters)
        self.recomputed: list[Tensor] | None = None
        self.damped = False
        self.held_norm = self._held_square = 0.0
        self._written = [-1 if bool(p.any()) else p._version for p in self.parameters]  # a new dual has zero weights
        self._numbers = sum(p.numel() for p in self.parameters)
        self._unread = 0  # blocks moved since all weights were read
        self.version = 0
        self.num_examples = num_examples = int(num_examples)
        self._lam = float(lam)
        self.structure = structure
        self.made_for = structure._fingerprint()  # exact passes compare it
        self.storage = storage if storage is not None else MeanParts()
        self.ranks.check_same(
            num_examples=num_examples,
            lam=self._lam,
            structure=structure,
            parameters=[(list(p.shape), p.dtype) for p in self.parameters],
            storage=type(self.storage).__name__,
            torchssvm=sys.modules["torchssvm"].__version__,
        )
        self.own = self.ranks.own(num_examples)
        self.storage.bind(num_examples, self.lam, structure, self.parameters, memory_limit, self.own)
        size = len(self.own)
        self.loss = torch.zeros(size, dtype=torch.float64)
        self.gap_estimates = torch.full((size,), math.inf, dtype=torch.float64)
        self.oracle_gaps = self.gap_estimates.clone()
        self.certified_gap = math.inf
        self.steps = self.visits = 0
        self.mailbox = Mailbox()
        self.cache_hits = 0
        self.oracle_calls = 0
        self.moved = 0
        self.targets = torch.full((size,), UNKNOWN, dtype=torch.int64)
        self.relaxed = False
        self.restarts = 0
        self.rho = 1.0
        self._sums = 0.0, math.inf  # the loss and the gap estimate of all ranks, at their last exchange

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
            structure: What an output is; None is ``head.structure``.
            storage: How blocks are kept; None is ``MeanParts()``.
            memory_limit: Bytes that the blocks may take; None is what the device has left.

        Raises:
            ValueError: As the constructor, or there is no structure, or a parameter does not require a gradient.
        """
        structure = find_structure(head, structure)
        frozen = [name for name, parameter in head.named_parameters() if not parameter.requires_grad]
        if frozen:
            raise ValueError(f"parameters {frozen} of the head require no gradient: move constants into the features")
        dual = cls(num_examples, lam, structure, head.parameters(), storage=storage, memory_limit=memory_limit)
        check_at_first_call(head)
        return dual

    @property
    def lam(self) -> float:
        """The regularisation; changed by :meth:`change_lam` and :meth:`rescale`."""
        return self._lam

    @property
    def passes(self) -> float:
        """Effective passes: oracle calls divided by n."""
        return self.oracle_calls / self.num_examples

    @property
    def gap_estimate(self) -> float:
        """Sum of ``gap_estimates``, over all ranks: for progress bars; not a certificate.

        Damped weights w add ``lam/2 |w - v|^2``.
        """
        if self.damped:
            return float(self.gap_estimates.sum()) + self.lam / 2 * squared_distance(self.parameters, self.origin)
        return self._sums[1] if self.ranks else float(self.gap_estimates.sum())

    @property
    def origin(self) -> list[Tensor]:
        """v, from which the next step starts."""
        return self.unclipped if self.recomputed is None else self.recomputed

    @property
    def total_loss(self) -> float:
        """``sum_i l_i`` over all n examples."""
        return self._sums[0] if self.ranks else float(self.loss.sum())

    def count(self, calls: int, hits: int, moved: int) -> None:
        """Count a step of all ranks: examples decoded, labelings taken from the cache, and blocks moved."""
        self.oracle_calls += calls
        self.cache_hits += hits
        self.moved += moved
        self.steps += 1

    def keep_sums(self, loss: float, gap: float) -> None:
        """Keep the exchanged sums of the loss and of the gap estimates."""
        self._sums = loss, gap

    def sum_over_ranks(self) -> None:
        """Exchange the sums of losses and gap estimates; all ranks call it."""
        if self.ranks:
            sums = torch.stack([self.loss.sum(), self.gap_estimates.sum()]).cpu()
            loss, gap = sum_in_order(self.ranks.gather(sums)).tolist()
            self.keep_sums(loss, gap)

    @torch.no_grad()
    def value(self) -> float:
        """The dual objective at the current weights, ``sum_i l_i - lam <v, w> + lam/2 |w|^2``."""
        self.to(self.parameters[0].device)
        if self.damped:
            return self.objective(self.total_loss, self.origin)
        if not self.box.has_bounds and not self.written_to():
            return self.total_loss - self.lam / 2 * self._held_square
        return self.objective(self.total_loss, self.unclipped)

    def objective(self, loss: float, unclipped: Sequence[Tensor]) -> float:
        """The dual objective for any losses and weights.

        Args:
            unclipped: v, for each parameter; without bounds ``v = w``, and the objective is ``loss - lam/2 |w|^2``.
        """
        if not self.box.has_bounds:
            return loss - self.lam / 2 * squared_norm(unclipped)
        v, w = flat(unclipped), flat(self.box.clip(unclipped))
        return loss - self.lam * float(w @ (v - w / 2))

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        """Change ``lam`` to ``factor * lam`` and keep the weights ([G16] Proposition 1).

        ``alpha_i(y) *= factor`` for ``y != y_i``, and the target gets the rest, so ``psi_i`` and l_i are multiplied by
        ``factor``. Gaps become ``g_i + (1 - factor) (l_i - lam <w, w_i>)``. If the storage does not give the products
        ``<w, w_i>``, only the sum of these changes is known, and each estimate gets the n-th part of it.

        Args:
            factor: rho in (0, 1].

        Raises:
            ValueError: ``factor`` is out of range, or the new ``lam`` is out of the range of the weights' dtype.
        """
        if not (0.0 < as_number(factor, "factor") <= 1.0 and self.lam * factor > 0.0):
            raise ValueError(f"factor={factor} must be above 0 and at most 1")
        check_range(self.lam * factor, self.num_examples, self.parameters[0].dtype)
        products = self.storage.products()
        if products is None:
            inner = inner_product(self.parameters, self.origin if self.damped else self.unclipped)
            slopes = torch.full_like(self.loss, (self.total_loss - self.lam * inner) / self.num_examples)
        else:
            slopes = self.loss - products
        self.gap_estimates = (self.gap_estimates + (1.0 - factor) * slopes).clamp_(min=0.0)
        self.oracle_gaps = (self.oracle_gaps + (1.0 - factor) * slopes).clamp_(min=0.0)
        self.certified_gap = math.inf
        self.storage.rescale(factor)
        self.loss = self.loss * factor
        self.sum_over_ranks()
        self._set_lam(self.lam * factor)

    @torch.no_grad()
    def change_lam(self, lam: float) -> None:
        """Change ``lam`` and keep the dual variables: the weights are multiplied by the old ``lam`` over the new one.

        Gap estimates become unknown (infinite).

        Raises:
            ValueError: ``lam`` is not positive and finite, or out of the range of the weights' dtype.
            TypeError: ``lam`` is not a number.
        """
        lam = check_lam(lam)
        check_range(lam, self.num_examples, self.parameters[0].dtype)
        self.set_weights([tensor * (self.lam / lam) for tensor in self.origin])
        self.gap_estimates = torch.full_like(self.gap_estimates, math.inf)
        self.oracle_gaps = self.gap_estimates.clone()
        self.certified_gap = math.inf
        self.sum_over_ranks()
        self.storage.change_lam(lam)
        self._set_lam(lam)

    def _set_lam(self, lam: float) -> None:
        self._lam = self.storage.lam = lam
        self.restarts += 1
        self.remember_weights()

    def to(self, device: torch.device) -> None:
        """Move all tensors to the device."""
        if self.loss.device == device:
            return
        self.loss, self.gap_estimates = self.loss.to(device), self.gap_estimates.to(device)
        self.oracle_gaps = self.oracle_gaps.to(device)
        self.storage.to(device)
        self.box.to(device)
        self.unclipped = self.box.separate([v.to(device) for v in self.unclipped], self.parameters)
        if self.recomputed is not None:
            self.recomputed = [tensor.to(device) for tensor in self.recomputed]

    @torch.no_grad()
    def begin(self, box: Box) -> bool:
        """Set the bounds; a new dual starts at v = 0 with the weights ``clip(0)``.

        Returns:
            Whether non-zero weights have been overwritten.

        Raises:
            ValueError: The dual has taken steps under other bounds, or was made before the process group.
        """
        if (here := Ranks.here()) != self.ranks:
            made = f"rank {self.ranks.rank} of {self.ranks.size}" if self.ranks else "one process"
            now = f"rank {here.rank} of {here.size}" if here else "one process"
            raise ValueError(
                f"the dual was made by {made}, and this is {now}: make the DualState after init_process_group(), or "
                "load a checkpoint"
            )
        if self.steps and not box.same_as(self.box):
            raise ValueError(
                f"params has other bounds than in the {self.steps} steps of the dual: make a new DualState"
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
        """Discard proposed steps; ``zero_grad`` calls this. Their batches count as visits."""
        if self.mailbox.waiting:
            self.visits += len(self.mailbox.take())
            self.mailbox.notify()

    def check_dtype(self) -> None:
        """Raise TypeError if the weights have another dtype than at the start, as after ``head.half()``."""
        for parameter in self.parameters:
            if parameter.dtype is not self.dtype:
                raise TypeError(
                    f"the head's weights are {parameter.dtype}, and were {self.dtype} when the dual was made: call "
                    f"head.to({self.dtype}) and load the weights again"
                )

    @torch.no_grad()
    def set_weights(self, unclipped: Iterable[Tensor]) -> None:
        """Set v, rounded to the weights' dtype, and the weights to ``clip(v)``; they are no longer damped."""
        for v, value in zip(self.unclipped, unclipped, strict=True):
            v.copy_(value)
        if self.damped:  # gaps were those of other weights
            self.restarts += 1
            self.gap_estimates.fill_(math.inf)
            self.oracle_gaps.fill_(math.inf)
        self.recomputed, self.damped = None, False
        self._clip()

    def damp(self) -> None:
        """Begin to keep v in ``recomputed``, apart from the head's weights, which start there; no bounds, one rank."""
        if not self.damped:
            self.set_weights(self.origin)
            self.recomputed, self.damped = copied(self.parameters), True

    def _clip(self) -> None:
        for parameter, weights in zip(self.parameters, self.box.clip(self.unclipped), strict=True):
            if parameter is not weights:
                parameter.copy_(weights)
        self.remember_weights()

    @torch.no_grad()
    def move_weights(
        self, directions: Sequence[Tensor], rate: float, known: tuple[float, float, float] | None = None
    ) -> None:
        """``v += rate d``, starting from ``recomputed`` if it is not None; then ``w = clip(v)``.

        Args:
            directions: d, for each parameter; sparse ones coalesced.
            known: ``|w|^2``, ``<w, d>`` and ``|d|^2``, if already computed.
        """
        if self.recomputed is not None:
            self.set_weights(torch.add(v, d, alpha=rate) for v, d in zip(self.recomputed, directions, strict=True))
        elif not self.box.has_bounds and not any(d.is_sparse for d in directions):
            torch._foreach_add_(self.unclipped, list(directions), alpha=rate)
            self.remember_weights(None if known is None or self.parameters[0].is_cpu else _moved(*known, rate))
        elif self.box.has_bounds:
            for value, direction in zip(self.unclipped, directions, strict=True):
                add_to(value, direction, rate)
            self._clip()
        else:
            inner, squared = products(self.parameters, directions) if known is None else known[1:]
            for weights, direction in zip(self.unclipped, directions, strict=True):
                add_to(weights, direction, rate)
            self.remember_weights(self._held_square + rate * (2.0 * inner + rate * squared))

    def norm_changed(self, norm: float) -> bool:
        """Whether ``norm`` differs from that of the weights after the last step by more than rounding."""
        return abs(norm - self.held_norm) > 1e-5 * max(norm, self.held_norm)

    def written_to(self) -> bool:
        """Whether the weights were written to since :meth:`remember_weights`, other than through ``.data`` or numpy."""
        return [p._version for p in self.parameters] != self._written

    @property
    def is_large(self) -> bool:
        """Whether there are so many weights that their norm is updated instead of computed in every step."""
        return self._numbers > _LARGE

    def remember_weights(self, squared: float | None = None, blocks: int = 1) -> None:
        """Accept the current weights as those of the dual; directions computed earlier become invalid.

        Args:
            squared: ``|w|^2`` if it was updated, up to rounding; large weights, and those on a device, are then read
                only now and then.
            blocks: Blocks moved since the last call.
        """
        self.version += 1
        self._unread += blocks
        self._written = [p._version for p in self.parameters]
        often = self._unread * _PER_BLOCK >= self._numbers if self.is_large else self.parameters[0].is_cpu
        if squared is None or often:
            squared, self._unread = squared_norm(self.parameters), 0
        self._held_square = max(squared, 0.0)
        self.held_norm = math.sqrt(self._held_square)

    def _nested(self) -> dict[str, Stateful]:
        return {"storage": self.storage}

    def _entries(self) -> dict[str, Any]:
        return {
            **self._identity(),
            "weights": copied(self.parameters),
            "box": self.box.state(self.unclipped),
            "recomputed": self.recomputed and copied(self.recomputed),
            **{name: getattr(self, name).clone() for name in self.per_example},
            **{name: getattr(self, name) for name in (*_COUNTERS, "certified_gap", "relaxed")},
            **({"damped": True} if self.damped else {}),
        }

    def _identity(self) -> dict[str, Any]:
        structure = repr(self.structure)
        return {"format": FORMAT, "num_examples": self.num_examples, "lam": self._lam, "structure": structure}

    def _check_own(self, state: dict[str, Any]) -> None:
        check_seal(state, FORMAT, "dual")
        check_entries(state, self._wanted(state), "dual")
        self.box.check_state(state["box"], self.parameters)
        self.storage.check_state(state["storage"])

    def _wanted(self, state: dict[str, Any]) -> dict[str, Any]:
        weights: Any = [Numbers(p.dtype, tuple(p.shape)) for p in self.parameters]
        gaps = Numbers(torch.float64, (len(self.own),), 0.0, math.inf)
        return {
            **self._identity(),
            "weights": weights,
            "box": object,
            "recomputed": state["recomputed"] and weights,
            "loss": Numbers(torch.float64, (len(self.own),)),
            "gap_estimates": gaps,
            "oracle_gaps": gaps,
            "targets": Numbers(torch.int64, (len(self.own),)),
            **dict.fromkeys(_COUNTERS, Numbers(int, low=0)),
            "certified_gap": Numbers(float, (), 0.0, math.inf),
            "relaxed": bool,
            **({"damped": bool} if "damped" in state else {}),
            "storage": dict,
            "seal": int,
        }

    def _restore_own(self, state: dict[str, Any]) -> None:
        device = self.parameters[0].device
        self.to(device)
        for parameter, weights in zip(self.parameters, state["weights"], strict=True):
            parameter.copy_(weights)
        self.unclipped = self.box.load_state(state["box"], self.parameters)
        self.recomputed = state["recomputed"] and [v.to(device, copy=True) for v in state["recomputed"]]
        self.damped = state.get("damped", False)
        for name in ("loss", "gap_estimates", "oracle_gaps"):
            setattr(self, name, state[name].to(device, copy=True))
        self.targets = state["targets"].to("cpu", copy=True)
        for name in (*_COUNTERS, "certified_gap", "relaxed"):
            setattr(self, name, state[name])
        self.storage.restore(state["storage"])
        self.mailbox.take()
        self.restarts += 1
        self.remember_weights()
        self.sum_over_ranks()

    @override
    def merged_state(self, states: list[dict[str, Any]], parts: list[range]) -> dict[str, Any]:
        relaxed = any(state["relaxed"] for state in states)
        return super().merged_state([{**states[0], "relaxed": relaxed}, *states[1:]], parts)

    def _progress(self) -> Any:
        return self.lam, self.steps, self.visits, self.oracle_calls, self.cache_hits, self.moved, self.certified_gap

    def _merge(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The state of one process that holds all blocks."""
        return self.merged_state(parts, [self.ranks.own(self.num_examples, rank) for rank in range(self.ranks.size)])

    def _own_part(self, state: Any) -> Any:
        whole = self.ranks and isinstance(state, dict) and state.get("num_examples") == self.num_examples
        if not whole or "seal" not in state or len(state["loss"]) == len(self.own):
            return state
        check_seal(state, FORMAT, "dual")
        return self.part_of_state(state, self.own)

    def __repr__(self) -> str:
        return (
            f"DualState(num_examples={self.num_examples}, lam={self.lam:g}, structure={self.structure}, "
            f"storage={type(self.storage).__name__}, steps={self.steps})"
        )


def _moved(squared: float, inner: float, along: float, rate: float) -> float | None:
    """``|w + rate d|^2`` from ``|w|^2``, ``<w, d>`` and ``|d|^2``; None where w and rate d cancel, up to rounding."""
    moved = squared + rate * (2.0 * inner + rate * along)
    return moved if moved > 1e-3 * (squared + rate**2 * along) else None
