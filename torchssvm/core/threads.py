"""The pool of threads: contiguous ranges of about equal work, one for each thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
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
    threads = 1 if getattr(_local, "inside", False) else min(torch.get_num_threads(), count)
    if threads > 1:
        bounds = split(sizes, threads, grain)
        if len(bounds) > 2:
            return _run([_Task(function, bounds[i], bounds[i + 1], i) for i in range(len(bounds) - 1)])
    return [function(0, count, 0)]


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

    __slots__ = ("begin", "claim", "done", "end", "error", "function", "index", "result")

    def __init__(self, function: Callable[[int, int, int], Any], begin: int, end: int, index: int) -> None:
        self.function, self.begin, self.end, self.index = function, begin, end, index
        self.claim, self.done = threading.Lock(), threading.Lock()
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        if self.claim.acquire(blocking=False):
            inside, _local.inside = getattr(_local, "inside", False), True
            try:
                self.result = self.function(self.begin, self.end, self.index)
            except BaseException as error:  # raised again by the caller
                self.error = error
            finally:
                _local.inside = inside
                self.done.release()


def _run(tasks: list[_Task]) -> list[Any]:
    _pool.offer(tasks[1:])
    for task in tasks:
        task.run()
    for task in tasks:
        task.done.acquire()
    for task in tasks:
        if task.error is not None:
            raise task.error
    return [task.result for task in tasks]


class _Pool:
    """Threads that wait for tasks, started when they are first needed."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[_Task] = SimpleQueue()
        self.started = 0
        self.lock = threading.Lock()

    def offer(self, tasks: list[_Task]) -> None:
        if self.started < len(tasks):
            with self.lock:
                while self.started < len(tasks):
                    name = f"torchssvm-{self.started + 1}"
                    threading.Thread(target=_work, args=(self.queue,), name=name, daemon=True).start()
                    self.started += 1
        for task in tasks:
            self.queue.put(task)


def _work(queue: SimpleQueue[_Task]) -> None:
    while True:
        queue.get().run()


def _renew() -> None:
    """Make a new pool in a forked child, which has none of the threads."""
    global _pool
    _pool = _Pool()


_local = threading.local()
_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
