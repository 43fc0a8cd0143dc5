"""Compiled kernels: code of their own, and going on where its files are damaged or cannot be written."""

from __future__ import annotations

import errno
from collections import namedtuple
from pathlib import Path

import numba
import numpy as np
import pytest
from llvmlite.binding import Linkage
from numba.core.caching import IndexDataCacheFile
from numba.core.datamodel import default_manager
from numba.extending import overload

from torchssvm.core import kernel_cache
from torchssvm.core.jit import njit, njit_fastmath
from torchssvm.core.vectors import dot, exact_dot

pytestmark = pytest.mark.slow


def third(x):
    return x / 3


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


def only(folder: Path, ending: str) -> list[Path]:
    return list(folder.rglob(f"*{ending}"))


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"no pickle", None])
def test_damaged_files_are_written_anew(folder, capsys, ending, content):
    assert [call(), call()] == [False, True]
    (file,) = only(folder, ending)
    file.write_bytes(file.read_bytes()[:30] if content is None else content)
    assert [call(), call()] == [False, True]
    said = capsys.readouterr().err
    assert said.count(f"torchssvm: the compiled kernels in {file.parent} cannot be read (") == 1
    assert "set NUMBA_CACHE_DIR to another folder" in said


@pytest.mark.parametrize("method", ["_save_index", "_save_data"])
def test_a_full_disk(folder, capsys, monkeypatch, method):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(IndexDataCacheFile, method, full)
        assert [call(), call()] == [False, False]
    said = capsys.readouterr().err
    assert said.count("cannot be written (OSError: [Errno 28] No space left on device)") == 1
    assert only(folder, ".nbi") == []  # it would name code that may be of an older source
    assert [call(), call()] == [False, True]


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


def reads_and_writes(held, i, j, out):
    x, counts = held.x, held.inner.counts
    row, cell = x[i], x[-1, j]
    out[0] = x[i, j, 1] + x[-1, -2, -1] + x[counts[0], counts[-1], np.uint8(1)]
    out[1] = row[j, 0] + row[-1][1] + cell[0] + cell[-1] + row.size + cell.shape[0] + row.strides[0]
    out[2] = x[:, 1][i, 1] + x[1:, j, 0][-1] + x[..., 1][i, j] + x.T[1, j, i]
    out[3] = held.flags[i] + held.flags[-1] * 2
    out[-1] = counts[i] * held.inner.scale
    held.flags[j] = not held.flags[j]
    counts[-1] = out[0]
    row[j, 1] += 1
    x[0][1] = 7.0
    if held.none is None:
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
        held = outer(x, np.array([True, False, True]), None, inner(np.array([1, 0, -2], np.int32), 0.5))
        out = np.zeros(6)
        run(held, i, j, out)
        results.append((out, *held[:2], held.inner.counts))
    for compiled, plain in zip(*results, strict=True):
        np.testing.assert_array_equal(compiled, plain)


@pytest.mark.parametrize(("package", "pointer"), [("torchssvm.kinds", True), ("theirs", False)])
def test_named_tuples_of_others_are_held_as_numba_holds_them(package, pointer):
    """Only those of this package are pointers: others may be known to kernels of other packages."""
    kind = namedtuple("Kind", ["features", "values"], module=package)
    model = default_manager.lookup(numba.typeof(kind(3, np.ones(2))))
    assert model.get_value_type().is_pointer == pointer
