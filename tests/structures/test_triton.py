"""The Triton kernels: in the interpreter, through the compiler for real devices, and on CUDA where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from random_potentials import chains, trees

from torchssvm.core.jit import triton_available
from torchssvm.steps import box_qp
from torchssvm.structures.chain.oracle import viterbi
from torchssvm.structures.tree.oracle import max_sum_tree

HERE = Path(__file__).resolve().parents[1] / "cases"

LARGE = pytest.mark.skipif(not torch.cuda.is_available(), reason="takes minutes in the interpreter of Triton")


def python(*arguments, **environment):
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=HERE,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_kernels_in_the_interpreter():
    pytest.importorskip("triton")
    found = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "interpreted_triton.py", TRITON_INTERPRET="1")
    assert "passed" in found
    assert "skipped" not in found


def test_kernels_are_assembled_for_real_devices(tmp_path):
    """Triton's compiler needs no device: types, layouts and no fused multiply-add."""
    pytest.importorskip("triton")
    found = python("-W", "error", "assembled_triton.py", TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    assert "for sm_80, sm_90a, sm_100a" in found


@pytest.mark.cuda
@pytest.mark.parametrize("states", [3, 26, 128, pytest.param(200, marks=LARGE), pytest.param(2000, marks=LARGE)])
def test_cuda_gives_the_bits_of_the_cpu(states, cuda):
    for integers in (True, False):
        arguments = chains(1, 5, 6, states, integers=integers)
        for mine, other in zip(viterbi(*(t.cuda() for t in arguments)), viterbi(*arguments), strict=True):
            assert torch.equal(mine.cpu(), other)
        arguments = trees(1, 5, 6, states, integers=integers)
        for mine, other in zip(max_sum_tree(*(t.cuda() for t in arguments)), max_sum_tree(*arguments), strict=True):
            assert torch.equal(mine.cpu(), other)


@pytest.mark.cuda
@pytest.mark.skipif(not triton_available(), reason="Triton is not installed")
@pytest.mark.parametrize("size", [1, 7, 64, pytest.param(1000, marks=LARGE)])
def test_the_box_qp_on_cuda_has_the_bits_of_the_cpu(size, cuda):
    factors = torch.randn(size, 5, dtype=torch.float64)
    gram, values = factors @ factors.T, torch.randn(size, dtype=torch.float64)
    found = box_qp.solve_box_qp(gram.cuda(), values.cuda(), 4)
    assert found.is_cuda
    assert torch.equal(found.cpu(), box_qp.solve_box_qp(gram, values, 4))
