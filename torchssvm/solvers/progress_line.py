"""The line on stderr that follows a run."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torchssvm.compiler.jit import clock, compiling_seconds
from torchssvm.core.arguments import check_flags
from torchssvm.core.ranks import Ranks
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.solver import percent

WIDTH = 80
"""Most columns of the line."""

EVERY = 0.2
"""Least seconds between two updates of a line that is overwritten; lines of a log are fifty times rarer."""


class ProgressLine:
    """Shows gap, dual, passes and seconds of a run: ``gap 0.0098 (6.1 %)  dual 0.15  passes 56  3 s``.

    The gap belongs to the problem. ``relaxed gap 0.0019 (1.2 %)`` after it belongs to the relaxation which
    :class:`torchssvm.GDMM` minimises; it stands alone where an oracle answers for a relaxation.

    A terminal or notebook has one line that is overwritten, and the last one stays. Elsewhere, as in a log, a line is
    written every ten seconds, and after the last certificate. Figures between certificates are estimates: ``gap
    ~0.012``; ``gap <0.012`` is an upper bound, of an approximate oracle. The line is as wide as the
    terminal, at most 80 columns.

    Args:
        prefix: Begins the line, such as ``lam 0.01``; may be changed during the run.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._file: Any = sys.stderr
        self._overwrites = _overwrites(self._file)
        self._every = EVERY if self._overwrites else 50 * EVERY
        self._began, self._compiled = clock(), compiling_seconds()
        self._shown_at = time.monotonic()
        self._width = 0  # of the text on the terminal's line
        self._text = ""  # what the last certificate says, until a log has it
        self._last: Certificate | None = None

    def update(self, passes: float, gap_estimate: float, value: Callable[[], float] | None = None) -> None:
        """Show estimates, or a certificate that a log has not got yet, if the last update is long enough ago.

        ``gap_estimate`` is infinite where nothing is known; ``value`` computes the dual objective, only where it is
        shown: None shows the last certificate's.
        """
        if time.monotonic() - self._shown_at < self._every:
            return
        if self._text and not self._overwrites:
            self._show(self._text)
            return
        dual = value() if value is not None else None if self._last is None else self._last.dual
        self._show(self._line("~", gap_estimate, dual, passes))

    def certified(self, certificate: Certificate) -> None:
        """Show a certificate."""
        self._last = certificate
        bound = not (certificate.exact or certificate.relaxed)
        self._text = self._line(
            "<" if bound else "", certificate.gap, certificate.dual, certificate.passes, certificate
        )
        if self._overwrites or time.monotonic() - self._shown_at >= self._every:
            self._show(self._text)

    def clear(self) -> None:
        """Make room on the terminal's line, for a caller who prints."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def close(self) -> None:
        """Leave the last certificate on a terminal or in a log, and say how long kernels were compiled."""
        if self._text:
            self._show(self._text)
        if self._width:
            self._write("\n")
            self._width = 0
        if (spent := compiling_seconds() - self._compiled) >= 1.0:
            self._write(f"torchssvm compiled its kernels in {spent:.1f} s, which no other figure counts\n")

    def _line(
        self, sign: str, gap: float, dual: float | None, passes: float, certificate: Certificate | None = None
    ) -> str:
        parts = [self.prefix]
        relaxed = "relaxed " if self._last is not None and self._last.relaxed else ""
        if math.isfinite(gap):
            parts.append(f"{relaxed}gap {sign}{gap:.3g}")
            if dual is not None and gap + dual > 0.0:
                parts[-1] += f" ({percent(gap / (gap + dual))})"
        proof: Any = certificate
        if getattr(proof, "has_relaxation", False):  # of a FactorwiseCertificate
            parts.append(f"relaxed gap {proof.relaxed_gap:.3g} ({percent(proof.relative_relaxed_gap)})")
        if dual is not None and math.isfinite(dual):
            parts.append(f"{relaxed}dual {dual:.4g}")
        parts += [f"passes {passes:.4g}", f"{clock() - self._began:.0f} s"]
        return "  ".join(part for part in parts if part)

    def _show(self, text: str) -> None:
        self._shown_at = time.monotonic()
        if not self._overwrites:
            self._write(f"torchssvm: {text}\n")
            self._text = ""
            return
        text = text[: min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns) - 1]  # a full line would wrap
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def _write(self, text: str) -> None:
        if self._file is None:  # a process without a console
            return
        try:
            self._file.write(text)
            self._file.flush()
        except (OSError, ValueError):  # a closed stream does not end a run
            self._overwrites, self._every = False, math.inf


@contextmanager
def shown(progress: bool | ProgressLine) -> Iterator[ProgressLine | None]:
    """The line of a run: a new one for True, which is closed at the end; None for False; or the caller's."""
    if isinstance(progress, ProgressLine):
        yield progress
        return
    check_flags(progress=progress)
    line = ProgressLine() if progress and not Ranks.here().rank else None  # one process shows it
    try:
        yield line
    finally:  # an interrupted run leaves a whole line too
        if line is not None:
            line.close()


def _overwrites(file: Any) -> bool:
    """Whether a carriage return begins the line anew: on terminals, and in notebooks."""
    if file is None:
        return False
    if type(file).__module__.startswith("ipykernel"):
        return True
    try:
        return bool(file.isatty())
    except (AttributeError, ValueError):
        return False
