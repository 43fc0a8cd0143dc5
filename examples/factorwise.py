"""What the examples of GDMM share: their flags, a run with a progress bar, and the picture of its passes."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from common import count, folder, positive, seed

from torchssvm import GDMM, EveryPasses, FactorwiseCertificate, PassReport, Penalty, RunReport
from torchssvm.solvers.report import Entry

try:
    from tqdm import tqdm
except ModuleNotFoundError:  # then a line for every certificate
    tqdm = None


class Pass(NamedTuple):
    """A pass of GDMM, and the CPU seconds of training until then."""

    report: PassReport
    cpu_seconds: float


class Run(NamedTuple):
    """What a training run left behind, beside the weights.

    Attributes:
        history: All certificates, with wall seconds.
        passes: All passes.
        stopped_because: A sentence.
        cpu_seconds: Of passes and certificates.
    """

    history: list[Entry]
    passes: list[Pass]
    stopped_because: str
    cpu_seconds: float

    @property
    def certificate(self) -> FactorwiseCertificate:
        """The last one."""
        return self.history[-1].certificate

    def figures(self) -> dict[str, Any]:
        """What ``report.json`` has of GDMM, beside what it has of every run."""
        return {
            "sweeps": self.certificate.sweeps,
            "violation": self.certificate.violation,
            "worst_violation": self.certificate.worst_violation,
            "cpu_seconds": self.cpu_seconds,
            "pass_cpu_seconds": [p.cpu_seconds for p in self.passes],
            "violations": [p.report.violation for p in self.passes],
            "visited_per_query": [visited_per_query(p.report) for p in self.passes],
        }


class Clock:
    """Wall and CPU seconds of training; what :meth:`leave_out` calls is not counted."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Wall and CPU seconds so far."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu

    def leave_out(self, call: Callable[[], Any]) -> None:
        """Make a call that is not part of training."""
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        self._wall += time.perf_counter() - wall
        self._cpu += time.process_time() - cpu


def factorwise_flags(description: str, report: str) -> argparse.ArgumentParser:
    """The flags of both examples; arguments as in ``common.run_flags``."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument(
        "--gap",
        type=positive,
        default=0.002,
        help="stop at this certified gap, of the relaxation (default: %(default)s)",
    )
    flags.add_argument("--violation", type=positive, default=0.01, help="and this mean violation (%(default)s)")
    flags.add_argument("--max-passes", type=count, default=200, help="or after so many passes (default: %(default)s)")
    flags.add_argument("--check-every", type=count, default=10, help="passes between certificates (%(default)s)")
    flags.add_argument("--seed", type=seed, default=0, help="runs with the same seed are the same (default: 0)")
    flags.add_argument("--report", type=folder, default=report, metavar="PATH", help="folder (default: %(default)s)")
    return flags


def penalty_of(rho: float | None, mean_cost: float) -> Penalty | None:
    """A penalty that stays as it is, in terms of the mean cost of a wrong label; None is GDMM's own."""
    return None if rho is None else Penalty(rho * mean_cost)


def train(optim: GDMM, args: argparse.Namespace, look: Callable[[float], None] | None = None) -> Run:
    """Train to the certified gap and the violation that are wanted, or until passes run out.

    Args:
        optim: GDMM, new.
        args: The flags' values.
        look: Called after every pass with the CPU seconds of training until then; its own do not count.
    """
    history: list[Entry] = []
    passes: list[Pass] = []
    shown: dict[str, str] = {}
    clock = Clock()
    bar = tqdm(total=args.max_passes, unit="pass", file=sys.stderr) if tqdm is not None else None

    def on_pass(report: PassReport) -> None:
        passes.append(Pass(report, clock.read()[1]))
        if bar is not None:
            shown["violation"] = f"{report.violation:.2g}"
            bar.set_postfix(shown, refresh=False)
            bar.update()
        if look is not None:
            clock.leave_out(lambda: look(passes[-1].cpu_seconds))

    def on_check(certificate: FactorwiseCertificate) -> None:
        history.append(Entry(certificate, clock.read()[0]))
        if bar is None:
            print(certificate, file=sys.stderr)
        else:
            shown.update(gap=f"{certificate.gap:.4f}", relaxed=f"{certificate.relaxed_gap:.4f}")

    limit = math.inf if args.max_passes is None else args.max_passes
    wanted = {"violation": args.violation, "max_passes": limit, "schedule": EveryPasses(args.check_every)}
    try:
        last = optim.solve(args.gap, **wanted, on_pass=on_pass, on_check=on_check)
        reached = last.relaxed_gap <= args.gap and last.violation <= args.violation
        kind = " of the relaxation" if last.has_relaxation else ""
        stopped_because = f"certified gap{kind} {last.relaxed_gap:.6g}, violation {last.violation:.2g}"
        stopped_because += (
            "" if reached else f" after {args.max_passes} passes: wanted {args.gap:g}, {args.violation:g}"
        )
    except KeyboardInterrupt:
        on_check(optim.certify())
        stopped_because = "interrupted: KeyboardInterrupt"
    finally:
        if bar is not None:
            bar.close()
    return Run(history, passes, stopped_because, clock.read()[1])


def visited_per_query(report: PassReport) -> float:
    """Entries that the factorwise oracle looked at, for each of its calls."""
    return report.visited / max(report.queries, 1)


def draw_passes(figure: Any, run: Run) -> None:
    """Violation, CPU seconds and entries looked at, pass by pass."""
    left, middle, right = figure.subplots(1, 3)
    numbers = [p.report.sweeps for p in run.passes]
    left.plot(numbers, [p.report.violation for p in run.passes], label="mean", color="black")
    left.plot(numbers, [p.report.worst_violation for p in run.passes], label="largest", color="grey", linewidth=0.8)
    left.set(ylabel="violation", yscale="log")
    left.legend(fontsize="small")
    middle.plot(numbers, [p.cpu_seconds for p in run.passes], color="black")
    middle.set_ylabel("CPU seconds")
    right.plot(numbers, [visited_per_query(p.report) for p in run.passes], color="black")
    right.set_ylabel("entries visited per query")
    for axes in (left, middle, right):
        axes.set_xlabel("pass of GDMM")
        axes.grid(alpha=0.3)


def finish(args: argparse.Namespace, report: RunReport, run: Run) -> None:
    """Write report.json and the picture."""
    report.write(args.report, draw_examples=lambda figure: draw_passes(figure, run))
    print(f"written to {args.report}")
