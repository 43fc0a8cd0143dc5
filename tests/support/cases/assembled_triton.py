"""Assemble every Triton kernel for sm_80, sm_90a and sm_100a, without a device, with the arguments it is called with.

``test_triton.py`` runs this file in a process where the interpreter is off.
"""

from __future__ import annotations

import importlib
import itertools
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import torchssvm
from cases.random_potentials import segments
from torchssvm.core.inner_triton import inner_triton
from torchssvm.dual.mean_parts_triton import add_triton, read_triton
from torchssvm.steps.box_qp_triton import ascend_triton
from torchssvm.structures.arborescence.chu_liu_edmonds_triton import max_arborescence_triton
from torchssvm.structures.arborescence.triton import eisner_triton
from torchssvm.structures.chain.biases_triton import add_everywhere_triton, sum_everywhere_triton
from torchssvm.structures.chain.sum_product_triton import sum_product_triton
from torchssvm.structures.chain.triton import viterbi_triton
from torchssvm.structures.labelled_triton import mean_loss_triton
from torchssvm.structures.matching.triton import best_matching_triton
from torchssvm.structures.multilabel.triton import label_sets_triton
from torchssvm.structures.pose.triton import best_along_last_triton
from torchssvm.structures.segments.marginals_triton import marginals_triton
from torchssvm.structures.segments.triton import semi_markov_triton
from torchssvm.structures.tree.triton import max_sum_tree_triton

LABELS, TABLES = torch.empty(2, 5).long(), (torch.empty(2, 5, 26), torch.empty(2, 26, 26))
ROWS = torch.empty(9, 26), torch.empty(4).long(), torch.empty(4).long(), torch.empty(2).long()
# One build for each power of two that holds the nodes, tokens or blocks; and for transitions at each position.
WITH_WIDTHS = {
    "structures.arborescence.chu_liu_edmonds_triton._decode",
    "structures.arborescence.triton._decode",
    "structures.chain.sum_product_triton._sum_product",
    "structures.chain.triton._decode",
    "structures.matching.triton._match",
    "steps.box_qp_triton._ascend",
}
KINDS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a"}
calls: dict[str, Any] = {
    "chains": lambda: viterbi_triton(torch.empty(2, 5, 26), torch.empty(26, 26), None),
    "chains with moves for each position": lambda: viterbi_triton(
        torch.empty(2, 5, 26), torch.empty(2, 4, 26, 26), None
    ),
    "chains of 128 states": lambda: viterbi_triton(
        torch.empty(2, 5, 128).double(), torch.empty(128, 128).double(), None
    ),
    "chains with many states": lambda: viterbi_triton(torch.empty(2, 5, 150), torch.empty(150, 150), None),
    "trees": lambda: max_sum_tree_triton(
        torch.empty(2, 3, 26).double(), torch.empty(26, 26).double(), torch.tensor([-1, 0, 0]), torch.zeros(2, 3).long()
    ),
    "chains that share tiles": lambda: viterbi_triton(torch.empty(2, 5, 600), torch.empty(600, 600), None),
    "chains with many states and moves for each position": lambda: viterbi_triton(
        torch.empty(2, 5, 600), torch.empty(2, 4, 600, 600), None
    ),
    "segments": lambda: semi_markov_triton(*segments(0)),
    "segments of 64 labels, spans counted": lambda: semi_markov_triton(
        *segments(1, labels=64, most=100, boundary=True, spans=True, dtype=torch.float64)
    ),
    "marginals of chains": lambda: sum_product_triton(torch.empty(2, 5, 26), torch.empty(26, 26), None),
    "marginals of chains with moves for each position": lambda: sum_product_triton(
        torch.empty(2, 5, 26), torch.empty(2, 4, 26, 26), None
    ),
    "marginals of chains of 128 states": lambda: sum_product_triton(
        torch.empty(2, 5, 128), torch.empty(128, 128), None
    ),
    "marginals of chains of 64 states, float64": lambda: sum_product_triton(
        torch.empty(2, 5, 64).double(), torch.empty(64, 64).double(), None
    ),
    "marginals of segments": lambda: marginals_triton(*segments(0, dtype=torch.float64)[:4]),
    "marginals of segments of 32 labels": lambda: marginals_triton(
        *segments(1, labels=32, most=100, boundary=True, dtype=torch.float64)[:4]
    ),
    "matchings": lambda: best_matching_triton(torch.empty(2, 5, 7), None, None),
    "matchings of 2048 nodes a side": lambda: best_matching_triton(torch.empty(2, 2048, 2048), None, None),
    "trees of words that do not cross": lambda: eisner_triton(torch.empty(2, 5, 6), None, True),
    "trees of 200 words that do not cross": lambda: eisner_triton(torch.empty(2, 200, 201), None, True),
    "trees of words": lambda: max_arborescence_triton(torch.empty(2, 5, 6), None, True),
    "trees of 1023 words": lambda: max_arborescence_triton(torch.empty(2, 1023, 1024), None, True),
    "label sets": lambda: label_sets_triton(torch.empty(2, 5).double(), torch.empty(1, 5, 5).double(), 3),
    "sets of 1024 labels": lambda: label_sets_triton(
        torch.empty(2, 1024).double(), torch.empty(1, 1024, 1024).double(), 3
    ),
    "max-convolutions": lambda: best_along_last_triton(torch.empty(2, 3, 5), torch.empty(2, 1, 5, 5)),
    "box QP": lambda: ascend_triton(torch.empty(64, 64), torch.empty(64), 5, 1e-3),
    "box QP of 1024 blocks": lambda: ascend_triton(torch.empty(1024, 1024), torch.empty(1024), 5, 1e-3),
    "box QP of more blocks": lambda: ascend_triton(torch.empty(1100, 1100), torch.empty(1100), 5, 1e-3),
    "rows that are read": lambda: read_triton(*ROWS, 5),
    "rows that change": lambda: add_triton(*ROWS, TABLES[0], torch.empty(2).double()),
    "mean losses of labels": lambda: mean_loss_triton(TABLES[0], LABELS, torch.empty(LABELS.shape).double()),
    "biases of chains": lambda: add_everywhere_triton(TABLES[0], LABELS[:, 0], *torch.empty(3, TABLES[0].shape[2])),
    "sums of chains": lambda: sum_everywhere_triton(TABLES[0], LABELS[:, 0].contiguous()),
    "inner products": lambda: inner_triton([(TABLES[0], TABLES[0])]),
}


class Target:
    """What Triton asks a driver."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


def all_kernels() -> dict[str, JITFunction[Any]]:
    """Every function that a module of the package decorates with ``triton.jit``, by its place."""
    results, package = {}, Path(torchssvm.__file__).parent
    for file in sorted(package.rglob("*.py")):
        if "@triton.jit" in file.read_text():
            module = importlib.import_module(".".join(("torchssvm", *file.relative_to(package).with_suffix("").parts)))
            for name, value in vars(module).items():
                if isinstance(value, JITFunction) and value.fn.__module__ == module.__name__:
                    results[f"{module.__name__}.{name}"] = value
    return results


def builds_of_a_ragged_epoch() -> Counter[tuple[str, str, str]]:
    """How often Triton compiles each kernel for one kind of arguments and widths, while lengths and batches differ."""
    builds: Counter[tuple[str, str, str]] = Counter()

    def compile_it(source: Any, target: Any, options: Any) -> object:
        kinds = [kind for kind in source.signature.values() if kind != "constexpr"]
        widths = [*source.constants.values(), options["num_warps"]]
        name = f"{source.fn.fn.__module__}.{source.fn.fn.__name__}"
        builds[name, str(kinds), str(widths)] += 1
        return object()

    def launch(kernel: JITFunction[Any], grid: Any) -> Any:
        return partial(kernel.run, grid=grid, warmup=True)

    triton.runtime.driver.set_active(Target(0))  # Triton keeps kernels by device: none of these is assembled later
    with patch("triton.compiler.compile", compile_it), patch.object(JITFunction, "__getitem__", launch):
        for batch, size in itertools.product((1, 2, 3, 16), (1, 2, 7, 15, 16, 17, 32, 100, 1000)):
            for dtype in (torch.float32, torch.float64):
                ragged_calls(batch, size, lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype))
    return builds


def ragged_calls(batch: int, size: int, empty: Callable[..., Tensor]) -> None:
    """Launch every kernel for a batch of examples of this length."""
    labels, lengths = torch.zeros(batch, size).long(), torch.full((batch,), size)
    emission, pairs = empty(batch, size, 6), empty(batch, 6, 6)
    for transition in (pairs[0], pairs, empty(batch, size - 1, 6, 6)):
        viterbi_triton(emission, transition, lengths)
        sum_product_triton(emission, transition, lengths)
    max_sum_tree_triton(emission, pairs[0], torch.arange(size) - 1, labels)
    max_sum_tree_triton(emission, empty(batch, size, 6, 6), torch.arange(size) - 1, labels)
    every = torch.ones(6, dtype=torch.int64)
    semi_markov_triton(emission, empty(batch, 16, 6), every, lengths, labels)
    marginals_triton(emission.double(), empty(batch, 16, 6).double(), every, lengths)
    eisner_triton(empty(batch, size, size + 1), lengths, True)
    max_arborescence_triton(empty(batch, size, size + 1), lengths, True)
    best_matching_triton(empty(batch, size, size + 2), lengths, lengths)
    best_along_last_triton(empty(batch, 16, size), empty(batch, 1, size, size))
    label_sets_triton(empty(batch, 6).double(), empty(batch, 6, 6).double(), 1 + size)
    ascend_triton(empty(size, size), empty(size), 5, 1e-3)
    rows, places = empty(1 + batch * size, 6), torch.arange(batch)
    add_triton(rows, places, places, places, emission, torch.empty(batch).double())
    inner_triton([(emission, read_triton(rows, places, places, places, size))])
    inner_triton([(emission, emission[:1])])
    mean_loss_triton(emission, labels, torch.empty(batch, size).double())
    add_everywhere_triton(emission, places, *empty(3, 6))
    sum_everywhere_triton(emission, places)
    viterbi_triton(empty(batch, min(size, 17), 520), empty(520, 520), lengths.clamp(max=17))
    viterbi_triton(empty(batch, min(size, 17), 520), empty(batch, 520, 520), lengths.clamp(max=17))


builds = builds_of_a_ragged_epoch()
again = {key: count for key, count in builds.items() if count > 1}
assert not again, f"kernels are compiled again for other lengths: {again}"
widths = Counter((name, kinds) for name, kinds, _ in builds)
several = {name for (name, _), count in widths.items() if count > 1}
most = Counter(name for name, _ in widths)
assert max(most.values()) <= 2, f"more than float32 and float64: {most}"
assert {name.removeprefix("torchssvm.") for name in several} == WITH_WIDTHS, several

assembled: set[str] = set()
table: dict[tuple[str, str], dict[str, tuple[int, int]]] = defaultdict(dict)


def used(built: Any) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack, which hold what does not fit into them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert result, said
    return int(result[1]), int(result[2])


def assemble(kernel: JITFunction[Any], grid: Any) -> Any:
    def compile_it(*args: Any, **kwargs: Any) -> None:
        built = kernel.run(*args, grid=grid, warmup=True, **kwargs)
        kind = KINDS[target.capability]
        assert built.asm["cubin"], kernel
        assert re.search(rf"\.target {kind}\b", built.asm["ptx"]), (kernel, kind)
        if "_sum_product" not in kernel.fn.__name__:  # whose exponentials have such steps
            assert "fma.rn.f" not in built.asm["ptx"]  # it would round once where the CPU rounds twice
        if kernel.fn.__name__.startswith("_ascend"):
            assert "1.000000e-03 : f64" in built.asm["ttir"]
        assembled.add(f"{kernel.fn.__module__}.{kernel.fn.__name__}")
        table[what, f"`{kernel.fn.__module__.removeprefix('torchssvm.')}.{kernel.fn.__name__}`"][kind] = used(built)

    return compile_it


for capability in KINDS:
    target = Target(capability)
    triton.runtime.driver.set_active(target)
    with patch.object(JITFunction, "__getitem__", assemble):
        for what in calls:
            calls[what]()
spilled = {key: row for key, row in table.items() if any(spills > 64 for _, spills in row.values())}
assert not spilled, f"spills of more than 64 bytes: {spilled}"

known = all_kernels()
called = {
    f"{function.fn.__module__}.{name}"
    for function in known.values()
    for name in function.fn.__code__.co_names
    if f"{function.fn.__module__}.{name}" in known
}
missing = set(known) - assembled - called
assert not missing, f"add a call of each of these kernels to calls: {sorted(missing)}"
print("assembled", len(assembled), "kernels for", ", ".join(KINDS.values()))
if "--table" in sys.argv:
    print("\n| calls | kernel |", " | ".join(KINDS.values()), "|\n| --- | --- |", " ---: |" * len(KINDS))
    for (what, kernel), row in table.items():
        numbers = [f"{registers} + {stack}" if stack else str(registers) for registers, stack in row.values()]
        print("|", what, "|", kernel, "|", " | ".join(numbers), "|")
