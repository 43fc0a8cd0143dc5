"""Compiled code reads and writes nothing beyond its arrays: a run of the same functions in Python, which checks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.kernels_in_python import run_in_python
from cases.problems import rng

from torchssvm import CacheOracle, Corrective, DualState, FrankWolfe, Labelings, LinearChain, Pairwise
from torchssvm.core.batch import Batch
from torchssvm.solvers.compiled import CompiledBCFW
from torchssvm.steps import Away, Hybrid, MaxOracle


@pytest.mark.slow
@np.errstate(over="ignore")  # digests wrap around
def test_the_compiled_loop_stays_within_its_arrays(monkeypatch):
    """Numpy raises an IndexError where Numba's bounds checks would; features are dense, then sparse.

    Twice two passes execute every line of the loop's kernels that forty passes do.
    """
    run_in_python(monkeypatch)
    n, longest, states = 30, 5, 4
    mixed = 0
    for seed in range(2):
        random = rng(seed)
        x = torch.randn(n, longest, 6, generator=random)
        x[torch.rand(x.shape, generator=random) < 0.7 * seed] = 0.0
        lengths = torch.randint(1, longest + 1, (n,), generator=random)
        y = torch.randint(states, (n, longest), generator=random)
        y[torch.arange(longest) >= lengths.unsqueeze(1)] = -1
        batches = [Batch(x, y, torch.arange(n), lengths)]
        for capacity in (2, 6, 8):
            for direction in (FrankWolfe(), Pairwise(), Away(), Hybrid(), Corrective()):
                for oracle in (MaxOracle(), CacheOracle()):
                    head = LinearChain(6, states)
                    dual = DualState.for_head(head, n, 0.01, storage=Labelings(capacity))
                    loop = CompiledBCFW(head, dual, batches, direction=direction, oracle=oracle, seed=seed)
                    loop.step(2 * n)
                    loop.certify()
                    loop.step(2 * n)
                    mixed += int(dual.storage.mixed.sum())
    assert mixed > 100, mixed
