"""Training that is killed again and again, and goes on from its last checkpoint, against the same training left alone.

    python benchmarks/kills.py [--modes MODE ...] [--kills 200] [--seed 0]

One process imports and compiles everything, and forks every run. A run saves often and gets SIGKILL at a random moment;
the next one loads the last checkpoint, until one comes to the end. What it ends with (weights, blocks, counters,
sampler, averages, random state) is compared bit for bit with what the run left alone ended with, which saves nothing.
Counted are runs that differ, and restarts that lost work: those that did not find the last checkpoint whose save had
returned, or a later one. Needs a system with ``fork``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from kill_modes import MODES, Mode, Options, Report

try:
    from kill_lightning import MODES as LIGHTNING

    MODES.update(LIGHTNING)
except ImportError:  # Lightning is an extra
    pass


@dataclass
class Tally:
    """What happened in one mode.

    Attributes:
        runs: Runs that came to an end.
        kills: Processes killed.
        saves: Saves that had returned when the process was killed or ended.
        lost: Restarts that loaded an older checkpoint than the last one whose save had returned, or none.
        differing: The options of runs that did not end as the run left alone, with where they differ.
    """

    runs: int = 0
    kills: int = 0
    saves: int = 0
    lost: int = 0
    differing: list[tuple[Options, str]] = field(default_factory=list)


def main() -> None:
    """Run the modes; the exit status is 1 if something was lost or differed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES))
    parser.add_argument("--kills", type=int, default=200, help="for each mode, at least")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    wrong = False
    for name in args.modes:
        start = time.perf_counter()
        tally = attack(MODES[name], args.kills, args.seed)
        print(
            f"{name}: {tally.kills} kills in {tally.runs} runs, {tally.saves} saves, {tally.lost} lost, "
            f"{len(tally.differing)} differing, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
        for options, where in tally.differing:
            print(f"  {options}: {where}", flush=True)
        wrong |= bool(tally.lost or tally.differing)
    sys.exit(wrong)


def attack(mode: Mode, kills: int, seed: int, *, most_runs: int | None = None) -> Tally:
    """Kill processes of a mode until ``kills`` have been killed, and the last run has come to its end.

    Args:
        mode: What to train.
        kills: How many, at least.
        seed: Of the options of the runs and the moments.
        most_runs: Stop after so many runs in any case.
    """
    choices, tally = random.Random(seed), Tally()
    alone: dict[str, tuple[Any, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        while tally.kills < kills and tally.runs != most_runs:
            options = mode.choose(choices)
            if repr(options) not in alone:
                for _ in range(2):  # in this process: what it compiles and imports, the forked ones have
                    start = time.perf_counter()
                    (Path(scratch) / "alone").mkdir()
                    end = mode.train(options, Path(scratch) / "alone", lambda what, step: None, False)
                    shutil.rmtree(Path(scratch) / "alone")
                alone[repr(options)] = (end, time.perf_counter() - start)
            end, seconds = alone[repr(options)]
            folder = Path(scratch) / "run"
            _kill_until_over(mode, options, folder, seconds, choices, tally)
            where = "".join(list(differences(torch.load(folder / "end.pt", weights_only=True), end))[:3])
            if where:
                tally.differing.append((options, where))
            tally.runs += 1
            shutil.rmtree(folder)
    return tally


def _kill_until_over(
    mode: Mode, options: Options, folder: Path, seconds: float, choices: random.Random, tally: Tally
) -> None:
    saved, longest = 0, seconds  # the newest step whose save has returned; before when a process is killed
    while True:
        running = fork(mode, options, folder)
        ended, told = finish(running, after=choices.uniform(0.0, longest))
        longest = seconds if "saved" in told else 1.5 * longest  # on a busy machine none might come to save
        if (loaded := told.get("loaded")) is not None and loaded < saved:
            tally.lost += 1
        tally.saves += told.get("saves", 0)
        saved = max(saved, told.get("saved", 0))
        if ended:
            return
        tally.kills += 1


@dataclass
class Running:
    """A forked process, and the pipe in which it tells what it loaded and saved."""

    process: int
    pipe: int


def fork(mode: Mode, options: Options, folder: Path) -> Running:
    """Start a run in a new process and a new process group."""
    folder.mkdir(exist_ok=True)
    read, write = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process:
        os.close(write)
        return Running(process, read)
    status = 1
    try:
        os.setpgid(0, 0)
        os.close(read)
        end = mode.train(options, folder, Report(write), True)
        torch.save(end, folder / "end.partial")
        os.replace(folder / "end.partial", folder / "end.pt")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def finish(running: Running, after: float | None = None) -> tuple[bool, dict[str, int]]:
    """Kill a run, and its worker processes, after so many seconds (None: never), or see it end.

    Returns:
        Whether it came to its end, and what it told: the step that it ``loaded`` (0: none), the last step
        that it ``saved``, and how many ``saves`` there were.

    Raises:
        RuntimeError: It failed by itself.
    """
    deadline = None if after is None else time.monotonic() + after
    while deadline is None or time.monotonic() < deadline:
        done, status = os.waitpid(running.process, os.WNOHANG)
        if done:
            break
        time.sleep(0.001)
    else:
        os.kill(running.process, signal.SIGKILL)
        _, status = os.waitpid(running.process, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.process, signal.SIGKILL)  # what is left: worker processes of the loader
    told: dict[str, int] = {}
    with open(running.pipe, encoding="ascii") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            name, step = line.split()
            told[name] = int(step)
            told["saves"] = told.get("saves", 0) + (name == "saved")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False, told
    if status:
        raise RuntimeError("a run failed by itself, see above")
    return True, told


def differences(a: Any, b: Any, where: str = "") -> Iterator[str]:
    """Where two states are not the same to the bit."""
    if type(a) is not type(b):
        yield f"{where}: {type(a).__name__} and {type(b).__name__}; "
    elif isinstance(a, torch.Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            yield f"{where}: tensors {list(a.shape)} and {list(b.shape)} differ; "
    elif isinstance(a, dict):
        if a.keys() != b.keys():
            yield f"{where}: {sorted(set(a) ^ set(b))} is in one of them; "
        for name in a.keys() & b.keys():
            yield from differences(a[name], b[name], f"{where}.{name}")
    elif isinstance(a, list | tuple):
        if len(a) != len(b):
            yield f"{where}: lengths {len(a)} and {len(b)}; "
        for place, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differences(x, y, f"{where}[{place}]")
    elif a != b:
        yield f"{where}: {a} and {b}; "


if __name__ == "__main__":
    main()
