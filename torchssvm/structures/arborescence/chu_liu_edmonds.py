"""The algorithm of Chu, Liu and Edmonds: the best arborescence of every sentence of a batch, one torch operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core import tuning
from torchssvm.core.jit import compiled, numba_available
from torchssvm.core.operators import define
from torchssvm.core.threads import run_in_chunks
from torchssvm.structures.arborescence.eisner import check_arcs, check_sizes, empty_arborescence


def max_arborescence(
    scores: Tensor, lengths: Tensor | None = None, single_root: bool = False
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The arborescence with the largest sum of arcs over the tokens 1 to T of every sentence, crossing or not.

    Token 0 is the artificial root. Chu and Liu (1965) and Edmonds (1967): a cycle of best arcs is contracted to one
    node, and opened again where the best arc enters it. The path of best arcs is kept while it grows, so that the time
    is O(T^2) as for dense graphs in Gabow et al. (1986). It is the operator ``torch.ops.torchssvm.max_arborescence``:
    in Python, compiled by Numba where the extra ``torchssvm[numba]`` is installed; tensors of other devices are decoded
    on the CPU. Sums are made in float64. Of several best arborescences the same one is always found, alone or in a
    batch. It has no gradient.

    With ``single_root`` arcs are compared by (arcs from the root, score) lexicographically, fewer first. Pairs are
    added, subtracted and compared as numbers are, which is all that the algorithm asks for: its optimum has one arc
    from the root, as every complete graph allows, and the best score of these, with no large penalty that would eat
    up digits.

    Args:
        scores: ``[B, N, N+1]``, floating: ``scores[b, t-1, h]`` is that of the arc from head h to token t. What stands
            at arcs of a token to itself, in rows from T on and in columns beyond T does not matter.
        lengths: ``[B]`` int64, 1 to N; None means N for all.
        single_root: Exactly one token may have the root as head; otherwise any number from 1 on.

    Returns:
        ``heads`` ``[B, N]`` int64, 0 to T, and -1 beyond the length; ``value`` ``[B]``, the score.

    Raises:
        ValueError: Shapes do not fit, or a length is not in 1 to N.
    """
    return _operator(scores, lengths, single_root)


@torch.no_grad()
def _decode(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    check_arcs(scores, lengths)
    check_sizes(scores, lengths)
    batch, longest, size = scores.shape
    heads = np.full((batch, longest), -1)
    value = np.zeros(batch)
    arcs = np.ascontiguousarray(scores.detach().to("cpu", torch.float64).numpy())
    known = np.full(batch, longest) if lengths is None else lengths.cpu().numpy()
    contract = contract_cycles if numba_available() else contract_cycles.__wrapped__  # type: ignore[attr-defined]

    def work(begin: int, end: int, _: int) -> None:
        best, roots = np.empty((size, size)), np.empty((size, size), np.int64)
        origin, notes = np.empty((2, size, size), np.int64), np.empty((7, 2 * size), np.int64)
        with np.errstate(invalid="ignore"):  # infinite scores are refused by those who know where they come from
            for b in range(begin, end):
                length = int(known[b])
                value[b] = contract(arcs[b], length, single_root, best, roots, origin, notes, heads[b])

    run_in_chunks(work, known.astype(np.float64) ** 2, grain=tuning.GRAIN / 4)
    return torch.from_numpy(heads).to(scores.device), torch.from_numpy(value).to(scores.device, scores.dtype)


@compiled
def contract_cycles(
    scores: Any, length: int, single_root: bool, best: Any, roots: Any, origin: Any, notes: Any, heads: Any
) -> float:
    """Decode one sentence.

    Args:
        scores: ``[N, N+1]`` float64.
        length: T.
        single_root: Whether the root has exactly one child.
        best: ``[N+1, N+1]`` float64, of any content; as all that follow.
        roots: ``[N+1, N+1]`` int64.
        origin: ``[2, N+1, N+1]`` int64.
        notes: ``[7, 2 * (N+1)]`` int64.
        heads: ``[N]``, its first T are filled.

    Returns:
        The score.
    """
    # A slot is a token or a cycle contracted to one: best[h, t] and roots[h, t] are what the best arc from slot h into
    # slot t adds, once the arcs that it puts out of cycles are taken away; origin[:, h, t] are its true head and token.
    size = length + 1
    for t in range(1, size):
        for h in range(size):
            best[h, t] = scores[t - 1, h]
            roots[h, t] = 1 if single_root and h == 0 else 0
            origin[0, h, t], origin[1, h, t] = h, t
    outside, on_path, done, inside = 0, 1, 2, 3  # of a slot; `inside` a cycle whose slot is another
    state, source, node = notes[0], notes[1], notes[2]  # by slot; source: where its best arc comes from
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
            # The path bites its tail: v is on the way to u, and u's best arc led to v. u is to stand for the cycle.
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
    # The arc into a cycle takes the place of its own arc into the part that it enters; the last cycle is opened first.
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


_operator = define(
    "max_arborescence(Tensor scores, Tensor? lengths, bool single_root) -> (Tensor heads, Tensor value)",
    fake=empty_arborescence,
    cpu=_decode,
    cuda=_decode,
    default=_decode,
)
