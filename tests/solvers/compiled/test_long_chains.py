"""Chains beyond the length up to which the products of all pairs of tokens are stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.kernels_in_python import run_in_python
from cases.problems import rng

from torchssvm import (
    CacheOracle,
    Chain,
    DualState,
    FrankWolfe,
    Labelings,
    LinearChain,
    MeanParts,
    Relative,
    SparseFeatures,
    SparseLinearChain,
    make_trainer,
)
from torchssvm.core.batch import Batch
from torchssvm.datasets import PaddedDataset
from torchssvm.solvers.compiled import CompiledBCFW, packing
from torchssvm.steps import Hybrid, MaxOracle
from torchssvm.structures.chain.head import sums_of
from torchssvm.structures.tree import LinearTree


def examples(seed: int, dtype: torch.dtype, *, sparse: bool) -> Batch:
    """Six chains of up to five tokens, with mostly zero features if ``sparse``."""
    random = rng(seed)
    x = torch.randn(6, 5, 4, generator=random, dtype=dtype)
    x[torch.rand(x.shape, generator=random) < 0.7 * sparse] = 0.0
    lengths = torch.randint(1, 6, (6,), generator=random)
    y = torch.randint(3, (6, 5), generator=random)
    y[torch.arange(5) >= lengths.unsqueeze(1)] = -1
    return Batch(x, y, torch.arange(6), lengths)


@np.errstate(over="ignore")  # digests wrap around
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("direction", "oracle", "storage"),
    [(FrankWolfe(), MaxOracle(), MeanParts), (Hybrid(), CacheOracle(), lambda: Labelings(2))],
)
def test_the_steps_are_those_with_stored_products(monkeypatch, sparse, bias, direction, oracle, storage):
    """The kernels run in Python, where the length can be set; a labeling that loses its slot goes to the rest."""
    run_in_python(monkeypatch)
    batch, results = examples(3, torch.float64, sparse=sparse), []
    for stored in (256, 1):
        monkeypatch.setattr(packing, "STORED", stored)
        head = LinearChain(4, 3, bias=bias, boundary=bias, structure=Chain(3, normalize=False)).double()
        dual = DualState.for_head(head, 6, 0.05, storage=storage())
        loop = CompiledBCFW(head, dual, [batch], direction=direction, oracle=oracle)
        loop.step(40)
        certificate = loop.certify()
        results.append(
            (torch.cat([p.detach().flatten() for p in head.parameters()]), certificate.dual, certificate.gap)
        )
        assert (len(loop.examples.inner) > 6) == (stored == 256)
        assert not loop._scratch.plain.sums_of_label.any()
        assert not loop._scratch.plain.pairs.any()
        assert storage is MeanParts or bool(dual.storage.mixed.any())
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-9)


def test_the_memory_of_products_is_linear():
    sizes = packing.num_products(torch.tensor([1, 256, 257, 1_000_000]))
    assert sizes.tolist() == [1, 256 * 257 // 2, 0, 0]


def test_gram_products_are_those_of_all_pairs(monkeypatch):
    batch = examples(5, torch.float64, sparse=True)
    columns = torch.where(batch.x != 0, torch.arange(4), -1)
    inputs = [
        (LinearChain(4, 3).double(), batch.x),
        (SparseLinearChain(4, 3).double(), SparseFeatures(columns, batch.x)),
        (SparseLinearChain(4, 3).double(), SparseFeatures(columns, None)),
        (LinearTree(4, 3, [-1, 0, 0, 1, 1]).double(), batch.x),
    ]
    for head, x in inputs:
        potentials = head(x, batch.lengths)
        parts = {name: torch.randn(t.shape, dtype=t.dtype, generator=rng(1)) for name, t in potentials.tensors.items()}
        results = []
        for stored in (256, 1):
            monkeypatch.setattr("torchssvm.core.sparse_features.STORED", stored)
            results.append(head(x, batch.lengths).gram_product(parts))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-12)


def test_sums_over_many_tokens_are_not_rounded_at_each():
    v = torch.rand(1, 200_000, 2, generator=rng(0)) - 0.2
    total = sums_of(v, torch.tensor([len(v[0])]))[0]
    torch.testing.assert_close(total.double(), v.double().sum(1), rtol=1e-6, atol=0.0)


def test_the_certified_dual_of_a_long_chain_is_that_of_its_labelings():
    """In float32, where adding up 30,000 tokens one by one would round it by more than 1e-6 of itself."""
    n, states, lam = 30_000, 3, 4e7
    x = torch.randn(1, n, 4, generator=rng(0))
    y = torch.where(torch.rand(1, n, generator=rng(1)) < 0.9, x[..., :states].argmax(2), torch.tensor(0))
    trainer = make_trainer(LinearChain(4, states), PaddedDataset(x, y), lam, progress=False)
    certificate = trainer.solve(Relative(0.02), max_passes=60, progress=False)
    sets, target = trainer.dual.storage.sets, y[0].numpy()
    assert float(trainer.dual.storage.rest_mass[0]) < 1e-12 or not bool(trainer.dual.storage.mixed[0])
    weights = [np.zeros((states, 4)), np.zeros((states, states)), *np.zeros((3, states))]
    loss = 0.0
    for c in range(int(sets.count[0])):
        mass, labels = float(sets.mass[0, c]), sets.labelings[0][0, c].numpy().astype(int)
        loss += mass * float((labels != target).mean())
        for states_of, sign in ((target, mass), (labels, -mass)):
            np.add.at(weights[0], states_of, sign * x[0].numpy().astype(float))
            np.add.at(weights[1], (states_of[:-1], states_of[1:]), sign)
            np.add.at(weights[2], states_of, sign)
            weights[3][states_of[0]] += sign
            weights[4][states_of[-1]] += sign
    dual = loss - sum(float((w**2).sum()) for w in weights) / (2 * lam)
    assert certificate.relative_gap <= 0.02
    assert certificate.dual == pytest.approx(dual, rel=2e-7)
