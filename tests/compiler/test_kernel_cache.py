"""Compiled kernels: code of users, and going on where files of the cache are damaged or cannot be written."""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import numba
import numpy as np
import pytest
from llvmlite.binding import Linkage
from numba.core.datamodel import default_manager
from numba.extending import overload

import torchssvm
from torchssvm.compiler import kernel_cache, kernel_sources
from torchssvm.compiler.jit import ByKind, Kernel, njit, njit_fastmath
from torchssvm.compiler.kernel_sources import digest_of
from torchssvm.compiler.placed import type_of
from torchssvm.compiler.vectors import dot, exact_dot
from torchssvm.kinds.examples import Listed
from torchssvm.structures.chain.kind import Sequences

pytestmark = pytest.mark.slow


def third(x):
    return x / 3


def half(x):
    return x / 2


def products(a, b):
    return dot(a, b), exact_dot(a, b)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "_told", False)
    return tmp_path


def call() -> bool:
    """Call the kernel as a new process would; whether its code came from the cache."""
    kernel = njit(third)
    assert kernel(3.0) == 1.0
    return bool(kernel.dispatcher.stats.cache_hits)


def files(folder: Path) -> list[Path]:
    return list(folder.rglob("*.kernel"))


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"no pickle" * 9, None, "one bit"])
def test_damaged_files_are_written_anew(folder, capsys, content):
    assert [call(), call()] == [False, True]
    (file,) = files(folder)
    before = file.read_bytes()
    flipped = before[:-9] + bytes([before[-9] ^ 1]) + before[-8:]
    file.write_bytes(before[:30] if content is None else flipped if content == "one bit" else content)
    assert [call(), call()] == [False, True]
    said = capsys.readouterr().err
    assert said.count(f"torchssvm: the compiled kernels in {file.parent} cannot be read (") == 1
    assert "set NUMBA_CACHE_DIR to another folder" in said


def test_a_full_disk(folder, capsys, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert [call(), call()] == [False, False]
    said = capsys.readouterr().err
    assert said.count("cannot be written (OSError: [Errno 28] No space left on device)") == 1
    assert files(folder) == []
    assert [call(), call()] == [False, True]


def test_files_that_no_process_has_read_for_long_are_removed(folder):
    call()
    (file,) = files(folder)
    old, kept = (file.with_name(f"{name}.kernel") for name in ("old", "kept"))
    for other, days in ((old, 100), (kept, 80)):
        other.write_bytes(b"")
        os.utime(other, (time.time() - 86400 * days,) * 2)
    assert njit(half)(3.0) == 1.5
    assert kept in files(folder)
    assert old not in files(folder)


CALLED = """
from torchssvm.compiler.jit import njit
SCALE = 2.0
@njit
def scaled(x):
    return SCALE * x
"""
CALLER = """
import called
from torchssvm.compiler.jit import njit
@njit
def plus_one(x):
    return called.scaled(x) + 1.0
print(plus_one(3.0), "loaded" if plus_one.dispatcher.stats.cache_hits else "compiled")
"""


def test_an_edit_of_a_called_file_is_compiled(tmp_path):
    def run(called):
        (tmp_path / "called.py").write_text(called)
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "caller.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert len(files(tmp_path)) == 1  # the old code is removed
        return done.stdout.strip()

    (tmp_path / "caller.py").write_text(CALLER)
    assert run(CALLED) == "7.0 compiled"
    assert run(CALLED.replace("SCALE = 2.0", "# a comment\nSCALE = 2.0")) == "7.0 loaded"
    assert run(CALLED.replace("SCALE = 2.0", "SCALE = 4.0")) == "13.0 compiled"
    assert run(CALLED.replace("SCALE * x", "SCALE * x + x")) == "10.0 compiled"


def kernels() -> dict[str, Kernel]:
    """Every kernel of the package, by name."""
    named = {}
    for module in pkgutil.walk_packages(torchssvm.__path__, "torchssvm."):
        if module.name.partition(".")[2].split(".")[0] not in ("cli", "lightning", "estimators", "transformers"):
            for value in vars(importlib.import_module(module.name)).values():
                several = value._versions.values() if isinstance(value, ByKind) else [value]
                named |= {f"{k.__module__}.{k.__qualname__}": k for k in several if isinstance(k, Kernel)}
    return named


def test_every_kernel_of_the_package_is_kept():
    assert len(kernels()) > 300
    for kernel in kernels().values():
        digest_of(kernel, [])


def reached(kernel, classes) -> set[Kernel]:
    waiting, seen = [kernel], set()
    while waiting:
        for callee in kernel_sources._content(waiting.pop())[1]:
            versions = [kernel for _, kernel in callee.versions(classes)] if isinstance(callee, ByKind) else [callee]
            new = set(versions) - seen
            waiting += new
            seen |= new
    return seen


@pytest.mark.parametrize(
    ("name", "callee"),
    [("solvers.compiled.loop.visit_blocks", "insert"), ("solvers.compiled.exact_pass.exact_ranges", "potentials")],
)
def test_code_and_constants_of_every_called_kernel_count(monkeypatch, name, callee):
    kernel, classes = kernels()[f"torchssvm.{name}"], [Listed, Sequences]
    before = digest_of(kernel, classes)
    called = reached(kernel, classes)
    assert {callee, "decode"} <= {other.__name__ for other in called}
    for other in called:
        code = other.py_func.__code__
        with monkeypatch.context() as patch:
            patch.setattr(other.py_func, "__code__", code.replace(co_consts=(*code.co_consts, "an edit")))
            kernel_sources._first.clear()
            assert digest_of(kernel, classes) != before, other.__name__
    kernel_sources._first.clear()
    assert digest_of(kernel, classes) == before
    monkeypatch.setattr(torchssvm.solvers.compiled.loop, "CORRECTIVE", 77)
    kernel_sources._first.clear()
    assert (digest_of(kernel, classes) != before) == ("loop" in name)


def enclosing(value):
    return njit(lambda x: x + value[0])


def test_constants_are_read_and_values_that_change_are_not_kept(folder):
    assert digest_of(enclosing((1.0,)), []) != digest_of(enclosing((2.0,)), [])
    assert digest_of(enclosing(np.ones(1)), []) != digest_of(enclosing(np.zeros(1)), [])
    with pytest.raises(kernel_sources.NotConstant):
        digest_of(enclosing([1.0]), [])


def numbered(order):
    return enclosing(namedtuple("Numbered", order)(1.0, 2.0))


def with_local(dtype):
    @numba.njit(locals={"share": dtype})
    def third(x):
        share = x / 3
        return share

    return third


Left, Right = namedtuple("Left", "size"), namedtuple("Right", "size")


def versions(left, right):
    @ByKind
    def size(kind):
        """None but those of kinds."""

    size.of(Left)(njit(left))
    size.of(Right)(njit(right))
    return size


def given(size):
    return njit(lambda pair: size(pair[0]) - size(pair[1]))


def made_within(size):
    return njit(lambda x: size(Left(x)) - size(Right(x)))


def once(kind):
    return kind.size


def twice(kind):
    return 2 * kind.size


@pytest.mark.parametrize(
    ("one", "other", "classes"),
    [
        (numbered("x y"), numbered("y x"), []),
        (with_local(numba.float64), with_local(numba.float32), []),
        (given(versions(once, twice)), given(versions(twice, once)), [Left, Right]),
        (made_within(versions(once, twice)), made_within(versions(once, once)), []),
        (njit(lambda x: x[1:][...]), njit(lambda x: x[:1][...]), []),
    ],
    ids=["fields", "locals", "kinds given", "kinds made", "parts"],
)
def test_whatever_changes_the_code_counts(one, other, classes):
    assert digest_of(one, classes) != digest_of(other, classes)


RATE = 1.0


def test_a_constant_that_this_process_has_changed_is_not_kept(monkeypatch):
    """Numba has the old one in the code that it has made, and the new one in what it makes now."""
    kernel = njit(lambda x: x * RATE)
    digest_of(kernel, [])
    monkeypatch.setitem(globals(), "RATE", 2.0)
    with pytest.raises(kernel_sources.NotConstant):
        digest_of(kernel, [])


OWN_KIND = """
import sys
from typing import NamedTuple
import torch
from torch import nn
from torchssvm import Structure, solve
from torchssvm.compiler.jit import compiling_seconds, njit
from torchssvm.datasets import PaddedDataset
from torchssvm.kinds import Form, block

COST = 1.0

class Sets(NamedTuple):
    size: int

@block.list_parts.of(Sets)
@njit
def list_parts(kind, examples, i, labels, other, task):
    total = 0.0
    for k in range(kind.size):
        total += block.amount(task, task.rows, 0, k, labels[k], other[k])
    return total

@block.decode.of(Sets)
@njit
def decode(kind, examples, i, length, scratch, pairs, labels):
    for k in range(kind.size):
        labels[k] = scratch.emission[0, k] + (-COST if examples.y[examples.start[i] + k] else COST) > 0.0
    return block.loss_of(kind, examples, i, labels)

class LabelSet(Structure):
    def argmax(self, potentials):
        return (potentials.tensors["potentials"] > 0).long()
    def parts(self, labeling):
        return labeling.float()
    def loss(self, labeling, target):
        return COST * (labeling != target).sum(1)
    def loss_potentials(self, target):
        return COST * (1.0 - 2.0 * target), COST * target.sum(1)

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.structure = nn.Parameter(torch.zeros(3, 4)), LabelSet()
    def forward(self, x):
        return x @ self.weight.T
    def compiled_form(self):
        return Form(self, Sets(3), self.weight.T, cost=COST)

x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
certificate = solve(Head(), PaddedDataset(x, (x[:, :3] > 0.3).long()), lam=0.1, progress=False)
print(certificate.primal.hex(), certificate.dual.hex(), compiling_seconds() > 0.0)
"""


def test_kinds_of_users_are_kept(tmp_path):
    def run(text):
        (tmp_path / "own.py").write_text(text)
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, "own.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first, second = run(OWN_KIND), run(OWN_KIND)
    assert [first[2], second[2]] == ["True", "False"]
    assert first[:2] == second[:2]
    count = len(files(tmp_path))
    other = run(OWN_KIND.replace("COST = 1.0", "COST = 2.0"))
    assert other[2] == "True"
    assert other[:2] != first[:2]
    assert len(files(tmp_path)) == count


def test_kernels_share_no_code():
    """A process keeps the first code of a name that it loads; its rounding may be another than that of this kernel."""
    kernel = njit(products)
    assert kernel(np.arange(3.0), np.ones(3)) == (3.0, 3.0)
    (compiled,) = kernel.dispatcher.overloads.values()
    defined = [f for f in compiled.library._final_module.functions if not f.is_declaration]
    of_all = {f.name for f in defined if f.linkage != Linkage.internal}
    assert len(defined) > len(of_all)
    assert all("products" in name for name in of_all)


def quotient(a, b):
    raise NotImplementedError


@overload(quotient)
def _quotient(a, b):
    return lambda a, b: a / b * b


def test_operations_are_compiled_with_the_options_of_the_kernel(monkeypatch):
    """What operations mean is kept for the next kernel, of the same options alone."""
    monkeypatch.setattr(kernel_cache.KernelCache, "load_overload", lambda *_: None)
    for make in (njit, njit_fastmath) * 2:
        kernel = make(lambda a, b: quotient(a, b))
        assert kernel(3.0, 2.0) == 3.0
        (compiled,) = kernel.dispatcher.overloads.values()
        assert ("reassoc" in str(compiled.library._final_module)) == (make is njit_fastmath)


Made = namedtuple("Made", ["counts", "number"], module="torchssvm.kinds")


def reads_and_writes(record, i, j, out):
    x, counts = record.x, record.inner.counts
    row, cell = x[i], x[-1, j]
    out[0] = x[i, j, 1] + x[-1, -2, -1] + x[counts[0], counts[-1], np.uint8(1)]
    out[1] = row[j, 0] + row[-1][1] + cell[0] + cell[-1] + row.size + cell.shape[0] + row.strides[0]
    out[2] = x[:, 1][i, 1] + x[1:, j, 0][-1] + x[..., 1][i, j] + x.T[1, j, i]
    out[3] = record.flags[i] + record.flags[-1] * 2
    out[-1] = counts[i] * record.inner.scale
    record.flags[j] = not record.flags[j]
    counts[-1] = out[0]
    row[j, 1] += 1
    x[0][1] = 7.0
    if record.none is None:
        out[4] = x.sum()
    for k in range(3):
        made = Made(counts, k + j)
        out[3] += made.number * made.counts[0]


@pytest.mark.parametrize("package", ["torchssvm.kinds", "theirs"])
@pytest.mark.parametrize(("i", "j"), [(0, 1), (1, 2), (-1, -3)])
def test_fields_elements_and_parts_are_those_of_numpy(package, i, j):
    outer = namedtuple("Outer", ["x", "flags", "none", "inner"], module=package)
    inner = namedtuple("Inner", ["counts", "scale"], module="torchssvm.kinds")
    results = []
    for run in (njit(reads_and_writes), reads_and_writes):
        x = np.arange(12.0).reshape(2, 3, 2)
        stored = outer(x, np.array([True, False, True]), None, inner(np.array([1, 0, -2], np.int32), 0.5))
        out = np.zeros(6)
        run(stored, i, j, out)
        results.append((out, *stored[:2], stored.inner.counts))
    for compiled, plain in zip(*results, strict=True):
        np.testing.assert_array_equal(compiled, plain)


@pytest.mark.parametrize("package", ["torchssvm.kinds", "theirs"])
def test_named_tuples_of_others_are_held_as_numba_holds_them(package):
    """Those that a kernel of this package gets are pointers; they may be known to kernels of other packages."""
    value = namedtuple("Kind", ["features", "values"], module=package)(3, np.ones(2))
    assert not default_manager.lookup(numba.typeof(value)).get_value_type().is_pointer
    assert default_manager.lookup(type_of(value)).get_value_type().is_pointer
