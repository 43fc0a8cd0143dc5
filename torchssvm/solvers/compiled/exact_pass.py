"""Exact passes over packed examples, on all of torch's threads, and how far rounding moves their hinges in float32."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.threads import run_in_chunks, split
from torchssvm.dual.state import DualState
from torchssvm.kinds.examples import Examples, Model, Scratch, with_types
from torchssvm.solvers.compiled import exact
from torchssvm.solvers.compiled import whole as whole_blocks
from torchssvm.solvers.compiled.memory import BlockMemory
from torchssvm.solvers.compiled.state import BlockArrays, Options, Scalars
from torchssvm.solvers.exact_pass import ExactPass
from torchssvm.solvers.objective import negligible

_SAMPLE = 32  # tokens whose scores are estimated
_SHARE = 0.5  # of the largest rounding of each term of a sum: the roundings have either sign


class HingeRounding:
    """The typical rounding of a hinge, from a sample of tokens that is chosen once: the largest, and some others."""

    def __init__(self, examples: Examples) -> None:
        kind, lengths = examples.kind, np.diff(examples.start)
        links = getattr(kind, "links", None)  # edges with features
        self._edges = 1.0 if links is None else float(np.abs(links.z).sum(1).max(initial=0.0))
        # A labeling differs from the target's at some tokens; of long sequences, more and more of them are doubtful.
        self._differing = float((np.sqrt(2.0 * lengths) + 0.05 * lengths).mean())
        many = len(examples.x) if examples.dense else len(examples.row) - 1
        if examples.dense:
            sizes = np.einsum("tf,tf->t", examples.x, examples.x)
        elif len(examples.value):
            sums = np.append(0.0, np.square(examples.value, dtype=np.float64).cumsum())[examples.row]
            sizes = np.diff(sums)
        else:
            sizes = np.diff(examples.row)
        largest = np.argpartition(sizes, max(many - _SAMPLE // 2, 0))[-(_SAMPLE // 2) :]
        rows = np.unique(np.append(largest, np.linspace(0, many - 1, _SAMPLE // 2).astype(np.int64)))
        self._columns: Any = None  # the features that the sample has; None is all
        if examples.dense:
            self._sizes = np.abs(examples.x[rows], dtype=np.float64)
            return
        lists = [np.arange(examples.row[row], examples.row[row + 1]) for row in rows]
        places = np.concatenate(lists)
        owner = np.repeat(np.arange(len(rows)), [len(own) for own in lists])
        columns = examples.column[places].astype(np.int64)
        if hasattr(kind, "known_start"):  # columns are numbered within each example
            own = np.searchsorted(examples.line, rows[owner], side="right") - 1
            columns = kind.known[kind.known_start[own] + columns]
        self._columns, at = np.unique(columns, return_inverse=True)
        self._sizes = np.zeros((len(rows), len(self._columns)))
        np.add.at(self._sizes, (owner, at), np.abs(examples.value[places]) if len(examples.value) else 1.0)

    def __call__(self, model: Model) -> float:
        """Of the scores that these weights give; the weights are float32."""
        rows = model.emission if self._columns is None else model.emission[self._columns]
        terms = self._sizes @ np.abs(rows)
        others = (self._edges * model.transition, model.bias, model.first, model.last)
        largest = sum(float(np.abs(array).max(initial=0.0)) for array in others)
        share = _SHARE * float(np.finfo(np.float32).eps) / 2
        return share * self._differing * (float(np.sqrt(np.square(terms).mean())) + largest)


def widen(arrays: Any) -> Any:
    """A copy of named arrays whose float32 arrays are float64."""
    if isinstance(arrays, np.ndarray):
        return arrays.astype(np.float64) if arrays.dtype == np.float32 else arrays
    if isinstance(arrays, tuple):
        made = map(widen, arrays)
        return arrays._make(made) if hasattr(arrays, "_make") else tuple(made)
    return arrays


_RANGES = 16  # sums are made range by range, so that they do not depend on the number of threads
_NUMBERS = 1 << 22  # most float64 numbers of all ranges together: large models get fewer ranges
_ARRAYS = Model._fields[:5]
_EVERY = 64  # examples whose weights are summed in the dtype of the weights


class _PerThread(threading.local):
    """Scratch; copies make their own."""

    def __reduce__(self) -> Any:
        return _PerThread, ()


class ExactPasses:
    """Decodes all examples of a packed training set, with digests ``targets``, ``[n]`` int64.

    ``make_scratch`` makes the scratch arrays of one thread; ``whole`` says that blocks are solved whole.
    """

    def __init__(
        self, examples: Examples, targets: Tensor, make_scratch: Callable[[], Scratch], *, whole: bool
    ) -> None:
        self._examples, self._targets = examples, targets
        self._work = np.diff(examples.start)
        self._split: tuple[int, np.ndarray, np.ndarray] | None = None  # for so many weights: ranges, and their work
        self._rounding: HingeRounding | None = None
        self._make_scratch, self._whole = make_scratch, whole
        self._local = _PerThread()

    def __call__(
        self, model: Model, blocks: BlockArrays, dual: DualState, options: Options, memory: BlockMemory
    ) -> ExactPass:
        """Hinges, gaps and recomputed weights; ``remember`` of the result keeps the new outputs. Changes nothing
        itself.

        ``options`` are those of a Frank-Wolfe step; ``memory`` has the clock. Raises RuntimeError for hinges that are
        not finite.
        """
        examples = self._examples
        numbers = sum(array.size for array in model if isinstance(array, np.ndarray))
        if self._split is None or self._split[0] != numbers:
            ranges = np.array(split(self._work, max(1, min(_RANGES, _NUMBERS // numbers))))
            self._split = numbers, ranges, np.add.reduceat(self._work, ranges[:-1])
        _, ranges, sizes = self._split
        totals = _zeros(model, np.float64, len(ranges) - 1)
        size = len(dual.own)
        found, gaps, losses = np.zeros((2, size)), np.zeros(size), np.zeros((2, size))
        corners = np.zeros(len(examples.y) if memory.capacity else 0, np.int32)
        scalars = Scalars(dual.loss.numpy(), gaps, gaps)
        every = _EVERY + numbers // 64

        kernels = whole_blocks if self._whole else exact

        def decode(wide: bool) -> None:
            cast: Callable[[Any], Any] = widen if wide else lambda arrays: arrays
            added = examples.cost if wide else examples.added
            own = examples._replace(inner=examples.inner[:0], added=added, form=None)
            held = [with_types(cast(own)), cast(model), cast(blocks._replace(gram=blocks.gram[:0]))]

            def some(begin: int, end: int, thread: int) -> None:
                work = scalars, cast(self._scratch()), _zeros(model, held[1].emission.dtype), totals, every
                kernels.exact_ranges(begin, end, ranges, *held, *work, found, losses, corners)

            run_in_chunks(some, sizes)

        decode(wide=False)
        hinges = found[0]
        if not np.isfinite(hinges).all():
            raise RuntimeError("the hinges are not finite: the weights must have overflowed")
        if model.emission.dtype == np.float32:
            self._rounding = self._rounding or HingeRounding(examples)
            primal = dual.lam / 2 * squared_norm(dual.parameters) + float(hinges.mean())
            if not negligible(self._rounding(model), primal, dual.num_examples):
                for array in (getattr(totals, name) for name in _ARRAYS):
                    array.fill(0.0)
                decode(wide=True)

        def remember() -> None:
            self._remember(blocks, dual, options, memory, corners)

        scale = 1.0 / (dual.lam * dual.num_examples)
        sums: dict[str, Any] = {name: getattr(totals, name).sum(0) for name in _ARRAYS}
        weights = [
            torch.from_numpy(array).contiguous() * scale for array in memory.adapter.trained(totals._replace(**sums))
        ]
        return ExactPass(
            hinges=float(hinges.sum()),
            exact=not found[1].any(),
            relaxed=False,
            gaps=torch.from_numpy(gaps),
            weights=weights,
            targets=self._targets,
            losses=torch.from_numpy(losses),
            remember=remember,
        )

    def _remember(
        self, blocks: BlockArrays, dual: DualState, options: Options, memory: BlockMemory, corners: np.ndarray
    ) -> None:
        """Keep the outputs of a pass, where the storage keeps labelings."""
        if not memory.capacity:
            return

        def keep(begin: int, end: int, thread: int) -> int:
            counters = np.array([0, 0, memory.clock])
            return exact.remember_range(begin, end, self._examples, blocks, options, self._scratch(), counters, corners)

        if sum(run_in_chunks(keep, self._work)):
            memory.clock += 1
            dual.version += 1  # slots may hold other labelings now

    def _scratch(self) -> Scratch:
        """The scratch arrays of this thread."""
        if not hasattr(self._local, "scratch"):
            self._local.scratch = self._make_scratch()
        return self._local.scratch


def _zeros(model: Model, dtype: np.dtype | type, *ranges: int) -> Model:
    """Zeros with the shapes of the weights, with a first axis of ranges if there are any."""
    arrays: dict[str, Any] = {name: np.zeros((*ranges, *getattr(model, name).shape), dtype) for name in _ARRAYS}
    return model._replace(**arrays)
