"""Assemble every Triton kernel for sm_80, sm_90a and sm_100a, without a device, with the arguments it is called with.

``test_triton.py`` runs this file in a process where the interpreter is off.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

import torchssvm
from torchssvm.core.inner_triton import inner_triton
from torchssvm.dual.rows_triton import add_triton, read_triton
from torchssvm.steps.box_qp_triton import ascend_triton
from torchssvm.structures.arborescence.chu_liu_edmonds_triton import max_arborescence_triton
from torchssvm.structures.arborescence.triton import eisner_triton
from torchssvm.structures.chain.labels_triton import add_difference_triton, augment_triton, examine_triton
from torchssvm.structures.chain.triton import viterbi_triton
from torchssvm.structures.matching.triton import best_matching_triton
from torchssvm.structures.multilabel.triton import label_sets_triton
from torchssvm.structures.pose.triton import best_along_last_triton
from torchssvm.structures.tree.triton import max_sum_tree_triton

LABELS, TABLES = torch.empty(2, 5).long(), (torch.empty(2, 5, 26), torch.empty(2, 26, 26))
ROWS = torch.empty(9, 26), torch.empty(4).long(), torch.empty(4).long(), torch.empty(2).long()
KINDS = {80: "sm_80", 90: "sm_90a", 100: "sm_100a"}
calls: dict[str, Any] = {
    "chains": lambda: viterbi_triton(torch.empty(2, 5, 26), torch.empty(26, 26), None),
    "chains with moves for each position": lambda: viterbi_triton(
        torch.empty(2, 5, 26), torch.empty(2, 4, 26, 26), None
    ),
    "chains with many states": lambda: viterbi_triton(torch.empty(2, 5, 150), torch.empty(150, 150), None),
    "trees": lambda: max_sum_tree_triton(
        torch.empty(2, 3, 26).double(), torch.empty(26, 26).double(), torch.tensor([-1, 0, 0]), torch.zeros(2, 3).long()
    ),
    "chains that share tiles": lambda: viterbi_triton(torch.empty(2, 5, 600), torch.empty(600, 600), None),
    "chains with many states and moves for each position": lambda: viterbi_triton(
        torch.empty(2, 5, 600), torch.empty(2, 4, 600, 600), None
    ),
    "matchings": lambda: best_matching_triton(torch.empty(2, 5, 7), None, None),
    "trees of words that do not cross": lambda: eisner_triton(torch.empty(2, 5, 6), None, True),
    "trees of words": lambda: max_arborescence_triton(torch.empty(2, 5, 6), None, True),
    "label sets": lambda: label_sets_triton(torch.empty(2, 5).double(), torch.empty(1, 5, 5).double(), 3),
    "max-convolutions": lambda: best_along_last_triton(torch.empty(2, 3, 5), torch.empty(2, 1, 5, 5)),
    "box QP": lambda: ascend_triton(torch.empty(64, 64), torch.empty(64), 5, 1e-3),
    "box QP of many blocks": lambda: ascend_triton(torch.empty(512, 512), torch.empty(512), 5, 1e-3),
    "box QP of the most blocks": lambda: ascend_triton(torch.empty(4096, 4096), torch.empty(4096), 5, 1e-3),
    "loss of chains": lambda: augment_triton(TABLES[0], LABELS, True),
    "scores of chains": lambda: examine_triton(LABELS, LABELS, *TABLES, True),
    "parts of chains": lambda: add_difference_triton(LABELS, LABELS, *TABLES),
    "rows that are read": lambda: read_triton(*ROWS, 5),
    "rows that change": lambda: add_triton(*ROWS, TABLES[0], torch.empty(2).double()),
    "inner products": lambda: inner_triton(TABLES[0], TABLES[0]),
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
    found, package = {}, Path(torchssvm.__file__).parent
    for file in sorted(package.rglob("*.py")):
        if "@triton.jit" in file.read_text():
            module = importlib.import_module(".".join(("torchssvm", *file.relative_to(package).with_suffix("").parts)))
            for name, value in vars(module).items():
                if isinstance(value, JITFunction) and value.fn.__module__ == module.__name__:
                    found[f"{module.__name__}.{name}"] = value
    return found


assembled: set[str] = set()


def assemble(kernel: JITFunction[Any], grid: Any) -> Any:
    def compile_it(*args: Any, **kwargs: Any) -> None:
        built = kernel.run(*args, grid=grid, warmup=True, **kwargs)
        kind = KINDS[target.capability]
        assert built.asm["cubin"], kernel
        assert re.search(rf"\.target {kind}\b", built.asm["ptx"]), (kernel, kind)
        assert "fma.rn.f" not in built.asm["ptx"]  # it would round once where the CPU rounds twice
        if kernel.fn.__name__ == "_ascend":
            assert "1.000000e-03 : f64" in built.asm["ttir"]
        assembled.add(f"{kernel.fn.__module__}.{kernel.fn.__name__}")

    return compile_it


for capability in KINDS:
    target = Target(capability)
    triton.runtime.driver.set_active(target)
    with patch.object(JITFunction, "__getitem__", assemble):
        for call in calls.values():
            call()

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
