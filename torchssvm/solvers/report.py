"""The report of a run: a table for the screen, ``report.json``, and a picture of the convergence."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from torchssvm.core.files import write_text
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.evaluation import Evaluation
from torchssvm.solvers.figures import new_figure
from torchssvm.solvers.gdmm.reports import FactorwiseCertificate

REPORT = "report.json"
PICTURE = "convergence.png"

DrawExamples: TypeAlias = Callable[[Any], None]
"""Draws a few examples and their predictions into a matplotlib (sub)figure."""


class Entry(NamedTuple):
    """One certificate of a run, and wall-clock seconds from the start of the run to the end of that pass."""

    certificate: Certificate
    seconds: float


History: TypeAlias = list[Entry]
"""The certificates of a run in order; plain tuples ``(certificate, seconds)`` are accepted too."""


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that a result depends on."""
    installed = {"python": platform.python_version()}
    for name in ("torchssvm", "torch", "numpy", "torch-struct", "lightning"):
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed | ({} if torch.version.cuda is None else {"cuda": torch.version.cuda})


@dataclass(frozen=True)
class RunReport:
    """The results of a finished run; the last certificate gives its figures.

    Attributes:
        task: What was trained, in a few words.
        history: At least one certificate, each with the seconds since the run began.
        num_weights: Number of weights of the head.
        stopped_because: Why the run stopped, as a sentence.
        train: Plain decoding of the training examples; None if unknown.
        test: Plain decoding of the test examples.
        seed: Seed of the run.
        device: The device of the run.
        seconds: Wall-clock time; None is the last certificate's.
        estimates: ``(seconds, dual, estimate of the gap)`` between certificates, for the picture.
        extra: More entries for ``report.json`` and the table, such as letter errors.

    Raises:
        ValueError: ``history`` is empty, or ``extra`` has a name of the report itself.

    Example:
        >>> certificate = solve(LinearMulticlass(4, 3), data, lam=0.1)
        >>> report = RunReport("toy", [(certificate, 0.2)], num_weights=12, stopped_because="the gap is small")
        >>> report.to_dict()["n"], report.to_dict()["test_loss"] is None
        (30, True)
    """

    task: str
    history: Sequence[tuple[Certificate, float]]
    num_weights: int
    stopped_because: str
    train: Evaluation | None = None
    test: Evaluation | None = None
    seed: int | None = None
    device: torch.device | str = "cpu"
    seconds: float | None = None
    estimates: Sequence[tuple[float, float, float]] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.history:
            raise ValueError("history is empty: give the certificate of the final weights")
        if clash := sorted(self._figures().keys() & self.extra.keys()):
            raise ValueError(f"extra={clash} are names in every report: choose others")

    def _figures(self) -> dict[str, Any]:
        last, elapsed = self.history[-1]
        device = torch.device(self.device)
        return {
            "task": self.task,
            "n": last.num_examples,
            "num_weights": self.num_weights,
            "lam": last.lam,
            **_objective(last),
            "oracle_calls": last.oracle_calls,
            "passes": last.passes,
            "seconds": elapsed if self.seconds is None else self.seconds,
            "train_loss": None if self.train is None else self.train.loss,
            "test_loss": None if self.test is None else self.test.loss,
            "stopped_because": self.stopped_because,
            "seed": self.seed,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            "versions": versions(),
            "exact": last.exact,
        }

    def to_dict(self) -> dict[str, Any]:
        """The content of ``report.json``; unknown and non-finite numbers are None.

        It has the figures of the last certificate, errors by token and by example, ``extra``, and
        all certificates as ``history``.
        """
        more: dict[str, Any] = {**_relaxation(self.history[-1][0])}
        for name, evaluation in (("train", self.train), ("test", self.test)):
            if evaluation is not None and evaluation.token_error is not None:
                more |= {
                    f"{name}_token_error": evaluation.token_error,
                    f"{name}_example_error": evaluation.example_error,
                }
            if evaluation is not None and not evaluation.exact:
                more[f"{name}_decoding"] = "approximate"
        history = [
            {
                "passes": c.passes,
                "oracle_calls": c.oracle_calls,
                "seconds": seconds,
                **_objective(c),
                "exact": c.exact,
                **_relaxation(c),
            }
            for c, seconds in self.history
        ]
        return _finite({**self._figures(), **more, **self.extra, "history": history})

    def table(self) -> str:
        """Two columns for the screen, without the history."""
        content = self.to_dict()
        del content["history"]
        kind = "the oracle answers for a relaxation" if content["gap"] is None else "approximate oracle"
        content["exact"] = "yes" if content["exact"] else f"no: primal and gap are upper bounds ({kind})"
        content["versions"] = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
        width = max(map(len, content))
        return "\n".join(f"{name.replace('_', ' ').ljust(width)}  {_show(value)}" for name, value in content.items())

    __str__ = table

    def write(self, folder: Path | str, draw_examples: DrawExamples | None = None) -> None:
        """Write ``report.json`` and the picture ``convergence.png`` to a folder, which is made if missing.

        ``draw_examples`` draws a few predictions below the curves. ImportError without matplotlib, after
        ``report.json`` is written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False, default=str) + "\n"
        write_text(folder / REPORT, text)
        self.figure(draw_examples).savefig(folder / PICTURE, dpi=120)

    def figure(self, draw_examples: DrawExamples | None = None) -> Any:
        """Primal and dual over seconds, and the band between them, in which the optimum lies; below them, examples.

        Returns a ``matplotlib.figure.Figure``, or raises ImportError without matplotlib; opens no window and leaves
        matplotlib's global state alone. ``draw_examples`` is as in :meth:`write`.
        """
        count = 1 if draw_examples is None else 2
        figure = new_figure((10, 3.2 * count))
        figures = figure.subfigures(count, 1, squeeze=False)[:, 0]
        self._draw_convergence(figures[0].subplots())
        if draw_examples is not None:
            draw_examples(figures[1])
        return figure

    def _draw_convergence(self, axes: Any) -> None:
        certificates, seconds = zip(*self.history, strict=True)
        last = certificates[-1]
        bound = "" if all(c.exact for c in certificates) else " (upper bound)"
        dual = [math.nan if c.relaxed else c.dual for c in certificates]
        primal = [c.primal for c in certificates]
        marker = "o" if len(self.history) < 60 else None
        axes.plot(seconds, primal, marker=marker, color="tab:red", label=f"primal{bound}")
        axes.plot(seconds, dual, marker=marker, color="tab:blue", label="dual")
        if not all(c.relaxed for c in certificates):
            axes.fill_between(seconds, dual, primal, color="tab:gray", alpha=0.25, label="the optimum is in here")
        relaxed = [_relaxation(c) for c in certificates]
        if any(relaxed):
            below = [bounds.get("relaxed_dual", math.nan) for bounds in relaxed]
            axes.plot(seconds, below, color="tab:blue", linestyle="--", label="dual of the relaxation")
        if self.estimates:
            at, value, estimate = zip(*self.estimates, strict=True)
            axes.plot(at, [v + e for v, e in zip(value, estimate, strict=True)], ":", color="tab:red", label="estimate")
            axes.plot(at, value, ":", color="tab:blue")
        left = "" if any(relaxed) else f", gap {100.0 * last.relative_gap:.2g} % of the primal"
        axes.set(xlabel="seconds", ylabel="objective", title=f"{self.task}: n = {last.num_examples}{left}")
        axes.legend()
        axes.grid(alpha=0.3)


def _objective(certificate: Certificate) -> dict[str, float | None]:
    """Primal, dual and gap of the problem; the last two are unknown where the certificate is of a relaxation."""
    c, known = certificate, not certificate.relaxed
    return {"primal": c.primal, "dual": c.dual if known else None, "gap": c.gap if known else None}


def _relaxation(certificate: Certificate) -> dict[str, float]:
    """The bounds of the relaxation, where one was trained that differs from the problem."""
    if certificate.relaxed:
        return {f"relaxed_{name}": getattr(certificate, name) for name in ("primal", "dual", "gap")}
    if not (isinstance(certificate, FactorwiseCertificate) and certificate.has_relaxation):
        return {}
    return {name: getattr(certificate, name) for name in ("relaxed_primal", "relaxed_dual", "relaxed_gap")}


def _finite(value: Any) -> Any:
    """Infinity and NaN become None, as JSON has neither."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _show(value: Any) -> str:
    if value is None:
        return "not known"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
