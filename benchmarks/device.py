"""What is to be known on the day that there is a CUDA device, in parts of at most eight minutes each.

python benchmarks/device.py --part kernels|steps|large|training|checks|tests
    [--only TEXT] [--out FOLDER] [--minutes 8] [--quick]

One call for each part, all into one FOLDER: every row is warmed up, has a time limit, and is written to
device.jsonl and device.md when it ends, the most telling first; a row that fails, or that lacks a package, data or
time, says so and stops no other. --quick runs every part at tiny sizes on the pretended device of the tests, which
shows that the lines work and measures nothing. No network is needed: handwritten words come with the package, and
CoNLL-2000 is read below TORCHSSVM_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

if "--quick" in sys.argv and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
from every_kernel import launches
from machine import describe_machine
from suite import oracles
from torch import nn
from torch.utils.data import DataLoader

from torchssvm import (
    BCFW,
    BlockGap,
    Chain,
    DualState,
    FrankWolfe,
    GapBatchSampler,
    LinearChain,
    LinearMulticlass,
    LinearSegments,
    MeanParts,
    Relative,
    SoftmaxMargin,
    Solver,
    SparseLinearChain,
    StructuredHinge,
    certify,
    make_trainer,
    solve,
)
from torchssvm.core.batch import Batch, to_device
from torchssvm.datasets import OCR, CoNLL2000, PaddedDataset
from torchssvm.steps import MaxOracle
from torchssvm.steps.box_qp import solve_box_qp
from torchssvm.structures.chain.oracle import viterbi

Figures = dict[str, Any]
Row = tuple[str, Callable[[], Figures]]
ROOT = Path(__file__).resolve().parents[1]
LIMIT = 240.0  # seconds of a row
FEATURES, STATES, LONGEST = 128, 26, 14  # those of handwritten words


class Bench:
    """Where and how large, and what a part's rows are."""

    def __init__(self, device: torch.device, quick: bool, out: Path) -> None:
        self.device, self.quick, self.out = device, quick, out
        self.curves: dict[str, list[tuple[float, float]]] = {}  # relative gaps over seconds

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], repeats: int = 20) -> float:
        """Median seconds of a call, of as many as ``repeats`` after two that do not count."""
        results = []
        for _ in range(2 + (1 if self.quick else repeats)):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            results.append(time.perf_counter() - start)
        return statistics.median(results[2:])

    # training

    def training(self) -> Iterator[Row]:
        """A network under the head; then to a gap by equal rules, on the device and by the compiled loop of the CPU."""
        yield "joint CNN training", self.joint
        sides = [(f"device, batches of {size}", self.device, size) for size in ((4,) if self.quick else (64, 1024))]
        sides.append(("compiled, CPU", torch.device("cpu"), None))
        for what, data in [("OCR-large", self.words), ("CoNLL-2000", self.chunks)]:
            for name, where, size in sides:
                yield f"{what}: {name}", lambda d=data, n=name, w=where, z=size: self.race(*d(), n, w, z)

    def words(self) -> tuple[Any, Callable[[], nn.Module]]:
        """Handwritten words: few, where it is quick."""
        data: Any = OCR("train", "small" if self.quick else "large")
        if self.quick:
            data = PaddedDataset(data.x[:6], data.y[:6], data.lengths[:6])
        return data, lambda: LinearChain(FEATURES, STATES)

    def chunks(self) -> tuple[Any, Callable[[], nn.Module]]:
        """Text chunking."""
        if self.quick:
            raise FileNotFoundError("CoNLL-2000: quick runs read no files")
        data = CoNLL2000("train", min_count=3)
        return data, lambda: SparseLinearChain(data.in_features, data.num_states, structure=Chain(data.num_states))

    def race(self, data: Any, make: Callable[[], nn.Module], name: str, where: torch.device, size: Any) -> Figures:
        """Seconds to relative gaps, by plain Frank-Wolfe steps on both sides, and the gap over seconds in race.png."""
        rules = {"direction": FrankWolfe(), "oracle": MaxOracle(), "compiled": size is None, "batch_size": size}
        lam, limit = 1.0 / len(data), 1.0 if self.quick else 15.0
        curve: list[tuple[float, float]] = []

        def run(passes: float) -> None:
            head, start = make().to(where), time.perf_counter()

            def check(certificate: Any) -> None:
                curve.append((time.perf_counter() - start, certificate.relative_gap))
                if curve[-1][0] > limit:
                    raise _Over

            solver = Solver(**rules, storage=MeanParts())
            options = {"tolerance": Relative(0.01), "max_passes": passes, "on_check": check, "progress": False}
            with suppress(_Over):
                solve(head, data, lam, solver=solver, **options)
            self.wait()

        run(0.1)  # compiles
        curve.clear()
        run(1.0 if self.quick else 300.0)
        self.curves[name] = curve
        draw(self.curves, self.out / "race.png")
        reached = {
            f"s to {gap}": next((s for s, results in curve if results <= gap), None) for gap in (0.5, 0.2, 0.1, 0.05)
        }
        return {"examples": len(data), **reached, "last gap": curve[-1][1], "seconds": curve[-1][0]}

    def joint(self) -> Figures:
        """Images a second of a convolutional network and a chain, by Adam on the structured hinge."""
        data = OCR("train", "small" if self.quick else "large")
        sides = {"device": self.device, f"CPU, {torch.get_num_threads()} threads": torch.device("cpu")}
        return {f"{name}: images/s": self.images(data, where) for name, where in sides.items()}

    def images(self, data: OCR, device: torch.device) -> float:
        """As :meth:`joint`, on one device, padding counted."""
        network = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten()),
        ).to(device)
        head = LinearChain(512, STATES).to(device)
        hinge, adam = StructuredHinge(head.structure), torch.optim.Adam([*network.parameters(), *head.parameters()])
        loader = DataLoader(data, batch_size=8 if self.quick else 256, collate_fn=data.collate)
        batches = [batch for batch, _ in zip(loader, range(3 if self.quick else 1000), strict=False)]
        for counts in (False, True):  # the first epoch compiles
            images, start = 0, time.perf_counter()
            for batch in batches:
                batch = to_device(batch, device)
                size = batch.y.shape
                made = network(batch.x.view(-1, 1, 16, 8)).view(*size, 512)
                adam.zero_grad()
                hinge(head(made, batch.lengths), batch.y).backward()
                adam.step()
                images += int(size.numel()) if counts else 0
            self.wait()
        return images / (time.perf_counter() - start)

    # steps

    def steps(self) -> Iterator[Row]:
        """An exact pass, steps, certificates, and two runs."""
        sizes = (4,) if self.quick else (64, 1024, 4096)
        yield "exact pass over OCR-large, one batch", self.exact_pass
        for size in sizes:
            yield f"step of {size} chains", lambda size=size: self.step(size)
        yield "losses by marginals", self.soft
        for size in sizes if self.quick else (256, 1024, 4096):
            yield f"certificate of 4096 chains in batches of {size}", lambda size=size: self.certificate(size)

    def chains(self, number: int, states: int = STATES) -> Batch:
        """Random chains, on the CPU."""
        random = torch.Generator().manual_seed(0)
        x = torch.randn(number, LONGEST, FEATURES, generator=random)
        y = (x @ torch.randn(FEATURES, states, generator=random)).argmax(2)
        lengths = torch.randint(4, LONGEST + 1, (number,), generator=random)
        y[torch.arange(LONGEST) >= lengths.unsqueeze(1)] = -1
        return Batch(x, y, torch.arange(number), lengths)

    def trainer(self, number: int) -> tuple[nn.Module, DualState, Callable[[Batch], None]]:
        """A head, its dual, and one step of a batch."""
        head = LinearChain(FEATURES, STATES).to(self.device)
        dual = DualState.for_head(head, num_examples=number, lam=1.0 / number)
        loss = BlockGap(dual)
        optim = BCFW(head.parameters(), dual)

        def step(batch: Batch) -> None:
            optim.zero_grad()
            loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
            optim.step()

        return head, dual, step

    def step(self, size: int) -> Figures:
        """Milliseconds of wall and of device time, chains a second, and how often CUDA is called."""
        batch = to_device(self.chains(size), self.device)
        _, _, step = self.trainer(size)
        seconds = self.seconds(lambda: step(batch))
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if torch.version.cuda:
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=kinds) as profile:
            step(batch)
            self.wait()
        events = profile.key_averages()
        counts = {event.key: event.count for event in events if event.key.startswith("cu")}  # Triton starts by cuLaunch
        # A kernel's time stands a second time at the operator that launched it, and ranges last longer than kernels.
        kernels = [e for e in events if e.device_type != torch.autograd.DeviceType.CPU and not e.is_user_annotation]
        busy = sum(event.self_device_time_total for event in kernels) / 1e3
        return {"ms": 1e3 * seconds, "ms on the device": busy, "chains/s": size / seconds, "calls of CUDA": counts}

    def exact_pass(self) -> Figures:
        """Milliseconds of decoding all words, and of features, loss and decoding."""
        data = OCR("train", "small" if self.quick else "large")
        batch = to_device(data.collate([data[i] for i in range(4 if self.quick else len(data))]), self.device)
        head = LinearChain(FEATURES, STATES).to(self.device)
        potentials = head(batch.x, batch.lengths).tensors
        emission, transition = potentials["emission"].detach(), potentials["transition"].detach()
        pieces = {
            "decoding ms": lambda: viterbi(emission, transition, batch.lengths),
            "features, loss and decoding ms": lambda: head.structure.augmented_argmax(
                head(batch.x, batch.lengths), batch.y
            ),
        }
        return {name: 1e3 * self.seconds(call) for name, call in pieces.items()} | {"words": len(batch.y)}

    def soft(self) -> Figures:
        """Milliseconds of a loss and its gradients: softmax-margin beside the likelihood of pytorch-crf."""
        batch, longest, states = (2, 5, 3) if self.quick else (32, 50, 23)
        random = torch.Generator().manual_seed(0)
        x = torch.randn(batch, longest, FEATURES, generator=random).to(self.device)
        heads = {
            "chains": LinearChain(FEATURES, states),
            "segments": LinearSegments(FEATURES, states, min(longest, 32)),
        }
        results: Figures = {"B, T, K": [batch, longest, states]}
        for name, head in heads.items():
            head.to(self.device)
            loss = SoftmaxMargin(head.structure)
            with torch.no_grad():
                for p in head.parameters():
                    p.copy_(torch.randn(p.shape, generator=random))
                y = head.structure.argmax(head(x)).labeling
            results[f"{name} ms"] = 1e3 * self.seconds(lambda h=head, f=loss, y=y: f(h(x), y).backward())
        try:
            from torchcrf import CRF
        except ImportError:
            return results
        layer, emission = CRF(states, batch_first=True).to(self.device), nn.Linear(FEATURES, states).to(self.device)
        y = torch.randint(states, (batch, longest), generator=random).to(self.device)
        results["chains, pytorch-crf ms"] = 1e3 * self.seconds(lambda: layer(emission(x), y).backward())
        return results

    def certificate(self, size: int) -> Figures:
        """Milliseconds of primal, dual and gap."""
        number = 8 if self.quick else 4096
        whole = to_device(self.chains(number), self.device)
        batches = [
            Batch(*(tensor[rows] for tensor in whole)) for rows in torch.arange(number, device=self.device).split(size)
        ]
        head, dual, step = self.trainer(number)
        step(batches[0])
        return {"ms": 1e3 * self.seconds(lambda: certify(head, dual, batches), repeats=5)}

    def twice(self) -> Figures:
        """Whether two runs end at the same bits, and where they do not."""
        number, size = (8, 4) if self.quick else (2048, 64)
        whole = self.chains(number)
        ends = []
        for _ in range(2):
            head, dual, step = self.trainer(number)
            sampler = GapBatchSampler(dual, batch_size=size)
            for _ in range(3):
                for rows in sampler:
                    step(to_device(Batch(*(tensor[torch.as_tensor(rows)] for tensor in whole)), self.device))
            ends.append([*(p.detach().cpu() for p in head.parameters()), dual.loss.cpu()])
        return {"same bits": all(torch.equal(a, b) for a, b in zip(*ends, strict=True)), "epochs": 3}

    # kernels

    def kernels(self) -> Iterator[Row]:
        """What compiling takes, and whether each kernel finds what its twin on the CPU does."""
        sizes: dict[str, Any] = {"size": 3, "states": (2, 3), "blocks": (2, 3)} if self.quick else {}
        there, here = (launches(device, **sizes) for device in (self.device, torch.device("cpu")))
        for name in there:
            yield name, lambda name=name: self.twins(there[name], here[name])
        yield "two runs, compared in bits", self.twice

    def twins(self, there: Callable[[], Any], here: Callable[[], Any]) -> Figures:
        """Seconds of the first call and of the next, and agreement: in bits, or the largest difference."""
        results: Figures = {}
        for name in ("first s", "next s"):
            start = time.perf_counter()
            mine = there()
            self.wait()
            results[name] = time.perf_counter() - start
        pairs = [(a.cpu(), b) for a, b in zip(tensors(mine), tensors(here()), strict=True)]
        results["same bits"] = all(torch.equal(a, b) for a, b in pairs)
        if not results["same bits"]:
            results["largest difference"] = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
        return results

    # large outputs

    def large(self) -> Iterator[Row]:
        """Many states, classes of many features, and the box QP by its size."""
        for shape in [(4, 5, 3)] if self.quick else [(1024, 14, 128), (64, 14, 1000), (4096, 14, 26)]:
            yield f"Viterbi, B, T, K = {shape}", lambda shape=shape: self.decoders(list(shape))
        for features in (8,) if self.quick else (8192, 1024, 512, 256, 128):
            yield f"1000 classes, {features} features", lambda size=features: self.classes(size)
        for states in (3,) if self.quick else (1000, 512, 256, 128, 64):
            yield f"chains of {states} states", lambda size=states: self.chain_visits(size)
        for blocks in (8,) if self.quick else (16, 64, 256, 512, 1024, 2048):
            yield f"box QP of {blocks} blocks", lambda blocks=blocks: self.box_qp(blocks)

    def classes(self, features: int) -> Figures:
        """Visits a second of 1000 classes, on the device and in the compiled loop of the CPU."""
        number, labels = (20, 3) if self.quick else (4096, 1000)
        random = torch.Generator().manual_seed(0)
        x = torch.randn(number, features, generator=random)
        data = PaddedDataset(x, (x @ torch.randn(features, labels, generator=random)).argmax(1))
        return self.visits(lambda: LinearMulticlass(features, labels), data)

    def chain_visits(self, states: int) -> Figures:
        """Visits a second of chains of many states, on the device and in the compiled loop of the CPU."""
        batch = self.chains(8 if self.quick else 1024, states)
        return self.visits(lambda: LinearChain(FEATURES, states), PaddedDataset(batch.x, batch.y, batch.lengths))

    def visits(self, make: Callable[[], nn.Module], data: PaddedDataset) -> Figures:
        """Visits a second by plain Frank-Wolfe steps, on the device and in the compiled loop of the CPU."""
        results: Figures = {}
        sides = [(f"device, batches of {size}", self.device, size) for size in ((4,) if self.quick else (64, 256))]
        for name, where, size in (*sides, ("compiled, CPU", torch.device("cpu"), None)):
            rules = {"direction": FrankWolfe(), "oracle": MaxOracle(), "compiled": size is None}
            solver = Solver(**rules, storage=MeanParts(), batch_size=size)
            trainer = make_trainer(make().to(where), data, 1.0 / len(data), solver=solver, progress=False)
            trainer.step()  # compiles
            self.wait()
            visits, start = 0, time.perf_counter()
            while visits < len(data) and time.perf_counter() - start < (1.0 if self.quick else 2.0):
                visits += trainer.step()
                self.wait()
            results[f"{name}: visits/s"] = visits / (time.perf_counter() - start)
        return results

    # checks

    def checks(self) -> Iterator[Row]:
        """Every kernel a thousand times in bits, and NVIDIA's sanitizer, which sees races of shared memory alone."""
        script = [sys.executable, str(ROOT / "benchmarks/every_kernel.py")]
        if self.quick:
            script += ["--quick"]
        yield (
            "each kernel again in other orders",
            lambda: self.run([*script, "--repeat", "2" if self.quick else "1000"], 240),
        )
        for tool in ("memcheck", "synccheck", "initcheck"):
            yield f"compute-sanitizer {tool}", lambda tool=tool: self.sanitize(tool, script)

    def decoders(self, shape: list[int]) -> Figures:
        """Milliseconds of a call of every side."""
        results = oracles.viterbi(shape, 0.01 if self.quick else 1.0, 0, self.device.type)
        return {f"{name} ms": 1e3 * min(times.values()) for name, times in results["seconds"].items()} | results[
            "skipped"
        ]

    def box_qp(self, blocks: int) -> Figures:
        """Milliseconds on the device and on the CPU, and whether the steps have the same bits."""
        random = torch.Generator().manual_seed(blocks)
        factors = torch.randn(blocks, 2 * blocks, generator=random, dtype=torch.float64)
        gram, values = factors @ factors.t(), torch.randn(blocks, generator=random, dtype=torch.float64).abs()
        there = gram.to(self.device), values.to(self.device)
        same = torch.equal(solve_box_qp(*there, 5).cpu(), solve_box_qp(gram, values, 5))
        return {
            "device ms": 1e3 * self.seconds(lambda: solve_box_qp(*there, 5)),
            "CPU ms": 1e3 * self.seconds(lambda: solve_box_qp(gram, values, 5)),
            "same bits": same,
        }

    def sanitize(self, tool: str, script: list[str]) -> Figures:
        """NVIDIA's checker over every Triton kernel, whose compiled code the row before has left in the cache."""
        if (program := shutil.which("compute-sanitizer")) is None:
            raise FileNotFoundError("compute-sanitizer is not installed")
        command = [program, "--tool", tool, "--error-exitcode", "9", *script]
        # With torch's allocator, memcheck would not notice what is read beyond a tensor.
        return self.run(command, 150.0, kept=f"{tool}.txt", PYTORCH_NO_CUDA_MEMORY_CACHING="1")

    # tests

    def tests(self) -> Iterator[Row]:
        """The tests marked cuda, those of the kernels first."""
        if self.quick:
            yield "pytest", lambda: self.run([sys.executable, "-m", "pytest", "--version"], 60.0)
            return
        for folder in ("structures/test_triton.py", "dual", "steps", "solvers", "structures", "core", "datasets"):
            command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-n", "0", str(ROOT / "tests" / folder)]
            yield f"tests/{folder}", lambda command=command: self.run(command, 240.0)

    def run(self, command: list[str], limit: float, kept: str | None = None, **environment: str) -> Figures:
        """The exit status and the last lines of a command; what it says is kept in a file."""
        variables = {**os.environ, **environment}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, env=variables)
        if kept is not None:
            (self.out / kept).write_text(done.stdout + done.stderr)
        told = ("FAILED", "ERROR", "========= ")  # of pytest and of compute-sanitizer
        lines = [line for line in done.stdout.splitlines() if line.startswith(told) or " in " in line]
        return {"exit status": done.returncode, "said": lines[-12:] or done.stdout[-300:]}


PARTS = ("kernels", "steps", "large", "training", "checks", "tests")


class _Over(Exception):
    """The seconds of a race are over."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside after so many seconds."""

    def over(*_: Any) -> None:
        raise TimeoutError(f"{seconds:.0f} s are over")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def tensors(results: Any) -> list[torch.Tensor]:
    """The tensors of a kernel's result."""
    if isinstance(results, torch.Tensor):
        return [results]
    return [one for part in results for one in tensors(part)] if isinstance(results, (tuple, list)) else []


def draw(curves: dict[str, list[tuple[float, float]]], file: Path) -> None:
    """Gaps over seconds, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        axes.loglog(*zip(*curve, strict=True), marker=".", label=name)
    axes.set(xlabel="seconds", ylabel="relative gap")
    axes.legend()
    figure.savefig(file)


class Report:
    """Figures in a file of JSON lines and a Markdown table, each written down at once."""

    def __init__(self, folder: Path, device: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lines, self.table, self.device = folder / "device.jsonl", folder / "device.md", device
        if not self.table.exists():
            self._append(self.table, f"On {device}.\n\n| part | what | figures | seconds |\n|---|---|---|---|")

    def _append(self, file: Path, text: str) -> None:
        with file.open("a") as out:
            out.write(text + "\n")
            out.flush()
            os.fsync(out.fileno())

    def add(self, part: str, what: str, results: Figures, seconds: float) -> None:
        """Write one row down, and print it."""
        row = {"part": part, "what": what, "found": results, "seconds": seconds, "device": self.device}
        self._append(self.lines, json.dumps(row, default=str))
        said = ", ".join(
            f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}"
            for name, value in results.items()
        )
        said = said.replace("\n", " ").replace("|", "/")
        self._append(self.table, f"| {part} | {what} | {said} | {seconds:.1f} |")
        print(f"{part}: {what}: {said}", flush=True)


def main() -> None:
    """Read the flags and run the parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="again for another; none is all of them")
    parser.add_argument("--only", default="", metavar="TEXT", help="the rows whose name contains this text")
    parser.add_argument("--out", type=Path, default=Path("runs/device"))
    parser.add_argument("--minutes", type=float, default=8.0, help="of a part; no row ends later")
    parser.add_argument("--quick", action="store_true", help="tiny sizes on the pretended device")
    flags = parser.parse_args()
    if not flags.quick and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --quick runs every part at tiny sizes on a pretended one")
    with ExitStack() as stack:
        if not torch.cuda.is_available():
            sys.path.insert(0, str(ROOT / "tests/support"))
            from cases.pretended_device import pretended_device

            stack.enter_context(pretended_device())
        measure(flags)


def measure(flags: argparse.Namespace) -> None:
    """Run the parts."""
    real = torch.cuda.get_device_name()
    name = f"{real}, at tiny sizes: these are no measurements" if flags.quick else real
    report, bench = Report(flags.out, name), Bench(torch.device("cuda", 0), flags.quick, flags.out)
    warnings.filterwarnings("ignore", message="the run ended at max_passes")  # the row says so
    report.add("machine", name, describe_machine() | {"cuda": torch.version.cuda}, 0.0)
    for part in flags.part or PARTS:
        began = time.perf_counter()
        for what, row in getattr(bench, part)():
            if flags.only not in what:
                continue
            start = time.perf_counter()
            if (left := 60.0 * flags.minutes - (start - began)) <= 0.0:
                report.add(part, what, {"not run": f"the part's {flags.minutes:g} minutes are over"}, 0.0)
                continue
            try:
                with limited(min(left, LIMIT)):
                    results = row()
            except Exception as error:  # it is written down, and the others are measured
                results = {"not measured": f"{type(error).__name__}: {error}"[:500]}
            report.add(part, what, results, time.perf_counter() - start)


if __name__ == "__main__":
    main()
