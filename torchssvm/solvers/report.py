"""The report of a run: a table for the screen, ``report.json``, and a picture of the convergence."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from torchssvm.core.files import write_text
from torchssvm.solvers.certificate import Certificate, FactorwiseCertificate
from torchssvm.solvers.evaluation import Evaluation
from torchssvm.solvers.figures import new_figure

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
    found = {"python": platform.python_version()}
    for name in ("torchssvm", "torch", "numpy", "torch-struct", "lightning"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    return found


@dataclass(frozen=True)
class RunReport:
    """The results of a finished run; unknown numbers are None.

    Attributes:
        task: What was trained, in a few words.
        n: Number of training examples.
        num_weights: Number of weights of the head.
        lam: Regularisation.
        primal: Of the last certificate.
        dual: Of the last certificate; None where it is of a relaxation (``Certificate.relaxed``).
        gap: Of the last certificate; None likewise.
        oracle_calls: Examples decoded with loss augmentation, exact passes included.
        passes: ``oracle_calls / n``.
        seconds: Wall-clock time of the run.
        train_loss: Mean task loss on the training examples.
        test_loss: Mean task loss on the test examples.
        stopped_because: Why the run stopped, as a sentence.
        seed: Seed of the run.
        device: The device of the run.
        versions: See :func:`versions`.
        exact: Whether the oracle of the last certificate was exact; otherwise primal and gap are upper bounds.
        history: All certificates, for the picture.
        extra: More entries for ``report.json`` and the table, e.g. letter errors.

    Example:
        >>> report = RunReport(
        ...     task="toy", n=30, num_weights=15, lam=0.1, primal=0.5, dual=0.49, gap=0.01, oracle_calls=300,
        ...     passes=10.0, seconds=0.2, train_loss=0.1, test_loss=None, stopped_because="the gap is small",
        ...     seed=0, device="cpu",
        ... )
        >>> report.test_loss is None, report.oracle_calls / report.n
        (True, 10.0)
    """

    task: str
    n: int
    num_weights: int
    lam: float
    primal: float | None
    dual: float | None
    gap: float | None
    oracle_calls: int
    passes: float
    seconds: float
    train_loss: float | None
    test_loss: float | None
    stopped_because: str
    seed: int | None
    device: str
    versions: dict[str, str] = field(default_factory=versions)
    exact: bool = True
    history: Sequence[tuple[Certificate, float]] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_history(
        cls,
        task: str,
        history: Sequence[tuple[Certificate, float]],
        *,
        num_weights: int,
        stopped_because: str,
        train: Evaluation | None = None,
        test: Evaluation | None = None,
        seed: int | None = None,
        device: torch.device | str = "cpu",
        seconds: float | None = None,
        extra: dict[str, Any] | None = None,
    ) -> RunReport:
        """The report of a run from its certificates and its evaluations.

        Args:
            task: What was trained, in a few words.
            history: At least one certificate; the last one gives the results.
            stopped_because: Why the run stopped, as a sentence.
            train: Plain decoding of the training examples.
            test: Plain decoding of the test examples; errors by token and by example of both go to ``extra``.
            seconds: Wall-clock time; None is that of the last certificate.

        Raises:
            ValueError: ``history`` is empty.
        """
        if not history:
            raise ValueError("history is empty: a report needs the certificate of the final weights")
        last, elapsed = history[-1]
        more = {**_relaxation(last), **(extra or {})}
        for name, evaluation in (("train", train), ("test", test)):
            if evaluation is not None and evaluation.token_error is not None:
                more.setdefault(f"{name}_token_error", evaluation.token_error)
                more.setdefault(f"{name}_example_error", evaluation.example_error)
            if evaluation is not None and not evaluation.exact:
                more.setdefault(f"{name}_decoding", "approximate")
        return cls(
            task=task,
            n=last.num_examples,
            num_weights=num_weights,
            lam=last.lam,
            primal=last.primal,
            dual=None if last.relaxed else last.dual,
            gap=None if last.relaxed else last.gap,
            oracle_calls=last.oracle_calls,
            passes=last.passes,
            seconds=elapsed if seconds is None else seconds,
            train_loss=None if train is None else train.loss,
            test_loss=None if test is None else test.loss,
            stopped_because=stopped_because,
            seed=seed,
            device=torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device),
            exact=last.exact,
            history=list(history),
            extra=more,
        )

    def to_dict(self) -> dict[str, Any]:
        """The content of ``report.json``: attributes, ``extra`` and ``history``; non-finite numbers become None."""
        names = [name for name in self.__dataclass_fields__ if name not in ("history", "extra")]
        content = {name: getattr(self, name) for name in names}
        if clash := sorted(content.keys() & self.extra.keys()):
            raise ValueError(f"extra holds {clash}, which are names of the report itself")
        history = [
            {
                "passes": c.passes,
                "oracle_calls": c.oracle_calls,
                "seconds": seconds,
                "primal": c.primal,
                "dual": None if c.relaxed else c.dual,
                "gap": None if c.relaxed else c.gap,
                "exact": c.exact,
                **_relaxation(c),
            }
            for c, seconds in self.history
        ]
        return _finite({**content, **self.extra, "history": history})

    def table(self) -> str:
        """Two columns for the screen, without the history."""
        content = self.to_dict()
        del content["history"]
        content["versions"] = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        kind = "the oracle answers for a relaxation" if self.gap is None else "approximate oracle"
        content["exact"] = "yes" if self.exact else f"no: primal and gap are upper bounds ({kind})"
        rows = [(name.replace("_", " "), _show(value)) for name, value in content.items()]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows)

    __str__ = table

    def write(self, folder: Path | str, draw_examples: DrawExamples | None = None) -> None:
        """Write ``report.json``, and the picture of the convergence as ``convergence.png``, to a folder, made if
        missing.

        ``draw_examples`` draws a few predictions below the curves. Raises ImportError without matplotlib, after
        ``report.json`` is written.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False, default=str) + "\n"
        write_text(folder / REPORT, text)
        self.figure(draw_examples).savefig(folder / PICTURE, dpi=120)

    def figure(self, draw_examples: DrawExamples | None = None) -> Any:
        """Primal and dual (above) and the gap (below, logarithmic) by effective passes and by seconds; then examples.

        Returns a ``matplotlib.figure.Figure``, or raises ImportError without matplotlib; opens no window and leaves
        matplotlib's global state alone. ``draw_examples`` is that of :meth:`write`.
        """
        ratios = [2.0] if draw_examples is None else [2.0, 1.0]
        figure = new_figure((10, 3.2 * sum(ratios)))
        figures = figure.subfigures(len(ratios), 1, height_ratios=ratios, squeeze=False)[:, 0]
        self._draw_convergence(figures[0])
        if draw_examples is not None:
            draw_examples(figures[1])
        return figure

    def _draw_convergence(self, figure: Any) -> None:
        axes = figure.subplots(2, 2, sharex="col", sharey="row")
        figure.suptitle(f"{self.task}: n = {self.n}, λ = {self.lam:g}")
        columns = (
            ("effective passes", [c.passes for c, _ in self.history]),
            ("seconds", [seconds for _, seconds in self.history]),
        )
        marker = "." if len(self.history) < 60 else None
        bound = "" if all(c.exact for c, _ in self.history) else " (upper bound)"
        relaxed = [_relaxation(c) for c, _ in self.history]
        for (value, gap), (label, x) in zip(axes.T, columns, strict=True):
            value.plot(x, [c.primal for c, _ in self.history], marker=marker, color="tab:red", label=f"primal{bound}")
            below = [math.nan if c.relaxed else c.dual for c, _ in self.history]
            value.plot(x, below, marker=marker, color="tab:blue", label="dual")
            gaps = [c.gap if c.gap > 0.0 and not c.relaxed else math.nan for c, _ in self.history]
            gap.plot(x, gaps, marker=marker, color="black", label="of the problem")
            if any(relaxed):
                below = [r.get("relaxed_dual", math.nan) for r in relaxed]
                value.plot(x, below, color="tab:blue", linestyle=":", label="dual of the relaxation")
                left = [r.get("relaxed_gap") or math.nan for r in relaxed]
                gap.plot(x, left, color="black", linestyle=":", label="of the relaxation")
                gap.legend()
            if gap.dataLim.y1 > 0.0:  # a gap is known
                gap.set_yscale("log")
            gap.set_xlabel(label)
            for axis in (value, gap):
                axis.grid(alpha=0.3)
        axes[0, 0].legend()
        axes[0, 0].set_ylabel("objective")
        axes[1, 0].set_ylabel(f"certified gap{bound}")


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
