"""Compiled code reads and writes nothing beyond its arrays: a run with Numba's bounds checks on."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import torch
from torchssvm import Away, Corrective, FrankWolfe, Hybrid, Pairwise
from torchssvm import CacheOracle, DualState, Labelings, LinearChain, MaxOracle
from torchssvm.core.batch import Batch
from torchssvm.solvers.compiled import CompiledBCFW

n, longest, states = 30, 5, 4
mixed = 0
for seed in range(8):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, longest, 6, generator=random)
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
                loop.step(20 * n)
                loop.certify()
                loop.step(20 * n)
                mixed += int(dual.storage.mixed.sum())
assert mixed > 100, mixed
"""


def test_the_compiled_loop_stays_within_its_arrays(tmp_path):
    checked = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_FULL_TRACEBACKS": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=checked, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
