"""The blocks of a batch visited one after another, in the torch loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.row_sparse import rows_of
from torchssvm.core.sparse_features import STORED, Lists, SparseFeatures
from torchssvm.core.structure import Labeling, Structure
from torchssvm.dual.storage import MeanParts, Storage, Stored, StoredParts
from torchssvm.kinds.adapter import Examples, fill_inner, find_adapter, list_tokens, make_scratch, with_types
from torchssvm.solvers.compiled.memory import BlockArrays, Options, Scalars, without_slots
from torchssvm.solvers.compiled.packing import long_features, num_products, offsets
from torchssvm.steps.box_qp import BatchSteps, BlockSteps, BoxQP, Visited
from torchssvm.steps.directions import FrankWolfe, MaxOracle
from torchssvm.structures.chain.kind import SequenceAdapter


class Sequential(BlockSteps):
    """Exact steps on the blocks of a batch one after another ([B13] Algorithm 4), in compiled code.

    Each block is decoded at the weights after the previous block's step: this is single-example BCFW, which needs fewer
    passes than larger batches. For ``LinearChain``, ``SparseLinearChain`` and ``LinearMulticlass`` on the CPU with
    fixed features, ``MeanParts()``, ``FrankWolfe()`` and ``MaxOracle()``; a batch with a repeated example is solved by
    ``BoxQP()``. The training loss is the sum of the gaps that the visits found. Use the exact line search
    (``ExactSearch()``, the default), as each step is already exact.

    Example:
        >>> solver = Solver(block_steps=Sequential())  # the torch loop, with exact steps on one block after another
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, solver=solver, tolerance=Relative(0.1)).relative_gap <= 0.1
        True
    """

    needs_gradients = visits = True

    def check(self, direction: Any, oracle: Any, storage: Storage) -> None:
        """Raise ValueError unless the rules are ``FrankWolfe()``, ``MaxOracle()`` and ``MeanParts()``."""
        if not (type(direction) is FrankWolfe and type(oracle) is MaxOracle and type(storage) is MeanParts):
            raise ValueError(
                "block_steps=Sequential() is for FrankWolfe(), MaxOracle() and MeanParts(), not for "
                f"{direction}, {oracle} and {type(storage).__name__}()"
            )

    def solve(self, gradients: Any, values: Tensor, weight: float, factor: float = 1.0) -> BatchSteps:
        """By ``BoxQP()``."""
        return BoxQP().solve(gradients, values, weight, factor)

    def visit(
        self,
        potentials: Potentials,
        structure: Structure,
        target: Labeling,
        stored: Stored,
        losses: Tensor,
        lam: float,
        n: int,
    ) -> Visited:
        """See :meth:`BlockSteps.visit`; ValueError or TypeError where the potentials do not record a head
        that it can visit.
        """
        if potentials.called_with is None:
            raise ValueError(
                "block_steps=Sequential() needs a LinearChain or LinearMulticlass head on fixed features, which "
                "the potentials name as called_with: leave block_steps out, which takes BoxQP()"
            )
        if potentials.device.type != "cpu":
            raise TypeError(
                f"block_steps=Sequential() visits examples on the CPU, and the head is on {potentials.device}: leave "
                "block_steps out, which takes BoxQP() there, or call head.to('cpu') and make the dual"
            )
        from torchssvm.solvers.compiled.loop import visit_batch  # it imports Numba, which takes half a second

        assert isinstance(stored, StoredParts)
        head, x = potentials.called_with
        adapter = find_adapter(head)
        if not isinstance(adapter, SequenceAdapter):
            raise TypeError(
                f"block_steps=Sequential() visits chains and classes, and head is {type(head).__name__}(...): "
                "leave block_steps out, which takes BoxQP()"
            )
        if not structure.same_as(adapter.structure):
            raise TypeError(
                f"the dual's structure is {structure}, and Sequential() decodes by the head's, {adapter.structure}"
            )
        rows, examples = (
            _from_lists(adapter, x, target) if isinstance(x, SparseFeatures) else (None, _dense(adapter, x, target))
        )
        model = adapter.model(rows)
        model = model._replace(**{name: getattr(model, name).copy() for name in model._fields[:5]})
        gradient = model._replace(**{name: 0 * getattr(model, name) for name in model._fields[:5]})
        blocks = _blocks(adapter, stored.psi)
        states, batch = adapter.num_states, len(losses)
        longest, pairs = int(np.diff(examples.start).max()), 0 if adapter.pairs is None else states
        sizes = longest, states, model.emission.shape[1], pairs, states, 2
        scratch = make_scratch(*sizes, examples.added.dtype, long_features(examples), longest)
        steps, gaps = np.zeros(batch), np.zeros(batch)
        labels = np.full((batch, stored.psi[adapter.emission].shape[1] if pairs else 1), structure.padding)
        scalars = Scalars(losses.clone().numpy(), gaps, np.zeros(batch))
        options = Options(FrankWolfe.rule, 0, 0.0, False, 0.0, 0.0, lam, n, False)
        counters = np.zeros(4, np.int64)
        visit_batch(examples, model, gradient, blocks, scalars, options, scratch, counters, labels, steps)
        combined = [torch.from_numpy(array).contiguous() for array in adapter.trained(gradient)]
        if rows is not None:
            combined[0] = rows_of(rows, combined[0], adapter.weights()[0].shape, coalesced=True)
        labeling = torch.from_numpy(labels if pairs else labels[:, 0])
        found = structure.examine(labeling, target, potentials.detach())
        return Visited(found, torch.from_numpy(steps), torch.from_numpy(gaps), combined)

    def __repr__(self) -> str:
        return "Sequential()"


def _blocks(adapter: SequenceAdapter, psi: Parts) -> BlockArrays:
    """Copies of the blocks of a batch in the loop's form of mean parts: a rest with all the mass, and no slots."""
    emission = psi[adapter.emission]
    emission = emission if adapter.pairs is not None else emission.unsqueeze(1)
    batch, longest, states = emission.shape
    held = emission.new_zeros(1 + batch * longest, states)  # row 0 is unused: an example whose rows begin at 0 has none
    held[1:] = emission.reshape(-1, states)
    pairs = emission.new_zeros(0, states) if adapter.pairs is None else psi[adapter.pairs].clone().view(-1, states)
    return BlockArrays(
        **without_slots(batch, longest, held.numpy().dtype),
        rest_emission=held.numpy(),
        rest_emission_start=np.arange(batch) * longest + 1,
        rest_transition=pairs.contiguous().numpy(),
        rest_transition_start=np.arange(batch) * adapter.pair_rows,
        rest_used=pairs.any(1).numpy(),
    )


def _dense(adapter: SequenceAdapter, x: Tensor, target: Labeling) -> Examples:
    """The examples of a batch of dense features."""
    tokens = (x if x.ndim == 3 else x.unsqueeze(1)).detach().contiguous()
    y, cost, lengths = adapter.targets(target)
    room = len(y) * tokens.shape[2] + 1
    value, column = torch.empty(room, dtype=tokens.dtype), torch.empty(room, dtype=torch.int32)
    examples = _examples(adapter, y, cost, lengths, torch.zeros_like(y), column, value)
    stored = tokens.shape[1] <= STORED
    gram = (tokens @ tokens.transpose(1, 2) if stored else tokens.new_empty(len(tokens), 0, 0)).numpy()
    lists = (examples.value, examples.column, examples.row, examples.inner)
    list_tokens(tokens.numpy(), gram, lengths.numpy(), adapter.has_bias, *lists)
    if not stored:
        fill_inner(examples, adapter.has_bias)
    return examples


def _from_lists(adapter: SequenceAdapter, x: SparseFeatures, target: Labeling) -> tuple[Tensor, Examples]:
    """The columns that occur in a batch of lists, and its examples restricted to these columns."""
    lists = adapter.features(x, target)
    assert isinstance(lists, Lists)
    rows, local = lists.columns.unique(return_inverse=True)
    examples = _examples(adapter, *adapter.targets(target), lists.counts, local.to(torch.int32), lists.values)
    fill_inner(examples, adapter.has_bias)
    return rows.to(torch.int64), examples


def _examples(
    adapter: SequenceAdapter, y: Tensor, cost: Tensor, lengths: Tensor, counts: Tensor, column: Tensor, value: Tensor
) -> Examples:
    """Packed examples with lists of features; inner products are not filled in yet."""
    inner_start, start = offsets(num_products(lengths)), offsets(lengths).numpy()
    examples = Examples(
        dense=False,
        x=np.empty((0, 0), value.numpy().dtype),
        value=value.numpy(),
        column=column.numpy(),
        row=offsets(counts).numpy(),
        y=y.numpy(),
        cost=cost.numpy(),
        added=cost.to(value.dtype).numpy(),
        weight=np.ones(len(lengths)),
        start=start,
        line=start,
        inner=torch.full((int(inner_start[-1]),), -1.0, dtype=value.dtype).numpy(),
        inner_start=inner_start[:-1].numpy(),
        stored=STORED,
        pair_rows=adapter.pair_rows,
        kind=adapter.kind(),
    )
    return with_types(examples)
