"""Sum-product on a batch of trees."""

from __future__ import annotations

from torch import Tensor


def log_partition(node: Tensor, edge: Tensor, parent: Tensor, depth: Tensor) -> Tensor:
    """``log Z`` of every example, ``[B]``, with a gradient; messages go from the leaves to the roots.

    Args:
        node: ``[B, N, K]``.
        edge: ``[B, K, K]`` (state of the parent, state of the child), or ``[B, N, K, K]`` by the child.
        parent: ``[B, N]`` int64.
        depth: ``[B, N]`` int64, the distance from the root; -1 in the padding.
    """
    belief = node
    for level in range(int(depth.max()) if len(node) else 0, 0, -1):
        row, child = (depth == level).nonzero(as_tuple=True)
        tables = edge[row] if edge.ndim == 3 else edge[row, child]
        messages = (belief[row, child].unsqueeze(1) + tables).logsumexp(2)
        belief = belief.index_put((row, parent[row, child]), messages, accumulate=True)
    row, root = (depth == 0).nonzero(as_tuple=True)
    return belief.new_zeros(len(node)).index_add(0, row, belief[row, root].logsumexp(1))
