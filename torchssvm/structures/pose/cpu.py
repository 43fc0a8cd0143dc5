"""Max-sum on trees of grid places on the CPU, compiled by Numba; the results of the torch operations, to the bit."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core import tuning
from torchssvm.core.scratch import as_array, scratch
from torchssvm.core.threads import run_in_chunks


def max_sum_grid_cpu(
    node: Tensor, kinds: Tensor, cost_x: Tensor, cost_y: Tensor, parent: Tensor, order: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As :func:`torchssvm.structures.pose.oracle`, for checked CPU tensors of one dtype, float32 or float64.

    ``order`` holds the nodes, the deepest first.
    """
    batch, parts, height, width = node.shape
    edges, types = kinds.shape[1], kinds.shape[3]
    place, value = torch.empty(batch, parts, dtype=torch.int64), torch.empty(batch, dtype=node.dtype)
    kind = torch.empty(batch, edges, 2, dtype=torch.int64)
    maps, pairs = np.ascontiguousarray(as_array(node)), np.ascontiguousarray(as_array(kinds))
    costs = [as_array(_once(cost)) for cost in (cost_x, cost_y)]
    above, deepest = (np.ascontiguousarray(as_array(tensor)) for tensor in (parent, order))
    out_place, out_kind, out_value = place.numpy(), kind.numpy(), value.numpy()
    wide = -(-width // tuning.LANES) * tuning.LANES
    room = (parts + 3) * height * wide + types * height * width + width - 1 + wide + 2 * height
    decode = _loops()

    def work(begin: int, end: int, _: int) -> None:
        memory = scratch(room, maps.dtype)[:room]
        chosen = scratch(edges * height * width, np.int32)
        decode(
            maps, pairs, *costs, above, deepest, begin, end, wide, memory, chosen, out_place, out_kind, out_value
        )  # fmt: skip

    each = float(edges * types * types) * height * width * (height + width)
    run_in_chunks(work, np.full(batch, each), grain=tuning.GRAIN)
    return place, kind, value


def _once(cost: Tensor) -> Tensor:
    """Costs that are the same for all examples, once."""
    return (cost[:1] if len(cost) and cost.stride(0) == 0 else cost).detach().contiguous()


@functools.cache
def _loops() -> Any:
    from torchssvm.structures.pose.numba import decode

    return decode
