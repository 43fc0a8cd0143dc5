"""The algorithm of Chu, Liu and Edmonds: the best arborescence of every sentence of a batch, one torch operator."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.jit import triton_available
from torchssvm.core.operators import define
from torchssvm.structures.arborescence.eisner import check_arcs, check_sizes, empty_arborescence, on_host
from torchssvm.structures.arborescence.numba import decode_nonprojective


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

    Arguments, heads and errors are those of :func:`torchssvm.structures.arborescence.eisner.eisner`.
    """
    return _operator(scores, lengths, single_root)


def _decode(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    size = scores.shape[-1]
    memory = [(size * size, torch.float64), (3 * size * size + 14 * size, torch.int64)]
    return on_host(scores, lengths, single_root, torch.float64, decode_nonprojective, np.square, memory, each=4)


def _on_cuda(scores: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    if triton_available():
        from torchssvm.structures.arborescence.chu_liu_edmonds_triton import LARGEST, max_arborescence_triton

        check_arcs(scores, lengths)
        check_sizes(scores, lengths)
        if scores.shape[1] <= LARGEST:
            return max_arborescence_triton(scores, lengths, single_root)
    return _decode(scores, lengths, single_root)


_operator = define(
    "max_arborescence(Tensor scores, Tensor? lengths, bool single_root) -> (Tensor heads, Tensor value)",
    fake=empty_arborescence,
    cpu=_decode,
    cuda=_on_cuda,
    default=_decode,
)
