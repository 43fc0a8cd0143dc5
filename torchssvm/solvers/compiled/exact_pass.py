"""Exact passes over packed examples, on all of torch's threads.

Sums are float64. Scores have the features' dtype, unless float32 is too coarse for the primal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import exact_dots, exact_sums
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.threads import run_in_chunks, split
from torchssvm.dual.state import DualState
from torchssvm.kinds.block import add_to_weights, list_rows, loss_of, size_of
from torchssvm.kinds.calls import decode_with_score, evaluate, mean_losses, write_exact, write_exact_whole
from torchssvm.kinds.examples import Examples, Scratch, squares_of_rows, with_types
from torchssvm.kinds.hidden import Calls, Hidden, writers_of
from torchssvm.kinds.weights import Model
from torchssvm.solvers.compiled import whole as whole_blocks
from torchssvm.solvers.compiled.atoms import fill_direction, find_slot, insert, rest_views
from torchssvm.solvers.compiled.memory import BlockMemory, Options, Scalars
from torchssvm.solvers.compiled.whole import flush
from torchssvm.solvers.exact_pass import ExactPass

_SAMPLE = 32  # tokens whose scores are estimated
_SHARE = 0.5  # of the largest rounding of each term of a sum: the roundings have either sign


class HingeRounding:
    """Estimates how far float32 moves a hinge, from a sample of tokens: the largest, and some others."""

    def __init__(self, examples: Examples) -> None:
        lengths, weight = np.diff(examples.start), examples.weight
        self._pair_scale = examples.pair_scale
        # A labeling differs from the target's at some tokens; of long sequences, more and more of them are doubtful.
        self._differing = float((weight * (np.sqrt(2.0 * lengths) + 0.05 * lengths)).mean())
        sizes = squares_of_rows(examples)
        largest = np.argpartition(sizes, max(len(sizes) - _SAMPLE // 2, 0))[-(_SAMPLE // 2) :]
        rows = np.unique(np.append(largest, np.linspace(0, len(sizes) - 1, _SAMPLE // 2).astype(np.int64)))
        if examples.dense:
            token, column = np.nonzero(examples.x[rows])
            value = examples.x[rows][token, column]
        else:
            places = np.concatenate([np.arange(examples.row[row], examples.row[row + 1]) for row in rows])
            token, column = np.repeat(np.arange(len(rows)), np.diff(examples.row)[rows]), examples.column[places]
            value = examples.value[places] if len(examples.value) else np.ones(len(places))
            if len(examples.distinct):
                example = np.searchsorted(examples.line, rows[token], side="right") - 1
                group, start = examples.group_start[example] + column, examples.distinct_start[example]
                begin, sizes = start + examples.group[group], examples.group[group + 1] - examples.group[group]
                within = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
                column = examples.distinct[np.repeat(begin, sizes) + within]
                token, value = np.repeat(token, sizes), np.repeat(value, sizes)
        self._column, place = np.unique(column, return_inverse=True)
        self._values = np.zeros((len(rows), len(self._column)))  # absolute features of the sample
        np.add.at(self._values, (token, place), np.abs(value))

    def __call__(self, model: Model) -> float:
        """The typical rounding of a hinge at these float32 weights."""
        terms = self._values @ np.abs(model.emission[self._column])
        others = (self._pair_scale * model.transition, model.bias, model.first, model.last)
        largest = sum(float(np.abs(array).max(initial=0.0)) for array in others)
        share = _SHARE * float(np.finfo(np.float32).eps) / 2
        return share * self._differing * (float(np.sqrt(np.vdot(terms, terms) / terms.size)) + largest)


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
    def __reduce__(self) -> Any:  # a copy makes new scratch
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
        self._wide = False  # whether float32 was too coarse for the last primal, as it mostly is for the next
        self._make_scratch, self._whole = make_scratch, whole
        self._calls = Calls(examples, *writers_of(whole, False))
        self._local = _PerThread()

    def __call__(
        self, model: Model, blocks: Hidden, dual: DualState, options: Options, memory: BlockMemory
    ) -> ExactPass:
        """Hinges, gaps and recomputed weights; ``remember`` of the result keeps the new outputs. Changes nothing
        itself.

        ``blocks`` are the laid-out arrays of ``memory``, which also has the clock; ``options`` belong to a Frank-Wolfe
        step. Raises RuntimeError for hinges that are not finite.
        """
        examples = self._examples
        numbers = sum(array.size for array in model if isinstance(array, np.ndarray))
        if self._split is None or self._split[0] != numbers:
            ranges = np.array(split(self._work, max(1, min(_RANGES, _NUMBERS // numbers))))
            self._split = numbers, ranges, np.add.reduceat(self._work, ranges[:-1])
        _, ranges, sizes = self._split
        size = len(dual.own)
        bounds, gaps, losses = np.zeros((2, size)), np.zeros(size), np.zeros((2, size))
        corners = np.zeros(len(examples.y) if memory.capacity else 0, np.int32)
        scalars = Scalars(dual.loss.numpy(), gaps, gaps)
        every = _EVERY + numbers // 64

        kernel, writer = exact_ranges, write_exact
        if self._whole:
            kernel, writer = whole_blocks.exact_ranges, write_exact_whole

        def decode(wide: bool) -> tuple[float, Model]:
            """The sum of hinges, and the sums of weights of each range; ``wide`` scores are float64."""
            totals = _zeros(model, np.float64, len(ranges) - 1)
            calls, weights, read = self._calls, model, blocks
            if wide:
                packed = widen(examples._replace(inner=examples.inner[:0], added=examples.cost, form=None))
                calls = Calls(with_types(packed), writer)
                weights, read = widen(model), Hidden(widen(blocks.plain._replace(gram=blocks.plain.gram[:0])))
            known = calls(weights, read.plain, self._scratch(wide))

            def some(begin: int, end: int, thread: int) -> None:
                scratch, part = self._scratch(wide), _zeros(model, weights.emission.dtype)
                work = scalars, scratch.arguments, part, totals, every
                kernel(begin, end, ranges, known, weights, read.arguments, *work, bounds, losses, corners)

            run_in_chunks(some, sizes)
            total = float(bounds[0].sum())
            if not np.isfinite(total):  # no hinge is negative
                raise RuntimeError("the hinges are not finite: scale the features, or choose a larger lam")
            return total, totals

        def below(limit: float) -> bool:
            """Whether the primal is; the weights are read only where the hinges are."""
            mean = total / size
            return mean < limit and dual.lam / 2 * squared_norm(dual.parameters) + mean < limit

        total, totals = decode(self._wide)
        if model.emission.dtype == np.float32:
            self._rounding = self._rounding or HingeRounding(examples)
            # Errors of hinges average out over examples, of which 64 are trusted to differ.
            coarse = self._rounding(model) / (5e-7 * np.sqrt(min(dual.num_examples, 64)))
            # Float32 moves a primal near ``coarse`` by some millionths: far below it, wide hinges decide as others do.
            if self._wide and not below(0.99 * coarse):
                self._wide = False
                total, totals = decode(wide=False)
            if not self._wide and below(coarse):
                self._wide = True
                total, totals = decode(wide=True)

        def remember() -> None:
            self._remember(model, blocks, dual, options, memory, corners)

        scale = 1.0 / (dual.lam * dual.num_examples)
        ranges_of = {name: getattr(totals, name) for name in _ARRAYS}
        sums: dict[str, Any] = {name: a.sum(0) if len(a) > 1 else a[0] for name, a in ranges_of.items()}
        arrays = memory.adapter.weights.trained(totals._replace(**sums))
        # In place: copies of millions of weights take new pages.
        weights = [torch.from_numpy(np.ascontiguousarray(np.multiply(a, scale, out=a))) for a in arrays]
        return ExactPass(
            hinges=total,
            exact=not bounds[1].any(),
            relaxed=False,
            gaps=torch.from_numpy(gaps),
            weights=weights,
            targets=self._targets,
            losses=torch.from_numpy(losses),
            remember=remember,
        )

    def _remember(
        self,
        model: Model,
        blocks: Hidden,
        dual: DualState,
        options: Options,
        memory: BlockMemory,
        corners: np.ndarray,
    ) -> None:
        if not memory.capacity:
            return

        known = self._calls(model, blocks.plain, self._scratch())

        def keep(begin: int, end: int, thread: int) -> int:
            counters, scratch = np.array([0, 0, memory.clock]), self._scratch().arguments
            return remember_range(begin, end, known, blocks.arguments, options, scratch, counters, corners)

        if sum(run_in_chunks(keep, self._work)):
            memory.clock += 1
            dual.version += 1  # slots may hold other labelings now

    def _scratch(self, wide: bool = False) -> Hidden:
        made, dtype = vars(self._local), "wide" if wide else "plain"
        if dtype not in made:
            scratch = self._make_scratch()
            made[dtype] = Hidden(widen(scratch) if wide else scratch)
        return made[dtype]


def _zeros(model: Model, dtype: np.dtype | type, *ranges: int) -> Model:
    """Zeros with the shapes of the weights, with a first axis of ``ranges``, if given."""
    arrays: dict[str, Any] = {name: np.zeros((*ranges, *getattr(model, name).shape), dtype) for name in _ARRAYS}
    return model._replace(**arrays)


@njit
def exact_ranges(
    begin, end, ranges, examples, model, blocks, scalars, scratch, part, totals, every, hinges, losses, corners
):
    """Decode the examples of ranges ``begin`` to ``end - 1`` at the weights of ``model``; no block is touched.

    Args:
        ranges: Where each range of examples begins, and the end of the last one.
        examples, model, blocks, scalars, scratch: See :mod:`.memory`; ``scalars.gaps`` gets the gaps.
        part: Scratch for the weights of a few examples, zero before and after; in the dtype of the weights.
        totals: A first axis of ranges; gets the weights of each added, in float64, without the factor 1/(lam n).
        every: Number of examples after which ``part`` is added to ``totals``.
        hinges: ``[2, n]`` float64, gets upper bounds of H_i, and how far they are above the decoded labelings.
        losses: ``[2, n]`` float64, gets the blocks' losses; see ``certificate.ExactPass``.
        corners: ``[tokens]``, gets the outputs; may be empty.
    """
    for place in range(begin, end):
        waiting = 0
        for i in range(ranges[place], ranges[place + 1]):
            waiting += examine(i, examples, model, blocks, scalars, scratch, part, hinges, losses, corners)
            if waiting == every or i + 1 == ranges[place + 1]:
                flush(part, totals, place)
                waiting = 0


@njit
def examine(i, examples, model, blocks, scalars, scratch, part, hinges, losses, corners):
    """Decode one example and add its weights to ``part``; returns whether it has any."""
    n, squares, sums = len(blocks.count), scratch.squares, scratch.sums
    kind, start, output, weight = examples.kind, examples.start[i], scratch.corner, examples.weight[i]
    length = examples.length[i]
    in_scratch = evaluate(kind, examples, model, i, length, blocks, 0, scratch)
    emission, transition = scratch.emission, scratch.transition if in_scratch else model.transition
    scratch.slack[0] = 0.0
    loss, best = decode_with_score(kind, examples, model, i, length, scratch, transition, output)
    hinge = weight * (best - scratch.scores[0] + loss)
    hinge = 0.0 if hinge < 0.0 else hinge  # the target's is 0; NaN stays
    slack = weight * scratch.slack[0]
    hinges[0, i], hinges[1, i] = hinge + slack, slack
    for t in range(size_of(examples, i) if len(corners) else 0):
        corners[start + t] = output[t]
    inner = 0.0
    some, slots = masses_of(i, blocks)
    if some or slots:
        if slots:
            rows = scratch.rows[: psi_of(i, length, examples, blocks, some, scratch)]
            psi, psi_pairs = scratch.delta, scratch.delta_pairs
        else:
            psi, psi_pairs, used = rest_views(examples, blocks, i, length)
            rows = scratch.rows[: list_rows(used, scratch.rows)]
        exact_sums(psi, emission, length, sums)
        for t in range(length):
            squares[t] = sums[t, 2]
            inner += sums[t, 0]
        told, size = mean_losses(kind, examples, i, length, psi, sums)
        losses[0, i], losses[1, i] = weight * told, weight * size
        inner += exact_dots(psi_pairs, transition, rows, len(rows))
        add_to_weights(kind, examples, part, i, length, psi, psi_pairs, rows, scratch, weight)
    gap = (hinge + weight * inner) / n  # of the labeling: a step cannot close what a bound leaves
    scalars.gaps[i] = gap - scalars.loss[i]
    return some or slots


@njit
def remember_range(begin, end, examples, blocks, options, scratch, counters, corners):
    """Keep the outputs ``corners`` of examples ``begin`` to ``end - 1``, in free slots and in slots without mass.

    ``options`` belong to a Frank-Wolfe step, so that inner products are left to the visits; every example sees the
    initial clock of ``counters``, ``[3]`` int64. Returns how many labelings were kept.
    """
    clock, kept = counters[2], 0
    for i in range(begin, end):
        start, size = examples.start[i], size_of(examples, i)
        length = examples.length[i]
        output = scratch.corner
        for t in range(size):
            output[t] = corners[start + t]
        if find_slot(i, blocks.count[i], size, blocks.labelings, output) < 0:
            counters[2] = clock
            loss = examples.weight[i] * loss_of(examples.kind, examples, i, output)
            insert(i, 0.0, loss, np.int64(0), length, examples, blocks, options, scratch, counters)
            kept += counters[2] > clock
    counters[2] = clock
    return kept


@njit
def masses_of(i, blocks):
    """Whether the rest of block i has mass, and whether a slot has."""
    slots = False
    for c in range(blocks.count[i]):
        slots |= blocks.mass[i, c] > 0.0
    return blocks.mixed[i] and blocks.rest_mass[i] > 0.0, slots


@njit
def psi_of(i, length, examples, blocks, rest, scratch):
    """Write ``p(y_i) - mu_i`` of block i, with its ``rest`` or without, as a direction; see ``fill_direction``."""
    count, change = blocks.count[i], scratch.change
    scratch.mass[0], change[0] = 1.0, -1.0 if rest else 0.0
    for c in range(count):
        change[c + 1] = -blocks.mass[i, c]
    return fill_direction(i, count, length, np.bool_(False), examples, blocks, scratch)
