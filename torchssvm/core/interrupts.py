"""Blocks in which signals wait."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2", "SIGBREAK")
_SIGNALS = [int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)]

# The C functions: those of `signal` make enums of numbers, which takes time in every step.
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
