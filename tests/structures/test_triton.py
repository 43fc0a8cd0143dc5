"""The Triton kernels: in the interpreter, through the compiler for real devices, and on CUDA where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from problems import rng
from random_potentials import chains, draw, trees

from torchssvm.core.jit import triton_available
from torchssvm.steps import box_qp
from torchssvm.structures.arborescence.chu_liu_edmonds import max_arborescence
from torchssvm.structures.arborescence.eisner import eisner
from torchssvm.structures.chain.oracle import viterbi
from torchssvm.structures.matching.oracle import best_matching
from torchssvm.structures.multilabel.oracle import best_label_sets
from torchssvm.structures.pose.distance_transform import distance_transform
from torchssvm.structures.tree.oracle import max_sum_tree

HERE = Path(__file__).resolve().parents[1] / "cases"

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from torchssvm.steps import box_qp_triton
from torchssvm.structures.arborescence import chu_liu_edmonds_triton
from torchssvm.structures.arborescence import triton as eisner_triton
from torchssvm.structures.chain import triton as viterbi_triton
from torchssvm.structures.matching import triton as matching_triton
from torchssvm.structures.multilabel import triton as label_sets_triton
from torchssvm.structures.pose import triton as pose_triton
from torchssvm.structures.tree import triton as max_sum_tree_triton

def assemble(kernel, arguments, **constants):
    types = dict(pair.split(":") for pair in arguments.split()) | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=types, constexprs=constants)
    options = {"num_warps": 4, "enable_fp_fusion": False}
    built = triton.compile(source, target=GPUTarget("cuda", 80, 32), options=options)
    assert built.asm["cubin"]
    assert "fma.rn.f" not in built.asm["ptx"]  # it would round once where the CPU rounds twice
    return built.asm

chain = "emission:*fp32 pairs:*fp32 lengths:*i64 pointers:*i16 labels:*i64 value:*fp32"
sizes = "longest:i32 states:i32 by_chain:i64 by_position:i32"
for moves in (True, False):
    assemble(viterbi_triton._decode, f"{chain} {sizes}", width=32, moves=moves)
assemble(viterbi_triton._decode_by_tiles, f"{chain} prefix:*fp32 {sizes}", tile=64)
step = "emission:*fp32 pairs:*fp32 lengths:*i64 pointers:*i16 old:*fp32 new:*fp32 t:i32 batch:i32"
assemble(viterbi_triton._advance, f"{step} longest:i32 states:i32 by_position:i32", tile=64, together=16)
finish = "lengths:*i64 pointers:*i16 labels:*i64 value:*fp32 scores:*fp32 longest:i32 states:i32"
assemble(viterbi_triton._finish, finish, tile=64)
problem = "scores:*fp64 heights:*i64 widths:*i64 chosen:*u8 left:i32 right:i32"
assemble(matching_triton._match, problem, width=64)
spans = "scores:*fp32 lengths:*i64 charts:*fp32 splits:*i32 used:*i8 heads:*i64 value:*fp32 longest:i32"
assemble(eisner_triton._decode, spans, single_root=True, tile=32)
slots = "scores:*fp64 lengths:*i64 best:*fp64 notes:*i32 heads:*i64 value:*fp64 longest:i32"
assemble(chu_liu_edmonds_triton._decode, slots, single_root=True, width=32)
lines = "scores:*fp64 costs:*fp64 value:*fp64 place:*i64 lines:i32 size:i32"
assemble(pose_triton._convolve, lines, targets=64, together=16)
sets = "unary:*fp64 met:*fp64 split:*fp64 labels:*i64 value:*fp64 bound:*fp64 size:i32 by_example:i32 max_rounds:i32"
assemble(label_sets_triton._decode, sets, width=32)
tree = "belief:*fp64 edge:*fp64 parent:*i64 order:*i64 size:*i64 pointers:*i16 labels:*i64 value:*fp64"
assemble(max_sum_tree_triton._decode, f"{tree} longest:i32 states:i32 by_tree:i64 by_node:i32", tile=32)
box = "matrix:*fp64 residual:*fp64 gammas:*fp64 changes:*fp64 size:i32 sweeps:i32"
code = assemble(box_qp_triton._ascend, box, converged=1e-3, block=32, tile=512)
assert "1.000000e-03 : f64" in code["ttir"]
print("assembled")
"""


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
    """Triton's compiler needs no device: types, layouts and, in the box QP, no fused multiply-add."""
    pytest.importorskip("triton")
    assert "assembled" in python("-W", "error", "-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("states", [3, 26, 128, 200, 2000])
def test_cuda_gives_the_bits_of_the_cpu(states):
    for integers in (True, False):
        arguments = chains(1, 5, 6, states, integers=integers)
        for mine, other in zip(viterbi(*(t.cuda() for t in arguments)), viterbi(*arguments), strict=True):
            assert torch.equal(mine.cpu(), other)
        arguments = trees(1, 5, 6, states, integers=integers)
        for mine, other in zip(max_sum_tree(*(t.cuda() for t in arguments)), max_sum_tree(*arguments), strict=True):
            assert torch.equal(mine.cpu(), other)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available() or not triton_available(), reason="there is no CUDA device or Triton")
@pytest.mark.parametrize("integers", [True, False])
def test_decoders_on_cuda_have_the_labels_of_the_cpu(integers):
    random, sizes = rng(1), torch.tensor([3, 7, 1])
    arcs = draw(random, (3, 7, 8), integers, torch.float64)
    edges, images = draw(random, (3, 9, 7), integers, torch.float64), draw(random, (2, 5, 8), integers, torch.float64)
    unary, pairwise = draw(random, (3, 6), integers, torch.float64), draw(random, (15,), integers, torch.float64)
    springs = torch.tensor([1.0, 0.5, 0.25, -1.0])
    for decode, arguments in [
        (eisner, (arcs, sizes, True)),
        (max_arborescence, (arcs, sizes, True)),
        (best_matching, (edges, sizes, sizes)),
        (distance_transform, (images, springs)),
        (lambda *scores: best_label_sets(*scores, effort=10**4)[:2], (unary, pairwise)),
    ]:
        expected, found = decode(*arguments), decode(*(a.cuda() if torch.is_tensor(a) else a for a in arguments))
        for mine, other in zip(*([r] if torch.is_tensor(r) else r for r in (found, expected)), strict=True):
            assert mine.is_cuda
            assert torch.equal(mine.cpu(), other)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available() or not triton_available(), reason="there is no CUDA device or Triton")
@pytest.mark.parametrize("size", [1, 7, 70, 300])
def test_the_box_qp_on_cuda_has_the_bits_of_the_cpu(size):
    factors = torch.randn(size, 5, dtype=torch.float64)
    gram, values = factors @ factors.T, torch.randn(size, dtype=torch.float64)
    found = box_qp.solve_box_qp(gram.cuda(), values.cuda(), 4)
    assert found.is_cuda
    assert torch.equal(found.cpu(), box_qp.solve_box_qp(gram, values, 4))
