"""The best arborescence of every sentence of a batch: Eisner's algorithm, and the algorithm of Chu, Liu and Edmonds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import Kernel, njit
from torchssvm.core.launch import COMPILED, compiles, launch
from torchssvm.core.operators import apart, define
from torchssvm.core.triton_support import triton_available


def eisner(scores: Tensor, lengths: Tensor | None = None, single_root: bool = False) -> tuple[Tensor, Tensor]:
    """The projective arborescence with the highest score over the tokens 1 to T of each sentence.

    Token 0 is the artificial root, left of all others; no two arcs cross, the root's included. Eisner's dynamic
    program over spans (Eisner 1996; McDonald et al. 2005, "Online large-margin training of dependency parsers",
    section 3.1) takes time O(T^3) and memory O(T^2). Each span takes the first of its best splits, so ties are broken
    in the same way on every device and in every batch. This is the operator ``torch.ops.torchssvm.eisner``: compiled by
    Numba on the CPU, and by Triton on CUDA where it is installed; anything else is decoded on the CPU. All give the
    same bits. It has no gradient.

    Args:
        scores: ``[B, N, N+1]``, float32 or float64: ``scores[b, t-1, h]`` belongs to the arc from head h to token t.
            Ignored are arcs of a token to itself, rows from T on and columns beyond T.
        lengths: ``[B]`` int64, 1 to N; None means N for all.
        single_root: Whether exactly one token has the root as head; otherwise at least one.

    Returns:
        ``heads`` ``[B, N]`` int64, 0 to T, and -1 beyond the length; ``value`` ``[B]``, the score.

    """
    return _operator(scores, lengths, single_root)


def _fake(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape[:2], dtype=torch.int64), scores.new_empty(scores.shape[0])


def _on_cpu(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    size = scores.shape[-1]
    dtype = scores.dtype if scores.dtype in COMPILED else torch.float32
    memory = [(6 * size * size, dtype), (3 * (2 * size + 2), torch.int64)]
    # a span of width w has 3 w splits; T^3 / 2 in total
    return _on_host(scores, lengths, single_root, dtype, decode, lambda known: 0.5 * known**3, memory)


def _on_host(
    scores: Tensor,
    lengths: Tensor | None,
    single_root: bool,
    dtype: torch.dtype,
    kernel: Kernel,
    work: Callable[[np.ndarray], np.ndarray],
    memory: Sequence[Any],
    each: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Run a kernel on the CPU, in ``dtype``; ``work`` maps lengths of sentences to operations."""
    batch, longest, _ = scores.shape
    lengths = apart(lengths)
    heads, value = torch.empty(batch, longest, dtype=torch.int64), torch.empty(batch, dtype=dtype)
    known = np.full(batch, longest) if lengths is None else lengths.cpu().contiguous().numpy()
    inputs = scores.detach().to("cpu", dtype), known, single_root
    launch(kernel, inputs, (heads, value), work(known.astype(np.float64)), memory, each)
    return heads.to(scores.device), value.to(scores.device, scores.dtype)


def _on_cuda(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    if not (triton_available() and compiles(scores)):
        return _on_cpu(scores, lengths, single_root)
    from torchssvm.structures.arborescence.triton import eisner_triton

    return eisner_triton(scores, lengths, single_root)


_operator = define(
    "eisner(Tensor scores, Tensor? lengths, bool single_root) -> (Tensor heads, Tensor value)",
    fake=_fake,
    cpu=_on_cpu,
    cuda=_on_cuda,
    default=_on_cpu,
)


def max_arborescence(
    scores: Tensor, lengths: Tensor | None = None, single_root: bool = False
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The arborescence with the highest score over the tokens 1 to T of each sentence; arcs may cross.

    Token 0 is the artificial root. Chu and Liu (1965) and Edmonds (1967): a cycle of best arcs is contracted to one
    node, and expanded again where the best arc enters it. The path of best arcs grows without restarts, so the time is
    O(T^2), as for dense graphs in Gabow et al. (1986). This is the operator ``torch.ops.torchssvm.max_arborescence``,
    compiled by Numba on the CPU, by Triton on CUDA where it is installed, for up to 1023 tokens; anything else is
    decoded on the CPU. Sums are in float64. Ties are broken in the same way everywhere. It has no gradient.

    With ``single_root``, arcs are compared lexicographically by (arcs from the root, score), fewer first. The algorithm
    only adds, subtracts and compares, so it works on such pairs. As the graph is complete, its optimum has one arc from
    the root and the best score among these; no large penalty costs digits.

    Arguments and results are as in :func:`eisner`.
    """
    return _crossing(scores, lengths, single_root)


def _crossing_on_cpu(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    size = scores.shape[-1]
    memory = [(size * size, torch.float64), (3 * size * size + 14 * size, torch.int64)]
    return _on_host(scores, lengths, single_root, torch.float64, decode_nonprojective, np.square, memory, each=4)


def _crossing_on_cuda(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    if triton_available():
        from torchssvm.structures.arborescence.chu_liu_edmonds_triton import LARGEST, max_arborescence_triton

        if scores.shape[1] <= LARGEST:
            return max_arborescence_triton(scores, lengths, single_root)
    return _crossing_on_cpu(scores, lengths, single_root)


_crossing = define(
    "max_arborescence(Tensor scores, Tensor? lengths, bool single_root) -> (Tensor heads, Tensor value)",
    fake=_fake,
    cpu=_crossing_on_cpu,
    cuda=_crossing_on_cuda,
    default=_crossing_on_cpu,
)


_RIGHT, _LEFT = 0, 1


@njit
def decode(scores, lengths, single_root, begin, end, charts, stack, heads, value):
    """Decode the sentences ``begin`` to ``end - 1``.

    Args:
        scores: ``[B, N, N+1]``.
        lengths: ``[B]``, 1 to N.
        single_root: Whether the root has exactly one child.
        charts: Room for ``6 * (N+1)^2`` numbers: see ``_fill``.
        stack: Room for ``3 * (2 N + 3)`` integers.
        heads, value: ``[B, N]`` and ``[B]``, to be filled.
    """
    size = scores.shape[2]
    charts = charts[: 6 * size * size].reshape(6, size, size)
    for b in range(begin, end):
        length = lengths[b]
        best_projective(scores[b], length, single_root, charts, stack, heads[b])
        value[b] = charts[0, 0, length]
        heads[b, length:] = -1


@njit
def best_projective(scores, length, single_root, charts, stack, heads):
    """Eisner's algorithm on one sentence: ``charts`` is ``[6, N+1, N+1]``, and ``charts[0, 0, length]`` the score."""
    _fill(scores, length, single_root, charts)
    _follow(length, single_root, charts, stack, heads)


@njit
def _fill(scores, length, single_root, charts):
    """Compute the best scores of all spans, by ascending width.

    A complete span has its head at its left end (``right``: it reaches to the right) or at its right end (``left``). An
    open span has an arc between its ends, whose token may still get children. Scores that are read by their last token
    are stored transposed, so that every maximum is over two rows.
    """
    right, right_t, left, left_t = charts[0], charts[1], charts[2], charts[3]
    open_right, open_left_t = charts[4], charts[5]
    for i in range(length + 1):
        right[i, i] = right_t[i, i] = left[i, i] = left_t[i, i] = 0.0
    for width in range(1, length + 1):
        for i in range(length + 1 - width):
            j = i + width
            best = right[i, i] + left_t[j, i + 1]
            for k in range(i + 1, i + 1 if single_root and i == 0 else j):
                best = max(best, right[i, k] + left_t[j, k + 1])
            open_right[i, j] = best + scores[j - 1, i]
            open_left_t[j, i] = best + (scores[i - 1, j] if i > 0 else 0.0)  # no arc enters token 0
            best = open_right[i, i + 1] + right_t[j, i + 1]
            for k in range(i + 2, j + 1):
                best = max(best, open_right[i, k] + right_t[j, k])
            right[i, j] = right_t[j, i] = best
            best = left[i, i] + open_left_t[j, i]
            for k in range(i + 1, j):
                best = max(best, left[i, k] + open_left_t[j, k])
            left[i, j] = left_t[j, i] = best


@njit
def _follow(length, single_root, charts, stack, heads):
    """Find the heads from the widest span down; a span's split is the first whose sum equals its score."""
    right, right_t, left, left_t = charts[0], charts[1], charts[2], charts[3]
    open_right, open_left_t = charts[4], charts[5]
    stack[0], stack[1], stack[2] = 0, length, _RIGHT
    top = 3
    while top > 0:
        top -= 3
        i, j, kind = stack[top], stack[top + 1], stack[top + 2]
        if i == j:
            continue
        if kind == _RIGHT:
            split = i + 1
            while split < j and open_right[i, split] + right_t[j, split] != right[i, j]:
                split += 1
            heads[split - 1] = i
            stack[top], stack[top + 1], stack[top + 2] = split, j, _RIGHT
            j = split
        else:
            split = i
            while split < j - 1 and left[i, split] + open_left_t[j, split] != left[i, j]:
                split += 1
            heads[split - 1] = j
            stack[top], stack[top + 1], stack[top + 2] = i, split, _LEFT
            i = split
        top += 3
        # Split the remaining open span from i to j.
        split = i
        if not (single_root and i == 0):
            best = right[i, i] + left_t[j, i + 1]
            for k in range(i + 1, j):
                candidate = right[i, k] + left_t[j, k + 1]
                if candidate > best:
                    best, split = candidate, k
        stack[top], stack[top + 1], stack[top + 2] = i, split, _RIGHT
        stack[top + 3], stack[top + 4], stack[top + 5] = split + 1, j, _LEFT
        top += 6


@njit
def decode_nonprojective(scores, lengths, single_root, begin, end, memory, places, heads, value):
    """As :func:`decode`, but arcs may cross; scores are float64.

    ``memory`` has room for ``(N+1)^2`` numbers, ``places`` for ``3 (N+1)^2 + 14 (N+1)`` integers.
    """
    for b in range(begin, end):
        value[b] = best_nonprojective(scores[b], lengths[b], single_root, memory, places, heads[b])
        heads[b, lengths[b] :] = -1


@njit
def best_nonprojective(scores, length, single_root, memory, places, heads):
    """The algorithm of Chu, Liu and Edmonds on one sentence; returns the score. Room as in the function above."""
    size = scores.shape[1]
    area = size * size
    best, roots = memory[:area].reshape(size, size), places[:area].reshape(size, size)
    origin = places[area : 3 * area].reshape(2, size, size)
    notes = places[3 * area : 3 * area + 14 * size].reshape(7, 2 * size)
    return _contract_cycles(scores, length, single_root, best, roots, origin, notes, heads)


@njit
def _contract_cycles(scores, length, single_root, best, roots, origin, notes, heads):
    """The algorithm of Chu, Liu and Edmonds on one sentence: fills ``heads`` up to T and returns the score.

    ``best``, ``roots`` ``[N+1, N+1]``, ``origin`` ``[2, N+1, N+1]`` and ``notes`` ``[7, 2 * (N+1)]`` are of any
    content.
    """
    # A slot is a token or a contracted cycle. best[h, t] and roots[h, t] are the score and the number of root arcs that
    # the best arc from slot h into slot t adds, less the cycle arcs that it replaces; origin[:, h, t] are its
    # original head and token.
    size = length + 1
    for t in range(1, size):
        for h in range(size):
            best[h, t] = scores[t - 1, h]
            roots[h, t] = 1 if single_root and h == 0 else 0
            origin[0, h, t], origin[1, h, t] = h, t
    outside, on_path, done, inside = 0, 1, 2, 3  # states of a slot; `inside`: in a cycle that another slot stands for
    state, source, node = notes[0], notes[1], notes[2]  # by slot; source: the tail of its best arc
    parent, head, token, members = notes[3], notes[4], notes[5], notes[6]  # by node: tokens, then cycles as they form
    for i in range(size):
        state[i], node[i] = outside, i
    state[0] = done
    nodes = size
    for start in range(1, size):
        if state[start] != outside:
            continue
        v = start
        while True:
            state[v] = on_path
            u = 0
            for h in range(1, size):
                if h != v and state[h] != inside:
                    fewer = roots[h, v] - roots[u, v]
                    if fewer < 0 or (fewer == 0 and best[h, v] > best[u, v]):
                        u = h
            source[v] = u
            head[node[v]], token[node[v]] = origin[0, u, v], origin[1, u, v]
            if state[u] == done:
                break
            if state[u] == outside:
                v = u
                continue
            # The path closes a cycle: u is already on it. Contract the cycle into slot u.
            count, x = 0, u
            while True:
                members[count] = x
                count += 1
                parent[node[x]] = nodes
                state[x] = inside
                if x == v:
                    break
                x = source[x]
            for h in range(size):
                if state[h] == inside:
                    continue
                x = members[0]
                most, fewest = best[h, x] - best[source[x], x], roots[h, x] - roots[source[x], x]
                true_head, true_token = origin[0, h, x], origin[1, h, x]
                for m in range(1, count):
                    x = members[m]
                    value = best[h, x] - best[source[x], x]
                    fewer = roots[h, x] - roots[source[x], x] - fewest
                    if fewer < 0 or (fewer == 0 and value > most):
                        most, fewest = value, fewest + fewer
                        true_head, true_token = origin[0, h, x], origin[1, h, x]
                best[h, u], roots[h, u] = most, fewest
                origin[0, h, u], origin[1, h, u] = true_head, true_token
            for t in range(1, size):
                if state[t] == inside:
                    continue
                x = members[0]
                for m in range(1, count):
                    fewer = roots[members[m], t] - roots[x, t]
                    if fewer < 0 or (fewer == 0 and best[members[m], t] > best[x, t]):
                        x = members[m]
                best[u, t], roots[u, t] = best[x, t], roots[x, t]
                origin[0, u, t], origin[1, u, t] = origin[0, x, t], origin[1, x, t]
            state[u], node[u], parent[nodes] = on_path, nodes, -1
            nodes += 1
            v = u
        for i in range(1, size):
            if state[i] == on_path:
                state[i] = done
    # Expand the cycles, the last one first: the arc into a cycle replaces the cycle's arc into the node that it enters.
    for cycle in range(nodes - 1, length, -1):
        x = token[cycle]
        while parent[x] != cycle:
            x = parent[x]
        head[x], token[x] = head[cycle], token[cycle]
    total = 0.0
    for t in range(1, size):
        heads[t - 1] = head[t]
        total += scores[t - 1, head[t]]
    return total
