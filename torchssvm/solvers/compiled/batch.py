"""The blocks of a batch visited one after another, for the torch loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.core.lists import Lists
from torchssvm.core.potentials import InTurn, Parts
from torchssvm.core.row_sparse import rows_of
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.core.structure import Labeling, Structure
from torchssvm.solvers.compiled.kinds import Kind, kind_of
from torchssvm.solvers.compiled.packing import offsets
from torchssvm.solvers.compiled.state import Examples, make_scratch


@torch.no_grad()
def solve_in_turn(
    head: nn.Module,
    x: Tensor | SparseFeatures,
    structure: Structure,
    target: Labeling,
    psi: Parts,
    losses: Tensor,
    lam: float,
    n: int,
) -> InTurn:
    """Exact BCFW on the blocks of a batch, from the weights that the head holds; nothing changes.

    Args:
        head: One of those that are compiled.
        x: Its input; a tensor in the dtype of its weights.
        structure: The dual's.
        target: From ``check_target``.
        psi: The blocks, shaped like the potentials.
        losses: ``[B]`` float64, l_i.
        lam: Regularisation.
        n: Size of the training set.

    Raises:
        TypeError: The head is none that is compiled, or the structure is not that of the head.
    """
    from torchssvm.solvers.compiled.turns import visit_in_turn

    kind = kind_of(head)
    if not structure.same_as(kind.structure):
        raise TypeError(
            f"the dual's structure is {structure}, and in_turn=True decodes by the head's, {kind.structure}"
        )
    rows, examples = _from_lists(kind, x, target) if isinstance(x, SparseFeatures) else (None, _dense(kind, x, target))
    lengths = np.diff(examples.start)
    model = kind.model(rows)
    model = model._replace(**{name: getattr(model, name).copy() for name in model._fields[:5]})
    gradient = model._replace(**{name: 0 * getattr(model, name) for name in model._fields[:5]})
    states, batch, dtype = kind.num_states, len(lengths), examples.added.dtype
    scratch = make_scratch(
        int(lengths.max()), states, model.emission.shape[1], 0 if kind.pairs is None else states, 1, dtype
    )
    steps, gaps = torch.zeros(batch, dtype=torch.float64), torch.zeros(batch, dtype=torch.float64)
    sequences = kind.pairs is not None
    emission = psi[kind.emission] if sequences else psi[kind.emission].unsqueeze(1)
    labels = torch.full(emission.shape[:2], structure.padding)
    pairs: Any = emission.new_zeros(batch, 0, states) if kind.pairs is None else psi[kind.pairs]
    visit_in_turn(
        examples,
        model,
        gradient,
        *(t.contiguous().numpy() for t in (emission, pairs, losses)),
        lam,
        n,
        scratch,
        *(t.numpy() for t in (labels, steps, gaps)),
    )
    combined = [torch.from_numpy(array).contiguous() for array in kind.trained(gradient)]
    if rows is not None:
        combined[0] = rows_of(rows, combined[0], kind.weights()[0].shape, coalesced=True)
    return InTurn(labels if sequences else labels.squeeze(1), steps, gaps, combined)


def _dense(kind: Kind, x: Tensor, target: Labeling) -> Examples:
    """The examples of a batch of dense features."""
    from torchssvm.solvers.compiled.turns import list_tokens

    tokens = (x if x.ndim == 3 else x.unsqueeze(1)).detach().contiguous()
    y, cost, lengths = kind.targets(target)
    room = len(y) * tokens.shape[2] + 1
    value, column = torch.empty(room, dtype=tokens.dtype), torch.empty(room, dtype=torch.int32)
    examples = _examples(kind, y, cost, lengths, torch.zeros_like(y), column, value)
    gram = (tokens @ tokens.transpose(1, 2)).numpy()
    lists = (examples.value, examples.column, examples.row, examples.inner)
    list_tokens(tokens.numpy(), gram, lengths.numpy(), kind.has_bias, *lists)
    return examples


def _from_lists(kind: Kind, x: SparseFeatures, target: Labeling) -> tuple[Tensor, Examples]:
    """The columns that a batch of lists has, and its examples with these columns only."""
    from torchssvm.solvers.compiled.inner import fill_inner

    lists = kind.features(x, target)
    assert isinstance(lists, Lists)
    rows, local = lists.columns.unique(return_inverse=True)
    examples = _examples(kind, *kind.targets(target), lists.counts, local.to(torch.int32), lists.values)
    fill_inner(examples, kind.has_bias)
    return rows.to(torch.int64), examples


def _examples(
    kind: Kind, y: Tensor, cost: Tensor, lengths: Tensor, counts: Tensor, column: Tensor, value: Tensor
) -> Examples:
    """Packed examples with lists of features; inner products are not filled in yet."""
    inner_start = offsets(lengths * (lengths + 1) // 2)
    return Examples(
        dense=False,
        x=np.empty((0, 0), value.numpy().dtype),
        value=value.numpy(),
        column=column.numpy(),
        row=offsets(counts).numpy(),
        y=y.numpy(),
        cost=cost.numpy(),
        added=cost.to(value.dtype).numpy(),
        cost_matrix=kind.cost_matrix().numpy(),
        start=offsets(lengths).numpy(),
        inner=torch.empty(int(inner_start[-1]), dtype=value.dtype).numpy(),
        inner_start=inner_start[:-1].numpy(),
    )
