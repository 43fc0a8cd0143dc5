"""Numba compiles kernels once for an installation: it says so, and clocks stop meanwhile."""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

_spent = 0.0  # seconds, all compilations that have ended
_since: list[float] = []  # when those under way began; kernels compile the kernels that they call
_told = False


def clock() -> float:
    """Seconds of a clock that stands still while kernels are compiled; only differences have a meaning."""
    now = time.perf_counter()
    return now - _spent - (now - _since[0] if _since else 0.0)


def compiling_seconds() -> float:
    """Seconds that this process has spent on compiling kernels, those under way included."""
    return _spent + (time.perf_counter() - _since[0] if _since else 0.0)


@functools.cache
def watch() -> None:
    """Notice compilations from now on; the first one is announced on stderr."""
    from numba.core import event

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            dispatcher = event.data["dispatcher"]
            inner = dispatcher.targetoptions.get("no_cpython_wrapper")  # of another kernel, with whose code it is kept
            if not inner and dispatcher.py_func.__module__.startswith("torchssvm."):  # users may have kernels too
                _announce(dispatcher)
            _since.append(time.perf_counter())

        def on_end(self, event: Any) -> None:
            global _spent
            began = _since.pop()
            if not _since:
                _spent += time.perf_counter() - began

    event.register("numba:compile", Listener())


def _announce(dispatcher: Any) -> None:
    global _told
    if _told:
        return
    _told = True
    folder = getattr(getattr(dispatcher, "_cache", None), "cache_path", None)
    kept = (
        f"once for each kernel of this installation (kept in {folder})"
        if folder
        else ("in every process: no folder can be written to, so set NUMBA_CACHE_DIR to one that can")
    )
    print(f"torchssvm compiles kernels, which takes some seconds, {kept}", file=sys.stderr, flush=True)
