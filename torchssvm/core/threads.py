"""A small pool of threads that share a batch: for kernels that let go of Python's global lock while they run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch

# Numba's own parallel loops are not an option: its default layer aborts the process when two Python threads enter it at
# once, and its pools do not survive a fork.

Result = TypeVar("Result")


def run_in_chunks(
    function: Callable[[int, int, int], Result], sizes: Sequence[int] | np.ndarray, *, grain: float = 0.0
) -> list[Result]:
    """Split a list of items into contiguous ranges of about equal work, one for each thread, and do all of them.

    The calling thread takes the first range, and any that no other thread has begun when it is done with its own: the
    call cannot wait for a pool that is busy. What is called must not depend on settings of its thread, such as
    ``torch.no_grad``. There are as many threads as ``torch.get_num_threads()`` says; a call from inside ``function``
    is not split again.

    Args:
        function: ``function(begin, end, index)`` does items ``begin`` to ``end - 1``; ``index`` is the number of the
            range, from 0, different for each of this call. It should let go of the global lock for most of its time.
        sizes: The work of each item, non-negative, in any unit.
        grain: As much work as is done while another thread wakes up. The calling thread, which begins at once, gets so
            much more than the others, and fewer ranges are made where they would have less than that on average.

    Returns:
        What ``function`` returned for each range, in order; the ranges cover all items. Nothing for no items.

    Raises:
        Exception: What ``function`` raised, of the first range that did; after all ranges are done.
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
    """One range: whoever claims it first runs it."""

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
    """Threads that wait for tasks; as many as were ever needed at once, started at their first use."""

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
    """Threads do not live on in a forked child: it starts its own."""
    global _pool
    _pool = _Pool()


_local = threading.local()
_pool = _Pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
