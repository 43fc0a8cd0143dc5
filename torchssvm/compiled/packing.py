"""The training set as a compiled loop reads it: token after token, without zeros and padding."""

from __future__ import annotations

import torch
from torch import Tensor

from torchssvm.batch import Batch
from torchssvm.compiled.state import Examples
from torchssvm.dual import DualState
from torchssvm.heads import LinearChain


def pack(head: LinearChain, dual: DualState, batches: list[Batch]) -> Examples:
    """The training set token after token, in the order of the index; checked by the head and the structure."""
    n, dtype = dual.num_examples, head.emission.dtype
    pieces: list[tuple[Tensor, Tensor, Tensor] | None] = [None] * n
    for batch in batches:
        potentials = head(batch.x, batch.lengths)
        index = dual.check_batch(batch.index, potentials)
        target = head.structure.check_target(batch.y, potentials)
        costs, labels = head.structure.costs(target)
        if not bool(torch.isfinite(batch.x).all()):
            row = int((~torch.isfinite(batch.x).flatten(1).all(1)).nonzero()[0])
            raise ValueError(f"x of example {int(index[row])} holds numbers that are not finite, padding included")
        lengths = (labels >= 0).sum(1).tolist()
        for row, (i, length) in enumerate(zip(index.tolist(), lengths, strict=True)):
            if pieces[i] is not None:
                raise ValueError(f"batches gave example {i} twice: every training example is needed exactly once")
            pieces[i] = (batch.x[row, :length].to(dtype), labels[row, :length], costs[row, :length])
    found = [piece for piece in pieces if piece is not None]
    if len(found) < n:
        missing = [i for i, piece in enumerate(pieces) if piece is None]
        raise ValueError(f"batches left out {len(missing)} of {n} examples, {missing[:5]} among them")
    sizes = torch.tensor([len(labels) for _, labels, _ in found])
    zero = torch.zeros(1, dtype=torch.int64)
    inner = []
    for x, _, _ in found:
        products = x.double() @ x.double().t()
        inner.append((products + 1.0 if head.bias is not None else products).flatten())
    cost = torch.cat([c for _, _, c in found])
    x = torch.cat([x for x, _, _ in found])
    tokens, columns = x.nonzero(as_tuple=True)
    return Examples(
        value=x[tokens, columns],
        column=columns.to(torch.int32),
        row=torch.cat([zero, (x != 0).sum(1).cumsum(0)]),
        y=torch.cat([labels for _, labels, _ in found]),
        cost=cost,
        added=cost.to(dtype),
        start=torch.cat([zero, sizes.cumsum(0)]),
        inner=torch.cat(inner),
        inner_start=torch.cat([zero, (sizes**2).cumsum(0)[:-1]]),
    )
