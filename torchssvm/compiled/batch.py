"""The blocks of a batch visited one after another, for the torch loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.compiled.kinds import kind_of
from torchssvm.compiled.state import Examples, make_scratch
from torchssvm.potentials import InTurn, Parts
from torchssvm.structures import Structure
from torchssvm.structures.base import Labeling


@torch.no_grad()
def solve_in_turn(
    head: nn.Module,
    x: Tensor,
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
        x: Its input, in the dtype of its weights.
        structure: The dual's.
        target: From ``check_target``.
        psi: The blocks, shaped like the potentials.
        losses: ``[B]`` float64, l_i.
        lam: Regularisation.
        n: Size of the training set.

    Raises:
        TypeError: The head is none that is compiled, or the structure is not that of the head.
    """
    from torchssvm.compiled.turns import list_tokens, visit_in_turn

    kind = kind_of(head)
    if type(structure) is not type(kind.structure) or repr(structure) != repr(kind.structure):
        raise TypeError(
            f"the dual's structure is {structure}, and in_turn=True decodes by the head's, {kind.structure}"
        )
    y, cost, lengths = (t.numpy() for t in kind.targets(target))
    tokens = (x if x.ndim == 3 else x.unsqueeze(1)).detach().contiguous()
    dtype, total = tokens.numpy().dtype, len(y)
    room = total * tokens.shape[2] + 1
    start, inner_start = (np.append(0, np.cumsum(sizes)) for sizes in (lengths, lengths * (lengths + 1) // 2))
    examples = Examples(
        dense=False,
        x=np.empty((0, tokens.shape[2]), dtype),
        value=np.empty(room, dtype),
        column=np.empty(room, np.int32),
        row=np.zeros(total + 1, np.int64),
        y=y,
        cost=cost,
        added=cost.astype(dtype),
        cost_matrix=kind.cost_matrix().numpy(),
        start=start,
        inner=np.empty(inner_start[-1], dtype),
        inner_start=inner_start[:-1],
    )
    gram = (tokens @ tokens.transpose(1, 2)).numpy()
    lists = (examples.value, examples.column, examples.row, examples.inner)
    list_tokens(tokens.numpy(), gram, lengths, kind.has_bias, *lists)
    model = kind.model()
    model = model._replace(**{name: getattr(model, name).copy() for name in model._fields[:5]})
    gradient = model._replace(**{name: 0 * getattr(model, name) for name in model._fields[:5]})
    states, batch = kind.num_states, len(lengths)
    scratch = make_scratch(
        int(lengths.max()), states, kind.width, 0 if kind.pairs is None else states, 1, examples.added.dtype
    )
    labels = torch.full((batch, tokens.shape[1]), structure.padding)
    steps, gaps = torch.zeros(batch, dtype=torch.float64), torch.zeros(batch, dtype=torch.float64)
    emission = psi[kind.emission] if x.ndim == 3 else psi[kind.emission].unsqueeze(1)
    pairs: Any = x.new_zeros(batch, 0, states) if kind.pairs is None else psi[kind.pairs]
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
    return InTurn(labels if x.ndim == 3 else labels.squeeze(1), steps, gaps, combined)
