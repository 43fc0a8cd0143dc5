"""Interrupts at chosen lines: a signal arrives while the package's code runs."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import torchssvm

_ROOT = str(Path(torchssvm.__file__).parent)


class _Lines:
    """Counts the lines of the package that run; the signal comes before the line ``at``."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.seen = at, 0

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_ROOT):
            return None
        if event == "line":
            self.seen += 1
            if self.seen == self.at:
                signal.raise_signal(signal.SIGINT)
        return self

    def run(self, action: Callable[[], Any]) -> bool:
        """Whether ``action`` was interrupted."""
        before, handler = sys.gettrace(), signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.settrace(self)
        try:
            action()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
            signal.signal(signal.SIGINT, handler)
            torch.set_grad_enabled(True)  # raised by a trace at the end of a block, it skips no_grad's exit
        return False


def interrupted(make: Callable[[], Any], act: Callable[[Any], Any], times: int, seed: int = 0) -> Iterator[Any]:
    """What ``make`` returns, ``times`` over, each after ``act`` on it was interrupted at a line drawn at random."""
    lines, first = _Lines(), make()
    lines.run(lambda: act(first))
    draw = random.Random(seed)
    for at in sorted(draw.sample(range(1, lines.seen + 1), min(times, lines.seen))):
        made = make()
        _Lines(at).run(lambda made=made: act(made))
        yield made
