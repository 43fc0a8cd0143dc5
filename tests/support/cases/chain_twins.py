"""Twins, on CPU tensors, of the Triton kernels in a step of chains: for batches that their interpreter is slow on.

``with computed_by(CHAIN_TWINS):`` runs them in place of the kernels; launches are counted as before. A twin has the
arguments of its kernel, writes its results, and ignores how the kernel is launched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.steps.box_qp import ascend_gram
from torchssvm.structures.chain import oracle as kernels
from torchssvm.structures.chain.oracle import viterbi
from torchssvm.structures.tree.oracle import max_sum_tree


def _decode(emission: Tensor, pairs: Tensor, lengths: Tensor, _: Tensor, labels: Tensor, value: Tensor, *sizes: Any,
            **options: Any) -> None:  # fmt: skip
    result, best = viterbi(emission, pairs, lengths)
    labels.copy_(result)
    value.copy_(best)


def _read(values: Tensor, start: Tensor, count: Tensor, index: Tensor, output: Tensor, longest: int, *sizes: Any,
          **options: Any) -> None:  # fmt: skip
    output.zero_()
    for row, example in enumerate(index.tolist()):
        begin, rows = int(start[example]), min(int(count[example]), longest)
        output[row, :rows] = values[begin : begin + rows]


def _add(values: Tensor, start: Tensor, count: Tensor, index: Tensor, change: Tensor, factors: Tensor, longest: int,
         *sizes: Any, **options: Any) -> None:  # fmt: skip
    for row, example in enumerate(index.tolist()):
        begin, rows = int(start[example]), min(int(count[example]), longest)
        values[begin : begin + rows] += factors[row].to(values.dtype) * change[row, :rows]


def _inner(a: Tensor, b: Tensor, size: int, _: int, c: Tensor, d: Tensor, more: int, __: int, total: Tensor, place: int,
           n: int, **options: Any) -> None:  # fmt: skip
    result = total if place else torch.zeros_like(total)
    for one, other in ((a, b), (c, d))[: 2 if more else 1]:
        terms = (one.double() * other).flatten(1)
        result = result + torch.stack([terms.sum(1), terms.abs().sum(1)])
    total.copy_(result / torch.tensor([[n], [1]]))


def _add_everywhere(emission: Tensor, *given: Any, **options: Any) -> None:
    kernels.add_everywhere(emission.numpy(), *(tensor.numpy() for tensor in given[:4]))


def _sum_everywhere(v: Tensor, lengths: Tensor, sums: Tensor, *sizes: Any, **options: Any) -> None:
    kernels.sum_everywhere(v.numpy(), lengths.numpy(), sums.numpy())


def _mean_loss(psi: Tensor, labels: Tensor, costs: Tensor, sums: Tensor, *sizes: Any, **options: Any) -> None:
    wrong = labels.unsqueeze(2) != torch.arange(psi.shape[2])
    terms = (psi.double() * (wrong * costs.to(psi.dtype).unsqueeze(2))).flatten(1)
    sums.copy_(torch.stack([-terms.sum(1), terms.abs().sum(1)]))


def _ascend(matrix: Tensor, values: Tensor, gammas: Tensor, room: Tensor, size: int, sweeps: int, *, converged: float,
            **options: Any) -> None:  # fmt: skip
    gammas.zero_()
    ascend_gram(matrix.numpy(), values.numpy().copy(), gammas.numpy(), sweeps, converged)


def _ascend_together(matrix: Tensor, residual: Tensor, next_residual: Tensor, gammas: Tensor, next_gammas: Tensor,
                     room: Tensor, largest: Tensor, size: int, begin: int, sweep: int, *, converged: float, group: int,
                     **options: Any) -> None:  # fmt: skip
    some = slice(begin, begin + group)
    next_gammas[some] = gammas[some]
    if largest[sweep] < converged:
        return
    next_residual.copy_(residual)
    rest, result = next_residual.numpy(), next_gammas.numpy()
    for place, row in enumerate(matrix.numpy()[some], begin):
        step = rest[place] / row[place] if row[place] > 0.0 else float(rest[place] > 0.0)
        move = min(max(result[place] + step, 0.0), 1.0) - result[place]
        result[place] += move
        rest -= row * move
        largest[sweep + 1] = max(float(largest[sweep + 1]), abs(move))


CHAIN_TWINS = {
    twin.__name__: twin
    for twin in (
        *(_decode, _read, _add, _inner, _mean_loss, _add_everywhere, _sum_everywhere),
        *(_ascend, _ascend_together),
    )
}


def _decode_tree(belief: Tensor, edge: Tensor, parent: Tensor, order: Tensor, size: Tensor, pointers: Tensor,
                 labels: Tensor, value: Tensor, *sizes: Any, **options: Any) -> None:  # fmt: skip
    batch, _, states = belief.shape
    result, best = max_sum_tree(belief, edge.reshape(-1, states, states)[:1].expand(batch, -1, -1), parent[0], size)
    labels.copy_(result)
    value.copy_(best)


TREE_TWINS = CHAIN_TWINS | {"_decode": _decode_tree}
"""Those of one tree that all examples share, whose edges share their scores."""
