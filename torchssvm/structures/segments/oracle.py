"""The best segments of a batch, and the masses of all: an operator with a kernel for the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.core.arguments import check_int64, check_length_form
from torchssvm.core.launch import compiles, launch, once
from torchssvm.core.operators import apart, define, upload
from torchssvm.core.triton_support import triton_available
from torchssvm.structures.common import check_operands, own_lengths
from torchssvm.structures.segments.plain import LARGE, best_segments_torch

_MOST_LABELS = 64  # of the kernel for CUDA, whose scores of neighbours stay in registers


def semi_markov(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None = None, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The best segments of every sequence, in O(T D K + T K^2) time and O(D K) memory beside back-pointers.

    Ties go to the smallest label, then to the shortest duration, decided from the last frame to the first, on every
    device. Sums are float64. This is the operator ``torch.ops.torchssvm.semi_markov``: compiled by Numba on the CPU, by
    Triton on CUDA up to 64 labels, otherwise in torch operations; all give the same bits. It has no gradient.

    Args:
        emission: ``[B, N, K]``, float32 or float64; or ``[B, N, 2 K]``, with scores of segments that begin.
        segment: ``[B, K + D, K]``: of neighbours (previous, next), then of durations 1 to D.
        least: ``[K]`` int64, the smallest duration of each label, at least 1.
        lengths: ``[B]`` int64, 1 to N; None means N for all.
        target: ``[B, N]`` codes, from ``check_target``: adds the number of its spans that are missed and of those that
            are wrong.

    Returns:
        ``codes`` ``[B, N]`` int64, a frame's label, K more at the first frame of a segment, -1 beyond the length; and
        ``value`` ``[B]``, the score.

    Raises:
        ValueError: Scores are not floating, a shape does not fit, or (on the CPU) a length is not in 1 to N.
    """
    return _operator(emission, segment, least, lengths, target)


def _fake(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    states = segment.shape[-1]
    rows, width = max(segment.shape[1:2].numel(), states + 1), states * (2 if emission.shape[-1] == 2 * states else 1)
    check_operands(emission=(emission, ("B", "N", width)), segment=(segment, ("B", rows, "K")))
    check_int64(least, "least", (states,))
    if lengths is not None:
        check_length_form(lengths, len(emission))
    if target is not None:
        check_int64(target, "target", emission.shape[:2])
    return emission.new_empty(emission.shape[:2], dtype=torch.int64), emission.new_empty(emission.shape[0])


def _on_cpu(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    codes, value = _fake(emission, segment, least, lengths, target)
    batch, longest, _ = emission.shape
    lengths = own_lengths(lengths, batch, longest)
    if not compiles(emission, segment):
        return semi_markov_torch(emission, segment, least, lengths, target)
    states = segment.shape[2]
    most = segment.shape[1] - states
    sizes = torch.full((batch,), longest) if lengths is None else lengths
    known = torch.empty(batch, 0, dtype=torch.int64) if target is None else apart(target)
    launch(
        decode,
        (emission, once(segment), least, known, sizes),
        (codes, value),
        sizes.numpy(),
        [((2 * most + 2) * states, torch.float64), (2 * longest * states, torch.int32)],
        each=states * (states + most),
    )
    return codes, value


def _on_cuda(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None, target: Tensor | None
) -> tuple[Tensor, Tensor]:
    _fake(emission, segment, least, lengths, target)
    if not (triton_available() and compiles(emission, segment)) or segment.shape[2] > _MOST_LABELS:
        return semi_markov_torch(emission, segment, least, lengths, target)
    from torchssvm.structures.segments.triton import semi_markov_triton

    sizes = emission.new_full(emission.shape[:1], emission.shape[1], dtype=torch.int64) if lengths is None else lengths
    return semi_markov_triton(emission, segment, least, sizes, target)


def semi_markov_torch(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None = None, target: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """:func:`semi_markov` in torch operations, for any device."""
    codes, value = _fake(emission, segment, least, lengths, target)
    batch, longest, _ = emission.shape
    if not batch:
        return codes, value
    sizes = apart(lengths)
    sizes = torch.full((batch,), longest, device=emission.device) if sizes is None else sizes
    codes, score = best_segments_torch(emission, segment, least.to(emission.device), sizes, target)
    return codes, score.to(emission.dtype)


@torch.no_grad()
def semi_markov_marginals(
    emission: Tensor, segment: Tensor, least: Tensor, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean parts of ``P(y) = exp(score(y)) / Z``, shaped like ``emission`` and ``segment``, and ``log Z``.

    Computed in float64: on CUDA by Triton up to 32 labels, else on the CPU.
    """
    batch, longest, _ = emission.shape
    sizes = apart(lengths)
    sizes = torch.full((batch,), longest, device=emission.device) if sizes is None else sizes
    small = segment.shape[2] <= _MOST_LABELS // 2  # in float64 the tables take twice the registers, and there are two
    if emission.is_cuda and small and not torch.compiler.is_compiling() and triton_available():
        from torchssvm.structures.segments.marginals_triton import marginals_triton

        tables = once(segment.detach()).double().expand_as(segment)
        rest = [upload(tensor, emission.device) for tensor in (least, sizes)]
        return _or_nan(emission, segment, rest[1], *marginals_triton(emission.detach().double(), tables, *rest))
    sizes = sizes.cpu()
    scores, tables = emission.detach().cpu().double(), once(segment.detach().cpu().double())
    parts, whole = torch.zeros(scores.shape, dtype=torch.float64), torch.zeros(batch, dtype=torch.float64)
    pairs = torch.zeros(segment.shape, dtype=torch.float64)
    states = segment.shape[2]
    launch(
        marginals,
        (scores, tables, least.cpu(), sizes),
        (parts, pairs, whole),
        sizes.numpy(),
        [(4 * longest * states, torch.float64)],
        each=16 * states * segment.shape[1],
    )
    return _or_nan(emission, segment, sizes, parts, pairs, whole)


def _or_nan(
    emission: Tensor, segment: Tensor, sizes: Tensor, parts: Tensor, pairs: Tensor, whole: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Results in the dtype and on the device of the scores; mean parts are NaN where no output has a mass."""
    never = (whole == -torch.inf).view(-1, 1, 1)
    real = (torch.arange(emission.shape[1], device=whole.device) < sizes.unsqueeze(1)).unsqueeze(2)
    parts, pairs = parts.masked_fill(never & real, torch.nan), pairs.masked_fill(never, torch.nan)
    return parts.to(emission), pairs.to(segment), whole.to(emission.device)


_operator = define(
    "semi_markov(Tensor emission, Tensor segment, Tensor least, Tensor? lengths, Tensor? target) "
    "-> (Tensor codes, Tensor value)",
    fake=_fake,
    cpu=_on_cpu,
    cuda=_on_cuda,
    default=semi_markov_torch,
)


@njit
def best_segments(emission, table, least, target, length, memory, back, codes):
    """Write the best segments into ``codes``, ``[T]``; returns their score, float64.

    A start s is worth the best score before s less the sums of frames before s, so that every duration takes one
    addition. Only the last D starts are kept. Scores that mask, or force, are added to the starts that they concern:
    small ones would be lost in a sum with them.

    Args:
        emission: ``[T, K]`` scores of frames, or ``[T, 2 K]``, with scores of labels that begin behind them.
        table: ``[K + D, K]``: neighbours, then durations.
        least: ``[K]`` int64, the smallest duration of each label.
        target: ``[T]`` codes, whose span loss is added; or empty.
        memory: Room for ``(2 D + 2) K`` float64 numbers, of any content.
        back: ``[2, at least T, K]`` int32, of any content: the duration of the best segment that ends at each frame,
            and the best label before one that begins there.
    """
    states = table.shape[1]
    most = table.shape[0] - states
    size = most * states
    starts, durations = memory[:size].reshape(most, states), memory[size : 2 * size].reshape(most, states)
    prefix, best = memory[2 * size : 2 * size + states], memory[2 * size + states : 2 * size + 2 * states]
    boundary, spans = emission.shape[1] > states, target.shape[0] > 0
    missed, begun = 0.0, 0
    for d in range(most):
        for k in range(states):
            durations[d, k] = np.float64(table[states + d, k]) + (1.0 if spans else 0.0)
            if d + 1 < least[k]:
                durations[d, k] = -np.inf
            starts[d, k] = -np.inf
    for k in range(states):
        prefix[k] = best[k] = 0.0
    for t in range(length):
        opened = starts[t % most]
        for k in range(states):
            highest, before = best[0] + table[0, k], 0
            for j in range(1, states):
                value = best[j] + table[j, k]
                if value > highest:
                    highest, before = value, j
            back[1, t, k] = before
            opened[k] = (highest if t > 0 else 0.0) - prefix[k]
            if boundary:
                opened[k] += emission[t, states + k]
        for k in range(states):
            if abs(emission[t, k]) > LARGE:
                for d in range(most):  # of what covers this frame
                    starts[d, k] += emission[t, k]
            else:
                prefix[k] += emission[t, k]
            best[k] = -np.inf
            back[0, t, k] = 1
        ends, d_true, k_true, kept = False, 0, 0, 0.0
        if spans:
            if target[t] >= states:
                begun = t
            if t + 1 == length or target[t + 1] >= states:
                d_true, k_true = t - begun, target[begun] - states
                ends = d_true < most and 0 <= k_true < states  # else nothing can be this span
                missed += 1.0
            if ends:
                kept = durations[d_true, k_true]
                durations[d_true, k_true] -= 2.0  # right: neither missing nor wrong
        place = t % most
        for d in range(min(most, t + 1)):
            opened, row = starts[place], durations[d]
            for k in range(states):
                value = opened[k] + row[k]
                if value > best[k]:
                    best[k] = value
                    back[0, t, k] = d + 1
            place = place - 1 if place > 0 else most - 1
        if ends:
            durations[d_true, k_true] = kept
        for k in range(states):
            best[k] += prefix[k]
    label = 0
    for k in range(1, states):
        if best[k] > best[label]:
            label = k
    value, end = best[label] + missed, length
    while end > 0:
        begin = max(end - back[0, end - 1, label], 0)
        for t in range(begin, end):
            codes[t] = label
        codes[begin] += states
        label, end = back[1, begin, label], begin
    return value


@njit
def decode(emission, tables, least, targets, lengths, begin, end, memory, back, codes, values):
    """Decode the examples ``begin`` to ``end - 1``: ``tables`` ``[B or 1, K + D, K]``, ``targets`` ``[B, N or 0]``."""
    longest, states = emission.shape[1], tables.shape[2]
    room = back[: 2 * longest * states].reshape(2, longest, states)
    for b in range(begin, end):
        table = tables[b if tables.shape[0] > 1 else 0]
        length = lengths[b]
        values[b] = best_segments(emission[b], table, least, targets[b], length, memory, room, codes[b])
        codes[b, length:] = -1


@njit
def log_sum(total, highest, value):
    """``total`` is the sum of ``exp(v - highest)``; returns both with one more ``value``."""
    if value == -np.inf:
        return total, highest
    if value <= highest:
        return total + np.exp(value - highest), highest
    return total * np.exp(highest - value) + 1.0, value


@njit
def sum_product(emission, table, least, length, rows, parts, pairs):
    """Add the means of the parts of one example to ``parts`` and ``pairs``, zero before; returns ``log Z``.

    They are shaped like ``emission`` and ``table``, which are as in :func:`best_segments`. ``rows`` ``[4, at least T,
    K]`` get logarithms of the mass of what ends at a frame, and begins there; of what follows an end there; and the
    mass of ends.
    """
    states = table.shape[1]
    most, boundary = table.shape[0] - states, emission.shape[1] > states
    ends, begins, follows, closed = rows[0], rows[1], rows[2], rows[3]
    for t in range(length):
        for k in range(states):
            total, highest = 0.0, -np.inf
            if t == 0:
                total, highest = 1.0, 0.0
            else:
                for j in range(states):
                    total, highest = log_sum(total, highest, ends[t - 1, j] + table[j, k])
            begins[t, k] = highest + np.log(total) if total > 0.0 else -np.inf
            if boundary:
                begins[t, k] += emission[t, states + k]
            total, highest, frames = 0.0, -np.inf, 0.0
            for d in range(min(most, t + 1)):
                frames += emission[t - d, k]
                if d + 1 >= least[k]:
                    value = begins[t - d, k] + frames + table[states + d, k]
                    total, highest = log_sum(total, highest, value)
            ends[t, k] = highest + np.log(total) if total > 0.0 else -np.inf
            closed[t, k] = 0.0
    total, highest = 0.0, -np.inf
    for k in range(states):
        total, highest = log_sum(total, highest, ends[length - 1, k])
        follows[length - 1, k] = 0.0
    whole = highest + np.log(total) if total > 0.0 else -np.inf
    for s in range(length - 1 if whole > -np.inf else -1, -1, -1):
        for k in range(states):
            total, highest, frames, begun = 0.0, -np.inf, 0.0, 0.0
            for d in range(min(most, length - s)):
                frames += emission[s + d, k]
                if d + 1 >= least[k]:
                    value = frames + table[states + d, k] + follows[s + d, k]
                    total, highest = log_sum(total, highest, value)
                    mass = np.exp(begins[s, k] + value - whole)
                    pairs[states + d, k] += mass
                    closed[s + d, k] += mass
                    begun += mass
            parts[s, k] = begun
            if boundary:
                parts[s, states + k] = begun
            after = highest + np.log(total) if total > 0.0 else -np.inf
            if boundary:
                after += emission[s, states + k]
            begins[s, k] = after  # of what begins there and all behind it
        if s > 0:
            for j in range(states):
                total, highest = 0.0, -np.inf
                for k in range(states):
                    value = table[j, k] + begins[s, k]
                    total, highest = log_sum(total, highest, value)
                    pairs[j, k] += np.exp(ends[s - 1, j] + value - whole)
                follows[s - 1, j] = highest + np.log(total) if total > 0.0 else -np.inf
    for k in range(states):
        covered = 0.0
        for t in range(length):
            covered += parts[t, k] - (closed[t - 1, k] if t > 0 else 0.0)
            parts[t, k] = max(covered, 0.0)
    return whole


@njit
def marginals(emission, tables, least, lengths, begin, end, rows, parts, pairs, whole):
    """:func:`sum_product` of the examples ``begin`` to ``end - 1``."""
    longest, states = emission.shape[1], tables.shape[2]
    room = rows[: 4 * longest * states].reshape(4, longest, states)
    for b in range(begin, end):
        table = tables[b if tables.shape[0] > 1 else 0]
        whole[b] = sum_product(emission[b], table, least, lengths[b], room, parts[b], pairs[b])
