"""The pool of threads: contiguous ranges of about equal work, one for each thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch

# Numba's parallel loops do not work here: the default threading layer aborts the process if two Python threads enter it
# at once, and its pools do not survive a fork.

Result = TypeVar("Result")


def run_in_chunks(
    function: Callable[[int, int, int], Result], sizes: Sequence[int] | np.ndarray, *, grain: float = 0.0
) -> list[Result]:
    """The results of ``function(begin, end, index)`` for contiguous ranges of about equal work, one for each thread.

    The calling thread takes the first range, then any range that no other thread has started, so that a busy pool
    cannot block it. ``function`` should release the GIL, and must not depend on thread-local settings such as
    ``torch.no_grad``. At most ``torch.get_num_threads()`` threads run; nested calls are not split. The first exception
    is raised after all ranges are done.

    Args:
        function: Processes items ``begin`` to ``end - 1``; ``index`` is the number of the range, from 0.
        sizes: The work of each item, non-negative, in any unit.
        grain: The work done in the time another thread takes to wake up. The calling thread, which starts at once,
            gets that much more work, and every range has at least that much on average.
    """
    count = len(sizes)
    if not count:
        return []
    threads = 1 if getattr(_local, "inside", False) else _threads_here()
    bounds = split(sizes, min(threads, count), grain) if threads > 1 else [0, count]
    if len(bounds) == 2:
        return [function(0, count, 0)]
    return _run([_Task(function, begin, bounds[i + 1], i) for i, begin in enumerate(bounds[:-1])])


PAYS = 100_000_000
"""Multiplications, some 5 milliseconds of one core, from which on a product of matrices gets torch's threads.

A thread of torch spins for milliseconds after every operator that it has shared. On a busy machine the caller waits
as long for it.
"""


def torch_threads(work: float = 0.0) -> Any:
    """A context, or decorator: torch's operators run on this thread, or on all threads if ``work`` multiplications pay.

    Contexts may be nested. :func:`run_in_chunks` keeps its threads. Nothing changes while torch compiles.
    """
    return nullcontext() if torch.compiler.is_compiling() else _torch_threads(work)


@contextmanager
def _torch_threads(work: float) -> Iterator[None]:
    threads, before = _threads_here(), torch.get_num_threads()
    known, wanted = getattr(_local, "threads", None), threads if work >= PAYS else 1
    _local.threads = threads
    if wanted != before:
        torch.set_num_threads(wanted)  # of this thread: OpenMP and MKL keep a number for each
    try:
        yield
    finally:
        _local.threads = known
        if wanted != before:
            torch.set_num_threads(before)


def _threads_here() -> int:
    """The number of threads outside of all :func:`torch_threads`."""
    return getattr(_local, "threads", None) or torch.get_num_threads()


def split(sizes: Sequence[int] | np.ndarray, parts: int, grain: float = 0.0) -> list[int]:
    """Bounds of at most ``parts`` contiguous, non-empty ranges: ``[0, ..., len(sizes)]``.

    All but the first have about equal work, and the first has about ``grain`` more.
    """
    work = np.asarray(sizes, np.float64)
    upto = work.cumsum()
    total = float(upto[-1])
    if grain > 0.0:
        parts = min(parts, int(total / grain))
    if parts < 2 or total <= 0.0:
        return [0, len(work)]
    # An item belongs to the part in which the middle of its work lies.
    targets = np.arange(1, parts) * ((total - grain) / parts) + grain
    inner = np.searchsorted(upto - 0.5 * work, targets).tolist()
    return sorted({0, *inner, len(work)})


class _Task:
    """One range; the thread that claims it first runs it."""

    def __init__(self, function: Callable[[int, int, int], Any], *arguments: int) -> None:
        self.function, self.arguments = function, arguments
        self.claim, self.done = threading.Lock(), threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        if self.claim.acquire(blocking=False):
            _local.inside = True
            try:
                self.result = self.function(*self.arguments)
            except BaseException as error:  # raised again by the caller
                self.error = error
            finally:
                _local.inside = False
                self.done.release()


def _run(tasks: list[_Task]) -> list[Any]:
    others = tasks[1:]  # futures of concurrent.futures take 0.1 ms more
    with _starting:
        for number in range(len(_threads), len(others)):
            _threads.append(threading.Thread(target=_work, name=f"torchssvm-{number + 1}", daemon=True))
            _threads[number].start()
    for task in others:
        _queue.put(task)
    for task in tasks:
        task.run()
    for task in tasks:
        task.done.acquire()
    for task in tasks:
        if task.error is not None:
            raise task.error
    return [task.result for task in tasks]


def _work() -> None:
    while True:
        _queue.get().run()


def _begin() -> None:
    """Begin without threads, as in a forked child, which has none of its parent's."""
    global _queue, _starting, _threads
    _queue, _starting, _threads = SimpleQueue(), threading.Lock(), []


_queue: SimpleQueue[_Task]
_starting: threading.Lock
_threads: list[threading.Thread]
_local = threading.local()
_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
