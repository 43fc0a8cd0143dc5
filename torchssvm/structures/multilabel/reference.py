"""The best label sets in torch operations on any device, with the messages of the compiled loops in the same order.

Pairs ``i < j`` with the same ``(i + j) mod K`` have no label in common and are updated together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchssvm.core.ordered_sums import add_at

_TINY = 1e-12  # relative to the sum of all absolute scores: smaller gaps are rounding
_NUMBERS = 1 << 24  # most messages at a time
_ROUNDS = 10  # for each subproblem of branch and bound
_OPEN = 256  # subproblems that are examined together


def best_label_sets_torch(
    unary: Tensor, weights: Tensor, max_rounds: int, effort: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`.best_label_sets`, for float64 tensors ``[B, K]`` and ``[K, K]`` or ``[B, K, K]``."""
    size = unary.shape[1]
    step = max(1, _NUMBERS // (size * size))
    pieces = []
    for begin in range(0, len(unary), step):
        own = slice(begin, begin + step)
        pieces.append(
            _decode(unary[own], weights[own] if weights.ndim == 3 else weights.unsqueeze(0), max_rounds, effort)
        )
    if not pieces:
        return unary.new_empty(0, size, dtype=torch.int64), unary.new_empty(0), unary.new_empty(0)
    labels, value, bound = (torch.cat(found) for found in zip(*pieces, strict=True))
    return labels, value, bound


def _decode(unary: Tensor, weights: Tensor, max_rounds: int, effort: int) -> tuple[Tensor, Tensor, Tensor]:
    fixed = _screen(unary, weights)
    labels = fixed.clamp(min=0)
    value = _score(unary, weights, labels)
    bound = value.clone()
    finite = torch.isfinite(unary).all(1) & torch.isfinite(weights).flatten(1).all(1)
    rows = ((fixed < 0).any(1) & finite).nonzero().flatten()
    if len(rows):
        found = _send(unary[rows], _of(weights, rows), fixed[rows], max_rounds)
        labels[rows], value[rows], bound[rows] = found.labels, found.value, found.bound
    for row in rows[found.bound > found.value].tolist() if effort and len(rows) else ():
        own = slice(row, row + 1)
        better = _branch(unary[own], weights[own] if len(weights) > 1 else weights, fixed[own], effort, labels[row])
        labels[row], value[row] = better[0], better[1]
        bound[row] = torch.minimum(bound[row], better[2])
    bound = torch.where(finite, torch.maximum(bound, value), torch.nan)
    return labels, torch.where(finite, value, torch.nan), bound


def _of(weights: Tensor, rows: Tensor) -> Tensor:
    return weights[rows] if len(weights) > 1 else weights


def _times(labels: Tensor, weights: Tensor) -> Tensor:
    """``y W`` of every example, ``[B, K]``."""
    labels = labels.to(weights.dtype)
    return labels @ weights[0] if len(weights) == 1 else (labels.unsqueeze(1) @ weights).squeeze(1)


def _score(unary: Tensor, weights: Tensor, labels: Tensor) -> Tensor:
    on = labels.to(unary.dtype)
    return ((unary + 0.5 * _times(on, weights)) * on).sum(1)


def _screen(unary: Tensor, weights: Tensor) -> Tensor:
    """Labels ``[B, K]`` that all best sets share; -1 if undecided."""
    fixed = torch.full(unary.shape, -1, dtype=torch.int64, device=unary.device)
    helping, hurting = weights.clamp(min=0.0), weights.clamp(max=0.0)
    while True:
        free = fixed < 0
        known = unary + _times(fixed == 1, weights)
        off = free & (known + _times(free, helping) < 0.0)
        on = free & (known + _times(free, hurting) > 0.0)
        if not bool((off | on).any()):
            return fixed
        fixed = fixed.masked_fill(off, 0).masked_fill(on, 1)


class _Sent(NamedTuple):
    """Results of message passing: labels ``[B, K]``, value and bound ``[B]``, final beliefs and bound, pair updates."""

    labels: Tensor
    value: Tensor
    bound: Tensor
    belief: Tensor
    last: Tensor
    updates: int


def _send(unary: Tensor, weights: Tensor, fixed: Tensor, max_rounds: int) -> _Sent:
    """Up to ``max_rounds`` rounds of messages between the labels that are -1 in ``fixed``."""
    size = unary.shape[1]
    i, j = torch.triu_indices(size, size, 1, device=unary.device)
    free = fixed < 0
    linked = ((weights[:, i, j] != 0.0) & free[:, i] & free[:, j]).any(0)
    order = ((i + j) % size)[linked].argsort(stable=True)
    i, j = i[linked][order], j[linked][order]
    rounds = ((i + j) % size).unique_consecutive(return_counts=True)[1].tolist()
    active = free[:, i] & free[:, j]
    weight = torch.where(active, weights[:, i, j], 0.0)
    split = weight / 2
    positive = weight > 0.0
    sign = torch.where(positive, 1.0, -1.0).to(weight.dtype)
    belief = unary + _times(fixed == 1, weights)
    for own, part in ((i, split), (j, torch.where(positive, weight - split, split))):
        belief = add_at(belief, own.expand(len(belief), -1), part)
    on = (fixed == 1).to(unary.dtype)
    base = ((unary + 0.5 * _times(on, weights)) * on).sum(1)
    tiny = _TINY * (belief.abs() * free).sum(1).add(weight.abs().sum(1))
    labels = fixed.clamp(min=0)
    value, bound = torch.full_like(base, -torch.inf), torch.full_like(base, torch.inf)
    last, next_check, done, going = bound, 1, 0, torch.ones_like(base, dtype=torch.bool)
    for done in range(1, max_rounds + 1):
        moved, begin = torch.zeros_like(base), 0
        for count in rounds:
            own = slice(begin, begin + count)
            begin += count
            a, b, w, held = i[own], j[own], weight[:, own], split[:, own]
            wanted = held + 0.5 * (sign[:, own] * belief[:, b] - belief[:, a])
            change = wanted.maximum(w.clamp(max=0.0)).minimum(w.clamp(min=0.0)) - held
            split[:, own] += change
            belief[:, a] += change
            belief[:, b] -= sign[:, own] * change
            moved += change.abs().sum(1)
        settled = moved <= tiny
        if done < next_check and done < max_rounds and not bool((going & settled).any()):
            continue
        due = going if done in (next_check, max_rounds) else going & settled
        next_check = done + 1 + done // 4 if done == next_check else next_check
        last = base + (belief.clamp(min=0.0) * free).sum(1) - torch.where(positive, 0.0, split).sum(1)
        bound = torch.where(due, torch.minimum(bound, last), bound)
        tried = _climb(unary, weights, torch.where(free, (belief > 0.0).to(fixed.dtype), fixed), free, tiny)
        score = _score(unary, weights, tried)
        better = due & (score > value)
        labels, value = torch.where(better.unsqueeze(1), tried, labels), torch.where(better, score, value)
        going = going & ~(due & (settled | (bound - value <= tiny)))
        if not bool(going.any()):
            break
    bound = torch.where(bound - value <= tiny, value, bound)
    return _Sent(labels, value, bound, belief, last, done * max(1, len(i)))


def _climb(unary: Tensor, weights: Tensor, labels: Tensor, free: Tensor, tiny: Tensor) -> Tensor:
    """Flip the one or two free labels that gain most, in each example, while the score rises."""
    size = labels.shape[1]
    for _ in range(2 * size):
        change = 1.0 - 2.0 * labels
        gain = (change * (unary + _times(labels, weights))).masked_fill(~free, -torch.inf)
        most, one = gain.max(1)
        other = one
        stuck = most <= tiny
        if bool(stuck.any()):
            rows = stuck.nonzero().flatten()
            both = gain[rows].unsqueeze(2) + gain[rows].unsqueeze(1)
            both += _of(weights, rows) * change[rows].unsqueeze(2) * change[rows].unsqueeze(1)
            both.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
            two, place = both.flatten(1).max(1)
            one, other = one.clone(), one.clone()
            one[rows], other[rows] = place // size, place % size
            most = most.clone()
            most[rows] = two
        rows = (most > tiny).nonzero().flatten()
        if not len(rows):
            break
        labels = labels.clone()
        labels[rows, one[rows]] = 1 - labels[rows, one[rows]]
        pair = rows[one[rows] != other[rows]]
        labels[pair, other[pair]] = 1 - labels[pair, other[pair]]
    return labels


def _branch(
    unary: Tensor, weights: Tensor, fixed: Tensor, effort: int, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Branch and bound for one example, ``_OPEN`` subproblems at a time; the best labels, their value, the bound."""
    best = _score(unary, weights, labels.unsqueeze(0))[0]
    todo, above = fixed, torch.full((1,), torch.inf, dtype=best.dtype, device=best.device)
    while len(todo) and effort > 0:
        some, todo, above = todo[-_OPEN:], todo[:-_OPEN], above[:-_OPEN]
        found = _send(unary.expand(len(some), -1), weights, some, _ROUNDS)
        effort -= found.updates * len(some)
        top = int(found.value.argmax())
        if found.value[top] > best:
            best, labels = found.value[top], found.labels[top]
        tiny = _TINY * (unary.abs().sum() + weights.abs().sum())
        keep = (found.bound > found.value) & (found.bound - best > tiny)
        some, belief, last = some[keep], found.belief[keep], found.last[keep]
        sure = (some < 0) & (last.unsqueeze(1) - belief.abs() - best <= tiny)  # the other value cannot be better
        some = torch.where(sure, (belief > 0.0).to(some.dtype), some)
        free = some < 0
        strength = (_times(free, weights.abs()) - 2.0 * belief.abs()).masked_fill(~free, -torch.inf)
        chosen = strength.argmax(1, keepdim=True)
        sides = [some.scatter(1, chosen, side) for side in (0, 1)]
        todo = torch.cat([todo, *sides])
        above = torch.cat([above, found.bound[keep], found.bound[keep]])
        open_ = above - best > tiny
        todo, above = todo[open_], above[open_]
    return labels, best, torch.cat([above, best.unsqueeze(0)]).max()
