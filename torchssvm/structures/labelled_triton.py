"""Mean losses of labels on a CUDA device; the twin is ``Structure._mean_loss``. Import it only where Triton is
installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchssvm.core.triton_support import on_device


def mean_loss_triton(psi: Tensor, labels: Tensor, costs: Tensor) -> Tensor:
    """``-<psi, delta>``, and the sum of the absolute values of its terms: ``[2, B]`` float64, one program an example.

    ``psi`` ``[B, N, K]`` is contiguous. ``delta`` is the cost ``[B, N]`` float64 of a wrong label, in the dtype of
    ``psi``, and 0 for the true one of ``labels`` ``[B, N]``; labels below 0 cost nothing.
    """
    batch, longest, states = psi.shape
    results = torch.empty(2, batch, dtype=torch.float64, device=psi.device)
    with on_device(psi):
        _mean_loss[(batch,)](
            psi, labels.contiguous(), costs, results, longest, states, block=1024, enable_fp_fusion=False
        )
    return results


@triton.jit(do_not_specialize=["longest", "states"])
def _mean_loss(psi, labels, costs, results, longest, states, block: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    mean = tl.zeros([block], tl.float64)
    sizes = tl.zeros([block], tl.float64)
    for begin in range(0, longest * states, block):
        at = begin + tl.arange(0, block)
        inside, place = at < longest * states, i * longest + at // states
        wrong = tl.load(labels + place, inside, 0) != at % states
        cost = tl.load(costs + place, inside & wrong, 0.0).to(psi.dtype.element_ty).to(tl.float64)
        term = cost * tl.load(psi + i * longest * states + at, inside, 0.0).to(tl.float64)
        mean -= term
        sizes += tl.abs(term)
    tl.store(results + i, tl.sum(mean, 0))  # no other program has these places
    tl.store(results + tl.num_programs(0) + i, tl.sum(sizes, 0))
