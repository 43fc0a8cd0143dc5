"""How work goes through the machine: threads, a batch through a kernel of the CPU, free memory, waiting signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchssvm.compiler.jit import COMPILED, Kernel

# Numba's parallel loops do not work here: the default threading layer aborts the process if two Python threads enter it
# at once, and its pools do not survive a fork.

Result = TypeVar("Result")


def run_in_chunks(
    function: Callable[[int, int, int], Result], sizes: Sequence[int] | np.ndarray, *, grain: float = 0.0
) -> list[Result]:
    """The results of ``function(begin, end, index)`` for contiguous ranges of about equal work, one for each thread, in
    order.

    The calling thread takes the first range, then any range that no other thread has started: a busy pool cannot block
    the call. ``function`` should release the GIL, and must not depend on thread-local settings such as
    ``torch.no_grad``. At most ``torch.get_num_threads()`` threads run; a call from inside ``function`` is not split
    again. The first exception is raised after all ranges are done.

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


# Measured for float32 with AVX2, 32 KB of L1 and 512 KB of L2 cache for each core.
LANES = 8  # rows are padded to a multiple, so vector loops have no scalar remainder
CACHE = 2**18  # most bytes of a matrix that stays in the L2 cache as a whole
PAIR = 2  # examples that share such a matrix
BLOCK = 2**16  # bytes of a block of a larger matrix; the prefetcher follows no more than some eight long rows
GROUP = 16  # examples that share each block
GROUP_MEMORY = 2**26  # most bytes of a group's working memory
GRAIN = 400_000  # pairs of states, 20 to 60 microseconds: the time to wake up another thread


def plan(batch: int, states: int, itemsize: int, shared: bool, rows_each: int) -> tuple[int, int]:
    """How many examples read their matrices together, and how many rows of a matrix at a time.

    ``shared`` says whether all examples have the same ``[K, K]`` matrices; an example works on ``rows_each`` rows of
    scores.
    """
    row = states * itemsize
    height = states if states * row <= CACHE else max(1, BLOCK // row)
    if not shared:
        return 1, height
    group = PAIR if height == states else min(GROUP, GROUP_MEMORY // (rows_each * row))
    return max(1, min(group, batch)), height


_KEPT = 2**24  # bytes; larger buffers are not kept
_LINE = 64  # bytes of a cache line


def compiles(*scores: Tensor) -> bool:
    """Whether kernels take these scores: all of one dtype, float32 or float64."""
    dtype = scores[0].dtype
    for tensor in scores:
        if tensor.dtype is not dtype:
            return False
    return dtype in COMPILED


def as_array(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor, contiguous, cut from any graph: of the same memory, if that is possible."""
    return (tensor.detach() if tensor.requires_grad else tensor).contiguous().numpy()


def once(tensor: Tensor) -> Tensor:
    """One row of a tensor that is one row seen B times, ``[1, ...]``; any other as it is."""
    return tensor[:1] if tensor.shape[0] > 1 and tensor.stride(0) == 0 else tensor


def by_example(matrices: Tensor) -> Tensor:
    """``[K, K]``, ``[B, K, K]``, ``[B, N, K, K]`` as ``[B or 1, N or 1, K, K]``: one seen B times is there once."""
    if matrices.ndim == 2:
        return matrices.expand(1, 1, -1, -1)
    matrices = once(matrices)
    return matrices.unsqueeze(1) if matrices.ndim == 3 else matrices


def launch(
    kernel: Kernel,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    work: np.ndarray,
    memory: Sequence[tuple[int, torch.dtype] | Callable[[], Any]],
    each: float = 1.0,
) -> list[Any]:
    """Fill ``outputs``: ``kernel(*inputs, begin, end, *memory, *outputs)`` for ranges of about equal work.

    Returns what the kernel returned for each range; nothing for an empty batch.

    Args:
        kernel: Handles the examples ``begin`` to ``end - 1``.
        inputs: Tensors, given as contiguous arrays; anything else is given as it is. Whole numbers say where kernels
            read and write: they lie in memory of their own, which no other thread changes.
        outputs: Contiguous tensors, given as arrays of the same memory; or such arrays.
        work: ``[B]``, of each example, in any unit, of which one compares to ``each`` pairs of states: see ``GRAIN``.
        memory: What a thread needs of its own, of any content: numbers and dtype of an array, one for each dtype, or a
            function that returns the thread's workspace.
    """
    given = [as_array(x) if isinstance(x, Tensor) else x for x in inputs]
    filled = [as_array(x) if isinstance(x, Tensor) else x for x in outputs]
    call = kernel.dispatcher

    def run(begin: int, end: int, _: int) -> Any:
        rooms = [need() if callable(need) else scratch(*need) for need in memory]
        return call(*given, begin, end, *rooms, *filled)

    return run_in_chunks(run, work, grain=GRAIN / each)


class _Buffers(threading.local):
    def __init__(self) -> None:
        self.by_dtype: dict[torch.dtype, np.ndarray] = {}


_kept = _Buffers()


def scratch(count: int, dtype: torch.dtype) -> np.ndarray:
    """At least ``count`` uninitialised numbers, aligned to a cache line; this thread's next call reuses the buffer."""
    kept = _kept.by_dtype.get(dtype)
    if kept is not None and len(kept) >= count:
        return kept
    # 50% more than asked for, so that slowly growing batches do not allocate each time.
    buffer = torch.empty(count + count // 2 + _LINE // dtype.itemsize, dtype=dtype).numpy()
    buffer = buffer[-buffer.ctypes.data % _LINE // dtype.itemsize :]
    if buffer.nbytes <= _KEPT:
        _kept.by_dtype[dtype] = buffer
    return buffer


_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_SIGNALS = [int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)]

# The C functions below those of `signal`, which make enums of numbers: a step comes here several times.
_c = sys.modules.get("_signal", signal)
_handler_of, _set_handler = _c.getsignal, _c.signal

_inside = False  # of the main thread: Python runs the handlers of signals in no other


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, signals wait: their Python handlers, which may raise KeyboardInterrupt, run at the end of the block.

    Blocks may lie in one another; the outermost one counts. As a decorator, the whole call is such a block.
    """
    global _inside
    if _inside or threading.get_ident() != threading.main_thread().ident:
        yield
        return
    waiting, arrived = True, list[tuple[int, Any]]()
    handlers: dict[int, Callable[..., Any]] = {}

    def note(number: int, frame: Any) -> None:
        if waiting:
            arrived.append((number, frame))
        else:  # two signals at once have left this function in place of the handler
            handlers[number](number, frame)

    try:
        for number in _SIGNALS:
            if callable(handler := _handler_of(number)):
                handlers[number] = handler
                _set_handler(number, note)
        _inside = True
        yield
    finally:
        _inside = waiting = False
        for number, handler in handlers.items():
            if _handler_of(number) is note:  # else another one has been set inside
                _set_handler(number, handler)
        if arrived:
            with ExitStack() as after:  # all handlers run, whatever one of them raises
                for number, frame in reversed(arrived):
                    after.callback(handlers[number], number, frame)


def available_memory(device: torch.device) -> int:
    """Free bytes on ``device``; on the CPU, the available physical memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # the system cannot tell: no limit
        return 2**63
