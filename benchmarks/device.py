"""What is to be known on the day that there is a CUDA device, in parts of at most nine minutes each.

python benchmarks/device.py --part training|steps|kernels|tests [--out FOLDER] [--minutes 9] [--quick]

Every figure is written to FOLDER/device.jsonl and FOLDER/device.md as it comes, the most telling first; a row that
fails, or that lacks a package, data or time, says so and stops no other. --quick runs every part at tiny sizes on the
CPU, which shows that the lines work and measures nothing. Data: handwritten words come with the package; CoNLL-2000 is
read below TORCHSSVM_DATA or downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine
from suite import oracles
from torch import nn
from torch.utils.data import DataLoader

from torchssvm import (
    BCFW,
    BlockGap,
    DualState,
    GapBatchSampler,
    LinearChain,
    LinearMulticlass,
    Relative,
    Solver,
    SparseLinearChain,
    StructuredHinge,
    certify,
    solve,
)
from torchssvm.core.batch import Batch, to_device
from torchssvm.datasets import OCR, CoNLL2000, PaddedDataset
from torchssvm.steps.box_qp import solve_box_qp
from torchssvm.structures.chain.oracle import viterbi

Figures = dict[str, Any]
Row = tuple[str, Callable[[], Figures]]
ROOT = Path(__file__).resolve().parents[1]
FEATURES, STATES, LONGEST = 128, 26, 14  # those of handwritten words


class Bench:
    """Where and how large, and what a part's rows are."""

    def __init__(self, device: torch.device, quick: bool) -> None:
        self.device, self.quick = device, quick

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], repeats: int = 20) -> float:
        """Median seconds of a call, of as many as ``repeats`` after two that do not count."""
        found = []
        for _ in range(2 + (1 if self.quick else repeats)):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            found.append(time.perf_counter() - start)
        return statistics.median(found[2:])

    # training

    def training(self) -> Iterator[Row]:
        """To a gap on the device and by the compiled loop of the CPU; then a network under the head."""
        for gap in (0.05, 0.01):
            yield f"OCR-large to gap {gap}", lambda gap=gap: self.race(*self.words(), gap)
        yield "joint CNN training", self.joint
        for gap in (0.05, 0.01):
            yield f"CoNLL-2000 to gap {gap}", lambda gap=gap: self.race(*self.chunks(), gap)
        for features in (8,) if self.quick else (128, 1024, 8192):
            yield f"classes of {features} features", lambda size=features: self.race(*self.classes(size), 0.05)

    def words(self) -> tuple[Any, Callable[[], nn.Module]]:
        """Handwritten words: few, where it is quick."""
        return OCR("train", "small" if self.quick else "large"), lambda: LinearChain(FEATURES, STATES)

    def chunks(self) -> tuple[Any, Callable[[], nn.Module]]:
        """Text chunking."""
        if self.quick and not os.environ.get("TORCHSSVM_DATA"):
            raise FileNotFoundError("CoNLL-2000: TORCHSSVM_DATA is not set, and quick runs download nothing")
        data = CoNLL2000("train", min_count=3)
        return data, lambda: SparseLinearChain(data.in_features, data.num_states)

    def classes(self, features: int) -> tuple[Any, Callable[[], nn.Module]]:
        """Classes with so many multiplications a visit that the device may win: see ``choice.LONG_VISIT``."""
        number, labels = (20, 3) if self.quick else (4096, 1000)
        random = torch.Generator().manual_seed(0)
        x = torch.randn(number, features, generator=random)
        y = (x @ torch.randn(features, labels, generator=random)).argmax(1)
        return PaddedDataset(x, y), lambda: LinearMulticlass(features, labels)

    def race(self, data: Any, make: Callable[[], nn.Module], gap: float) -> Figures:
        """Seconds to a relative gap."""
        found: Figures = {"examples": len(data)}
        lam, passes = 1.0 / len(data), 2.0 if self.quick else 300.0
        for name, where, compiled in (("device", self.device, False), ("compiled, CPU", torch.device("cpu"), True)):
            head = make().to(where)
            self.wait()
            start = time.perf_counter()
            result = solve(
                head,
                data,
                lam,
                tolerance=Relative(gap),
                max_passes=passes,
                solver=Solver(compiled=compiled),
                progress=False,
            )
            self.wait()
            found |= {f"{name} s": time.perf_counter() - start, f"{name} gap": result.relative_gap}
            found[f"{name} passes"] = result.passes
        return found

    def joint(self) -> Figures:
        """Images a second of a convolutional network and a chain, by Adam on the structured hinge."""
        data = OCR("train", "small" if self.quick else "large")
        network = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten()),
        ).to(self.device)
        head = LinearChain(512, STATES).to(self.device)
        hinge, adam = StructuredHinge(head.structure), torch.optim.Adam([*network.parameters(), *head.parameters()])
        loader = DataLoader(data, batch_size=8 if self.quick else 256, collate_fn=data.collate)
        batches = [batch for batch, _ in zip(loader, range(3 if self.quick else 1000), strict=False)]
        for counts in (False, True):  # the first epoch compiles
            images, start = 0, time.perf_counter()
            for batch in batches:
                batch = to_device(batch, self.device)
                size = batch.y.shape
                made = network(batch.x.view(-1, 1, 16, 8)).view(*size, 512)
                adam.zero_grad()
                hinge(head(made, batch.lengths), batch.y).backward()
                adam.step()
                images += int(size.numel()) if counts else 0
            self.wait()
        return {"images/s": images / (time.perf_counter() - start), "with padding": True}

    # steps

    def steps(self) -> Iterator[Row]:
        """A step, a certificate, and two runs."""
        sizes = (4,) if self.quick else (64, 1024, 4096)
        for size in sizes:
            yield f"step of {size} chains", lambda size=size: self.step(size)
        yield "exact pass over OCR-large, one batch", self.exact_pass
        for size in sizes if self.quick else (256, 1024, 4096):
            yield f"certificate of 4096 chains in batches of {size}", lambda size=size: self.certificate(size)
        yield "two runs, compared in bits", self.twice

    def chains(self, number: int) -> Batch:
        """Random chains, on the CPU."""
        random = torch.Generator().manual_seed(0)
        x = torch.randn(number, LONGEST, FEATURES, generator=random)
        y = (x @ torch.randn(FEATURES, STATES, generator=random)).argmax(2)
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
        """Milliseconds, chains a second, and how often the device is called and waited for."""
        batch = to_device(self.chains(size), self.device)
        _, _, step = self.trainer(size)
        seconds = self.seconds(lambda: step(batch))
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=kinds) as profile:
            step(batch)
            self.wait()
        counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("cuda")}
        return {"ms": 1e3 * seconds, "chains/s": size / seconds, "calls of CUDA": counts}

    def exact_pass(self) -> Figures:
        """The promise is 3 ms."""
        data = OCR("train", "small" if self.quick else "large")
        batch = to_device(data.collate([data[i] for i in range(32 if self.quick else len(data))]), self.device)
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
        """Decoders beside others on the same device, and the box QP by its size."""
        for shape in [(4, 5, 3)] if self.quick else [(4096, 14, 26), (1024, 14, 128), (64, 14, 1000)]:
            yield f"Viterbi, B, T, K = {shape}", lambda shape=shape: self.decoders(list(shape))
        for blocks in (8,) if self.quick else (16, 64, 256, 512, 1024, 2048):
            yield f"box QP of {blocks} blocks", lambda blocks=blocks: self.box_qp(blocks)
        for tool in ("memcheck", "racecheck"):
            yield f"compute-sanitizer {tool}", lambda tool=tool: self.sanitize(tool)

    def decoders(self, shape: list[int]) -> Figures:
        """Milliseconds of a call of every side."""
        found = oracles.viterbi(shape, 0.01 if self.quick else 1.0, 0, self.device.type)
        return {f"{name} ms": 1e3 * min(times.values()) for name, times in found["seconds"].items()} | found["skipped"]

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

    def sanitize(self, tool: str) -> Figures:
        """NVIDIA's checker over every Triton kernel."""
        if (program := shutil.which("compute-sanitizer")) is None:
            raise FileNotFoundError("compute-sanitizer is not installed")
        checked = [program, "--tool", tool, "--error-exitcode", "9"]
        command = [*checked, sys.executable, str(ROOT / "benchmarks/every_kernel.py")]
        # With torch's own allocator, memcheck would not notice what is read beyond a tensor.
        return self.run(command, 150.0, PYTORCH_NO_CUDA_MEMORY_CACHING="1")

    # tests

    def tests(self) -> Iterator[Row]:
        """The tests marked cuda, those of the kernels first."""
        if self.quick:
            yield "pytest", lambda: self.run([sys.executable, "-m", "pytest", "--version"], 60.0)
            return
        for folder in ("structures/test_triton.py", "dual", "steps", "solvers", "structures", "core", "datasets"):
            command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-n", "0", str(ROOT / "tests" / folder)]
            yield f"tests/{folder}", lambda command=command: self.run(command, 240.0)

    def run(self, command: list[str], limit: float, **environment: str) -> Figures:
        """The exit status and the last lines of a command."""
        own = {**os.environ, **environment}
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, env=own)
        told = ("FAILED", "ERROR", "========= ")  # of pytest and of compute-sanitizer
        lines = [line for line in done.stdout.splitlines() if line.startswith(told) or " in " in line]
        return {"exit status": done.returncode, "said": lines[-12:] or done.stdout[-300:]}


PARTS = ("training", "steps", "kernels", "tests")


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

    def add(self, part: str, what: str, found: Figures, seconds: float) -> None:
        """Write one row down, and print it."""
        row = {"part": part, "what": what, "found": found, "seconds": seconds, "device": self.device}
        self._append(self.lines, json.dumps(row, default=str))
        said = ", ".join(
            f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}" for name, value in found.items()
        )
        said = said.replace("\n", " ").replace("|", "/")
        self._append(self.table, f"| {part} | {what} | {said} | {seconds:.1f} |")
        print(f"{part}: {what}: {said}", flush=True)


def main() -> None:
    """Read the flags and run the parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="again for another; none is all of them")
    parser.add_argument("--out", type=Path, default=Path("runs/device"))
    parser.add_argument("--minutes", type=float, default=9.0, help="of a part; no row begins later")
    parser.add_argument("--quick", action="store_true", help="tiny sizes on the CPU: shows that every line works")
    flags = parser.parse_args()
    if not flags.quick and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --quick runs every part at tiny sizes on the CPU")
    device = torch.device("cpu" if flags.quick else "cuda")
    name = "the CPU, at tiny sizes: these are no measurements" if flags.quick else torch.cuda.get_device_name()
    report, bench = Report(flags.out, name), Bench(device, flags.quick)
    warnings.filterwarnings("ignore", message="the run ended at max_passes")  # the row says so
    report.add("machine", name, describe_machine() | {"cuda": torch.version.cuda}, 0.0)
    for part in flags.part or PARTS:
        began = time.perf_counter()
        for what, measure in getattr(bench, part)():
            start = time.perf_counter()
            if start - began > 60.0 * flags.minutes:
                report.add(part, what, {"not run": f"the part's {flags.minutes:g} minutes are over"}, 0.0)
                continue
            try:
                found = measure()
            except Exception as error:  # it is written down, and the others are measured
                found = {"not measured": f"{type(error).__name__}: {error}"[:500]}
            report.add(part, what, found, time.perf_counter() - start)


if __name__ == "__main__":
    main()
