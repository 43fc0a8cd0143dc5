"""Kernels compile and go on where the files of those that are compiled are damaged, or cannot be written."""

from __future__ import annotations

import errno
from pathlib import Path

import numba
import pytest
from numba.core.caching import IndexDataCacheFile

from torchssvm.core import kernel_cache
from torchssvm.core.jit import njit

pytestmark = pytest.mark.slow


def third(x):
    return x / 3


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
