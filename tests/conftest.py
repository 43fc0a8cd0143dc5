from __future__ import annotations

import gc
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.covering import mark_repeated

torch.set_num_threads(1)
if not torch.cuda.is_available():  # before anything imports Triton: its kernels run on the pretended device
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays: the garbage collector need not look through it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files come first, so that two processes that begin at both ends meet where files are short."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/solvers/"))
    mark_repeated(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[Any]:
    """A test that needs an extra which is not installed is skipped; ``.ci/run`` installs them all."""
    try:
        return (yield)
    except ImportError as error:
        if "pip install 'torchssvm[" in str(error):
            pytest.skip(str(error))
        raise


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process runs all tests of a file: what they share is made once, and a kernel is compiled by one process.

    Files go in their order, half of the processes from the first one and half from the last: neighbours need the same
    kernels, and two processes that reach them at one time would both compile them.
    """
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FromBothEnds(LoadFileScheduling):
        def _assign_work_unit(self, node: Any) -> None:
            if self.nodes.index(node) % 2:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return FromBothEnds(config, log)


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    """A CUDA device: a real one, or the pretended one where there is none."""
    if torch.cuda.is_available():
        yield torch.device("cuda")
        return
    from cases.pretended_device import pretended_device

    with pretended_device() as device:
        yield device


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return request.getfixturevalue("cuda") if request.param == "cuda" else torch.device("cpu")


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads, for this test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def run_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Run a script in this process, where what takes seconds to import has been imported; gives what it printed."""
    threads, path = torch.get_num_threads(), list(sys.path)
    monkeypatch.setenv("MPLBACKEND", "Agg")

    def run_script(script: Path, *flags: object) -> str:
        monkeypatch.syspath_prepend(str(script.parent))
        monkeypatch.setattr(sys, "argv", [str(script), *map(str, flags)])
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out

    yield run_script
    torch.set_num_threads(threads)
    sys.path[:] = path
