"""Viterbi decoding of a batch of chains: one torch operator with a kernel for each device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import add_row, set_row
from torchssvm.core.arguments import check_length_form
from torchssvm.core.launch import as_array, compiles, launch, once, plan
from torchssvm.core.operators import define
from torchssvm.core.triton_support import triton_available
from torchssvm.structures.common import check_operands, check_range, mask_of
from torchssvm.structures.maxplus import backtrack, maxplus_rows, send_forward

_NONE = np.empty(0, np.int64)


def viterbi(emission: Tensor, transition: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Best state sequence of every chain: ``argmax_y sum_t emission[t, y_t] + sum_t transition[t, y_t, y_{t+1}]``.

    Ties go to the smallest state, decided from the last position to the first, on every device. It is the operator
    ``torch.ops.torchssvm.viterbi``: on the CPU compiled by Numba, on CUDA by Triton where that is installed,
    otherwise in torch operations; all give the same bits. It has no gradient.

    Args:
        emission: ``[B, N, K]``, float32 or float64.
        transition: ``[K, K]`` (previous, next) shared by all, ``[B, K, K]`` for each chain, or ``[B, N-1, K, K]``.
        lengths: ``[B]`` int64, 1 to N; None means N for all.

    Returns:
        ``labels`` ``[B, N]`` int64, -1 beyond the length, and ``value`` ``[B]``, the score of the best sequence.

    Raises:
        ValueError: Scores are not floating, shapes do not fit, there is no position or state, or (on the CPU) a length
            is not in 1 to N.
    """
    return _operator(emission, transition, lengths)


def _fake(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    _check(emission, transition, lengths)
    labels = emission.new_empty(emission.shape[:2], dtype=torch.int64)
    return labels, emission.new_empty(emission.shape[0])


def _on_cpu(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    _check(emission, transition, lengths)
    batch, longest, states = emission.shape
    if not compiles(emission, transition):
        if lengths is not None:
            check_range(lengths, batch, longest)
        return viterbi_torch(emission, transition, lengths)
    # Arrays from here on: making, viewing and converting a tensor takes microseconds, longer than decoding a chain.
    scores = as_array(emission)
    pairs = transition.detach().numpy()
    pairs = pairs[None] if pairs.ndim == 2 else pairs[:1] if pairs.strides[0] == 0 else pairs  # once if seen B times
    pairs = np.ascontiguousarray(pairs[:, None] if pairs.ndim == 3 else pairs)
    known = _NONE if lengths is None else as_array(lengths).copy()  # no other thread changes these
    run = known if len(known) else np.full(batch, longest)
    labels, value = np.empty((batch, longest), np.int64), np.empty(batch, scores.dtype)
    group, height = plan(batch, states, scores.itemsize, len(pairs) == 1, 2 * longest)
    bad = launch(
        decode,
        (scores, pairs, known, group, height),
        (labels, value),
        run,
        [(2 * group * longest * states, emission.dtype), (batch + longest + 1 + group, torch.int64)],
        each=states**2,
    )
    if max(bad, default=-1) >= 0:
        check_range(torch.from_numpy(known), batch, longest)
    return torch.from_numpy(labels), torch.from_numpy(value)


def _on_cuda(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    _check(emission, transition, lengths)
    fits = emission.shape[2] < 2**15  # back-pointers of two bytes
    if fits and triton_available() and compiles(emission, transition):
        from torchssvm.structures.chain.triton import viterbi_triton

        return viterbi_triton(emission, transition, lengths)
    return viterbi_torch(emission, transition, lengths)


def _check(emission: Tensor, transition: Tensor, lengths: Tensor | None) -> None:
    by = ["B", "N-1"][: transition.ndim - 2]
    check_operands(emission=(emission, "BNK"), transition=(transition, (*by, "K", "K")))
    if lengths is not None:
        check_length_form(lengths, len(emission))


@torch.no_grad()
def viterbi_torch(emission: Tensor, transition: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """:func:`viterbi` in torch operations, for any device."""
    labels, value = _fake(emission, transition, lengths)
    batch = len(emission)
    if not batch:
        return labels, value
    real = mask_of(lengths, emission)
    every = transition.expand(batch, *transition.shape) if transition.ndim == 2 else transition
    best = viterbi_by_level(emission, every, torch.zeros_like(emission, dtype=torch.int64), real)
    level = torch.zeros(batch, dtype=torch.int64, device=emission.device)
    return best.labels(level), best.scores[:, 0]


_operator = define(
    "viterbi(Tensor emission, Tensor transition, Tensor? lengths) -> (Tensor labels, Tensor value)",
    fake=_fake,
    cpu=_on_cpu,
    cuda=_on_cuda,
    default=viterbi_torch,
)


@njit
def decode(emission, pairs, lengths, group, height, begin, end, memory, places, labels, value):
    """Decode the chains ``begin`` to ``end - 1``, ``group`` of them in lockstep.

    Args:
        emission: ``[B, N, K]``.
        pairs: ``[B or 1, N-1 or 1, K, K]``; the same for all chains if ``group > 1``.
        lengths: ``[B]``; empty if all are N.
        group: Number of chains that read the transitions together.
        height: Rows of a block of the transitions, which stays in the cache meanwhile.
        memory: Room for ``2 * group * N`` rows of scores.
        places: Room for ``B + N + 1 + group`` integers.
        labels, value: ``[B, N]`` and ``[B]``, to be filled.

    Returns:
        -1, or the first chain whose length is not in 1 to N.
    """
    longest, states, count = emission.shape[1], emission.shape[2], end - begin
    size = group * longest * states
    scores = memory[:size].reshape(group * longest, states)
    messages = memory[size : 2 * size].reshape(group * longest, states)
    order, now = places[:count], places[count + longest + 1 :]
    wrong = _by_length(lengths, begin, longest, order, places[count : count + longest + 1])
    for first in range(0, count if wrong < 0 else 0, group):
        members = order[first : first + group]
        for g, b in enumerate(members):
            length = lengths[b] if lengths.shape[0] else longest
            set_row(scores[g * longest : (g + 1) * longest], emission[b, :length], None, None)
        length = lengths[members[0]] if lengths.shape[0] else longest
        matrices = pairs[members[0] if pairs.shape[0] > 1 else 0]
        running = members.shape[0]
        if running > 1:
            for t in range(1, length):
                while lengths.shape[0] and lengths[members[running - 1]] <= t:
                    running -= 1  # the shortest chains are last
                for g in range(running):
                    now[g] = g * longest + t - 1
                matrix = matrices[t - 1 if matrices.shape[0] > 1 else 0]
                maxplus_rows(messages, scores, now[:running], matrix, height, t % 2 == 0, True)
        else:
            send_forward(scores, messages, matrices, length, states)
        for g, b in enumerate(members):
            length = lengths[b] if lengths.shape[0] else longest
            value[b] = backtrack(scores[g * longest :], messages[g * longest :], matrices, length, states, labels[b])
            labels[b, length:] = -1
    return wrong


@njit
def _by_length(lengths, begin, longest, order, starts):
    """Fill ``order`` with the chains from ``begin`` on by descending length; returns -1, or one whose length is wrong.

    ``starts`` is room for N + 1 integers.
    """
    if not lengths.shape[0]:
        for place in range(order.shape[0]):
            order[place] = begin + place
        return -1
    starts[:] = 0
    for b in range(begin, begin + order.shape[0]):
        if lengths[b] < 1 or lengths[b] > longest:
            return b
        starts[longest - lengths[b] + 1] += 1
    for place in range(1, longest):
        starts[place + 1] += starts[place]
    for b in range(begin, begin + order.shape[0]):
        place = longest - lengths[b]
        order[starts[place]] = b
        starts[place] += 1
    return -1


@njit
def sum_scores(labels: Any, emission: Any, pairs: Any, total: Any) -> bool:
    """The scores of C sequences for every chain into ``total`` ``[B, C]``; False if a label is not a state.

    ``labels`` are ``[B, C, N]``, and ``pairs`` ``[B or 1, N-1 or 1, K, K]``. A label of -1 has no parts.
    """
    batch, count, longest = labels.shape
    for b in range(batch):
        steps = pairs[b if len(pairs) > 1 else 0]
        for c in range(count):
            score = 0.0
            for t in range(longest):
                state = labels[b, c, t]
                if state < 0:
                    continue
                if state >= emission.shape[2]:  # from a user's oracle, or a damaged checkpoint
                    return False
                score += emission[b, t, state]
                if t > 0 and labels[b, c, t - 1] >= 0:
                    score += steps[t - 1 if len(steps) > 1 else 0, labels[b, c, t - 1], state]
            total[b, c] = score
    return True


@njit
def add_parts(labels: Any, mass: Any, emission: Any, pairs: Any) -> None:
    """Add the parts of C sequences for every chain, weighted by ``mass`` ``[B, C]``; see :func:`sum_scores`."""
    batch, count, longest = labels.shape
    for b in range(batch):
        for c in range(count):
            share = emission.dtype.type(mass[b, c])
            for t in range(longest):
                state = labels[b, c, t]
                if state >= emission.shape[2]:
                    break
                if state < 0:
                    continue
                emission[b, t, state] += share
                if t > 0 and labels[b, c, t - 1] >= 0:
                    pairs[b, t - 1 if pairs.shape[1] > 1 else 0, labels[b, c, t - 1], state] += share


@njit
def add_everywhere(emission: Any, lengths: Any, bias: Any, at_first: Any, at_last: Any) -> None:
    """``(row + [t last] at_last) + (bias + [t first] at_first)`` for every row ``[K]`` of ``emission [B, N, K]``.

    The compiled loop adds in the same order, so both round, and break ties, in the same way.
    """
    batch, longest, states = emission.shape
    for b in range(batch):
        add_row(emission[b, lengths[b] - 1], at_last, None)
        for k in range(states):
            emission[b, 0, k] += bias[k] + at_first[k]
        for t in range(1, longest):
            add_row(emission[b, t], bias, None)


@njit
def sum_everywhere(parts: Any, lengths: Any, sums: Any) -> None:
    """The adjoint of ``add_everywhere``, ``[3, B, K]``: the sum over all tokens, the first and the last token."""
    batch, longest, _ = parts.shape
    for b in range(batch):
        set_row(sums[0, b], None, None, 0.0)
        set_row(sums[1, b], parts[b, 0], None, None)
        set_row(sums[2, b], parts[b, lengths[b] - 1], None, None)
        for t in range(longest):
            add_row(sums[0, b], parts[b, t], None)


class ByLevel(NamedTuple):
    """The best sequences of a batch of chains, by level."""

    scores: Tensor  # ``[B, M + 1]``, the best score at each level; ``-inf`` if no sequence has that level
    # for each position, the best scores of prefixes by level and last state: ``[B, levels so far, K]``
    prefixes: list[Tensor]
    transition: Tensor  # the transitions
    levels: Tensor  # ``[B, N, K]``, 0 in the padding
    real: Tensor  # ``[B, N]`` bool, False in the padding

    def labels(self, level: Tensor) -> Tensor:
        """The best sequence of each chain at ``level`` (``[B]`` int64): ``[B, N]`` int64, -1 in the padding."""
        rows = torch.arange(len(level), device=level.device)
        state = self.prefixes[-1][rows, level].argmax(1)
        labels = level.new_full(self.real.shape, -1)
        for t in range(self.real.shape[1] - 1, -1, -1):
            inside = self.real[:, t]
            labels[:, t] = torch.where(inside, state, -1)
            if t > 0:
                prefix, pair = self.prefixes[t - 1], self.transition
                before = (level - self.levels[rows, t, state]).clamp(0, prefix.shape[1] - 1)
                incoming = pair[rows, :, state] if pair.ndim == 3 else pair[rows, t - 1, :, state]
                previous = (prefix[rows, before] + incoming).argmax(1)
                level = torch.where(inside, before, level)
                state = torch.where(inside, previous, state)
        return labels


def viterbi_by_level(emission: Tensor, transition: Tensor, levels: Tensor, real: Tensor) -> ByLevel:
    """``max_y sum_t emission[t, y_t] + sum_t transition[t, y_t, y_{t+1}]`` for each value of ``sum_t levels[t, y_t]``.

    The level reached so far is part of the state: time O(N M K^2) for each chain and memory O(N M K), with M the
    largest level. Ties go to the smallest state, chosen from the last position to the first. ``transition`` is ``[B, K,
    K]`` or ``[B, N-1, K, K]``, ``levels`` are ``[B, N, K]`` int64, and ``real`` ``[B, N]`` marks all but the padding.
    """
    batch, longest, states = emission.shape
    levels = levels.masked_fill(~real.unsqueeze(2), 0)
    # The number of reachable levels grows with the position.
    sizes = (levels.amax(2).cumsum(1).amax(0) + 1).tolist()
    ladder = torch.arange(sizes[-1], device=emission.device).view(1, -1, 1)
    best = _climb(emission.new_zeros(batch, 1, states), ladder[:, : sizes[0]] - levels[:, :1]) + emission[:, :1]
    prefixes = [best]
    pairs = once(transition)
    for t in range(1, longest):
        pair = pairs if pairs.ndim == 3 else pairs[:, t - 1]
        # [previous, B, level, next]: a maximum over the leading axis is the fastest on a CPU
        into = (best.movedim(2, 0).contiguous().unsqueeze(3) + pair.movedim(1, 0).unsqueeze(2)).amax(0)
        source = ladder[:, : sizes[t]] - levels[:, t : t + 1]
        moved = _climb(into, source) + emission[:, t : t + 1]
        kept = torch.nn.functional.pad(best, (0, 0, 0, sizes[t] - sizes[t - 1]), value=-torch.inf)
        best = torch.where(real[:, t].view(-1, 1, 1), moved, kept)
        prefixes.append(best)
    return ByLevel(best.amax(2), prefixes, transition, levels, real)


def _climb(best: Tensor, source: Tensor) -> Tensor:
    """``best[b, source[b, m, k], k]``, or ``-inf`` if ``source`` is out of range."""
    last = best.shape[1] - 1
    return best.gather(1, source.clamp(0, last)).masked_fill((source < 0) | (source > last), -torch.inf)
