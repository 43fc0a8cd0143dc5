"""The Triton kernels: in the interpreter, through the compiler for real devices, and on CUDA where there is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases.problems import rng
from cases.random_potentials import chains, draw, segments, trees

from torchssvm.core.triton_support import triton_available
from torchssvm.steps import box_qp
from torchssvm.structures.arborescence.oracle import eisner, max_arborescence
from torchssvm.structures.chain.oracle import viterbi
from torchssvm.structures.chain.sum_product import sum_product
from torchssvm.structures.matching.oracle import best_matching
from torchssvm.structures.multilabel.oracle import best_label_sets
from torchssvm.structures.pose.oracle import best_along_last
from torchssvm.structures.segments.oracle import semi_markov, semi_markov_marginals
from torchssvm.structures.tree.oracle import max_sum_tree

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parents[1] / "support"
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
    output = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "cases/interpreted_triton.py", TRITON_INTERPRET="1")
    assert "passed" in output
    assert "skipped" not in output


def test_kernels_are_assembled_for_real_devices(tmp_path):
    """Triton's compiler needs no device: types, layouts and no fused multiply-add."""
    pytest.importorskip("triton")
    output = python("-W", "error", "-m", "cases.assembled_triton", TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    assert "for sm_80, sm_90a, sm_100a" in output


@pytest.mark.cuda
@pytest.mark.parametrize("lacking", ["gather", "a compiler"])
def test_torch_runs_where_triton_cannot_compile(lacking, cuda, monkeypatch):
    triton = pytest.importorskip("triton")

    class Driver:
        def get_current_target(self):
            raise FileNotFoundError("gcc")

    if lacking == "gather":
        monkeypatch.delattr(triton.language, "gather")
    else:
        monkeypatch.setenv("TRITON_INTERPRET", "0")
        monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    triton_available.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"3\.3" if lacking == "gather" else "Python.h .*gcc"):
            assert not triton_available()
        factors, values = (
            torch.eye(3, dtype=torch.float64, device=cuda),
            torch.ones(3, dtype=torch.float64, device=cuda),
        )
        assert torch.equal(box_qp.solve_box_qp(factors, values, 2).cpu(), torch.ones(3, dtype=torch.float64))
        labels, _ = viterbi(torch.eye(3, device=cuda).unsqueeze(0), torch.zeros(3, 3, device=cuda))
        assert labels.tolist() == [[0, 1, 2]]
    finally:
        triton_available.cache_clear()


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
@pytest.mark.parametrize("states", [3, pytest.param(64, marks=LARGE), pytest.param(200, marks=LARGE)])
def test_marginals_on_cuda_are_those_of_the_cpu(states, cuda):
    emission, transition, lengths = chains(1, 5, 6, states, dtype=torch.float64)
    segmented = segments(1, 3, 9, min(states, 40), boundary=True, dtype=torch.float64)[:4]
    for find, arguments in [
        (sum_product, (emission, transition, lengths)),
        (sum_product, (emission.float(), transition.expand(5, 5, -1, -1).float(), lengths)),
        (semi_markov_marginals, segmented),
    ]:
        rounding = 1e-12 if arguments[0].dtype == torch.float64 else 1e-5
        for mine, other in zip(find(*(t.to(cuda) for t in arguments)), find(*arguments), strict=True):
            assert mine.is_cuda
            torch.testing.assert_close(mine.cpu(), other, atol=rounding, rtol=rounding)


@pytest.mark.cuda
@pytest.mark.skipif(not triton_available(), reason="Triton is not installed")
@pytest.mark.parametrize("integers", [True, False])
def test_decoders_on_cuda_have_the_labels_of_the_cpu(integers, cuda):
    random, sizes = rng(1), torch.tensor([3, 7, 1])
    arcs = draw(random, (3, 7, 8), integers, torch.float64)
    edges, images = draw(random, (3, 9, 7), integers, torch.float64), draw(random, (2, 5, 8), integers, torch.float64)
    unary, pairwise = draw(random, (3, 6), integers, torch.float64), draw(random, (15,), integers, torch.float64)
    costs = draw(random, (2, 1, 8, 8), integers, torch.float64)
    masked = segments(1, 3, 9, boundary=True, spans=True, integers=integers)
    masked[0][torch.rand(masked[0].shape, generator=random) < 0.2] = -1e30
    for decode, arguments in [
        (eisner, (arcs, sizes, True)),
        (max_arborescence, (arcs, sizes, True)),
        (best_matching, (edges, sizes, sizes)),
        (best_along_last, (images, costs)),
        (semi_markov, segments(1, 3, 9, boundary=True, spans=True, integers=integers)),
        (semi_markov, masked),
        (lambda *scores: best_label_sets(*scores, effort=10**4)[:2], (unary, pairwise)),
    ]:
        expected, labels = decode(*arguments), decode(*(a.cuda() if torch.is_tensor(a) else a for a in arguments))
        for mine, other in zip(*([r] if torch.is_tensor(r) else r for r in (labels, expected)), strict=True):
            assert mine.is_cuda
            assert torch.equal(mine.cpu(), other)


@pytest.mark.cuda
@pytest.mark.skipif(not triton_available(), reason="Triton is not installed")
@pytest.mark.parametrize(("size", "sweeps"), [(1, 4), (7, 4), (70, 4), (321, 1)])
def test_the_box_qp_on_cuda_has_the_bits_of_the_cpu(size, sweeps, cuda):
    factors = torch.randn(size, 5, dtype=torch.float64)
    gram, values = factors @ factors.T, torch.randn(size, dtype=torch.float64)
    solution = box_qp.solve_box_qp(gram.cuda(), values.cuda(), sweeps)
    assert solution.is_cuda
    assert torch.equal(solution.cpu(), box_qp.solve_box_qp(gram, values, sweeps))
