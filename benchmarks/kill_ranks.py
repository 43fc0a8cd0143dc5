"""Several processes under torchrun, of which a random one is killed again and again, against a run left alone.

    python benchmarks/kill_ranks.py [--kills 100] [--processes 2] [--timeout 10] [--seed 0]

``torchrun --max-restarts`` starts all processes again when one is killed, and they go on from the last checkpoint. What
the run ends with (weights and certificate) is compared bit for bit with what the run left alone ended with. Counted are
kills, restarts that lost a checkpoint whose save had returned, and hangs: kills after which a process was still waiting
for the killed one when the timeout of the process group, and the seconds that torchrun takes, were over.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist

from torchssvm import (
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    Labelings,
    LinearChain,
    in_order,
    load_checkpoint,
    save_checkpoint,
)
from torchssvm.datasets import OCR

PASSES = 20.0
STARTING = 60.0  # seconds that torchrun and the imports may take on a busy machine, beyond the timeout


def train(folder: Path, timeout: float) -> None:
    """What torchrun starts: a compiled loop that saves after every step; says what it loaded and saved."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    rank = dist.get_rank()

    def tell(what: str, step: int) -> None:
        with open(folder / "told.txt", "a", encoding="ascii") as file:
            file.write(f"{time.time()} {rank} {os.getpid()} {what} {step}\n")

    tell("started", 0)
    data = OCR(split="train", size="small")
    head = LinearChain(in_features=128, num_states=26)
    dual = DualState.for_head(head, len(data), lam=0.01, storage=Labelings(capacity=6))
    rules = {"direction": Corrective(), "oracle": CacheOracle()}
    loop = CompiledBCFW(head, dual, in_order(data), **rules, round_visits=8)
    path, step = folder / "run.pt", 0
    if path.exists():
        step = load_checkpoint(path, loop=loop, dual=dual)["step"]
    tell("loaded", step)
    while dual.passes < PASSES:
        loop.step()
        step += 1
        if step % 20 == 0:
            loop.certify()
        save_checkpoint(path, loop=loop, dual=dual, step=step)
        tell("saved", step)
    proof = loop.certify()
    if rank == 0:
        weights = [p.detach() for p in head.parameters()]
        torch.save({"weights": weights, "primal": proof.primal, "dual": proof.dual}, folder / "end.pt")
    dist.destroy_process_group()


def told(folder: Path) -> list[tuple[float, int, int, str, int]]:
    """What the processes have told: moment, rank, process, word, step."""
    path = folder / "told.txt"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    fields = [line.split() for line in lines if len(line.split()) == 5]
    return [(float(at), int(rank), int(process), what, int(step)) for at, rank, process, what, step in fields]


def start(folder: Path, processes: int, restarts: int, timeout: float) -> subprocess.Popen[bytes]:
    """Torchrun, with this file."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", __file__]
    command += ["--train", str(folder), "--timeout", str(timeout)]
    # Restarted processes may otherwise look for the addresses of those that were killed (torch #135712).
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with open(folder / "log.txt", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=settings)


def attack(folder: Path, kills: int, processes: int, timeout: float, choices: random.Random) -> tuple[int, int, int]:
    """Kill random processes at random moments until ``kills`` were; returns kills, hangs and lost checkpoints."""
    running = start(folder, processes, 3 * kills + 5, timeout)  # torchrun itself may fail to start on a busy machine
    try:
        return _attack(running, folder, kills, processes, timeout, choices)
    finally:
        running.terminate()  # and with it the processes that it has started, where this one is interrupted


def _attack(
    running: subprocess.Popen[bytes],
    folder: Path,
    kills: int,
    processes: int,
    timeout: float,
    choices: random.Random,
) -> tuple[int, int, int]:
    done = hangs = lost = 0
    while running.poll() is None:
        time.sleep(0.01)
        words = told(folder)
        here = {rank: process for _, rank, process, what, _ in words if what == "started"}
        loads = [(at, step) for at, _, _, what, step in words if what == "loaded"]
        if done == kills or len(here) < processes or len(loads) < processes * (done + 1):
            continue
        time.sleep(choices.uniform(0.0, 1.5))
        saved = max((step for _, _, _, what, step in told(folder) if what == "saved"), default=0)
        killed = time.time()
        try:
            os.kill(here[choices.randrange(processes)], signal.SIGKILL)
        except ProcessLookupError:  # it has come to its end
            continue
        done += 1
        while running.poll() is None and len(again := _loads(folder, killed)) < processes:
            if time.time() - killed > timeout + STARTING:
                hangs += 1
                break
            time.sleep(0.05)
        else:
            lost += any(step < saved for step in again) if running.poll() is None else 0
    if running.returncode:
        sys.stderr.write((folder / "log.txt").read_text()[-4000:])
        raise RuntimeError(f"the run failed by itself: see above, and {folder}")
    return done, hangs, lost


def _loads(folder: Path, since: float) -> list[int]:
    """The steps that the processes have loaded since then."""
    return [step for at, _, _, what, step in told(folder) if what == "loaded" and at > since]


def main() -> None:
    """Run alone, then killed; the exit status is 1 if something hung, was lost or differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=10.0, help="of the process group, in seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path, help="a process of torchrun: the folder of the run")
    args = parser.parse_args()
    if args.train is not None:
        train(args.train, args.timeout)
        return
    begun, choices = time.perf_counter(), random.Random(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        alone = Path(scratch) / "alone"
        if status := start(alone, args.processes, 0, max(args.timeout, 60.0)).wait():
            raise RuntimeError(f"the run left alone ended with {status}: {(alone / 'log.txt').read_text()[-4000:]}")
        expected = torch.load(alone / "end.pt", weights_only=True)
        kills = hangs = lost = differing = runs = 0
        while kills < args.kills:
            folder = Path(scratch) / f"run{runs}"
            done, hung, gone = attack(folder, args.kills - kills, args.processes, args.timeout, choices)
            kills, hangs, lost, runs = kills + done, hangs + hung, lost + gone, runs + 1
            results = torch.load(folder / "end.pt", weights_only=True)
            same = all(torch.equal(a, b) for a, b in zip(results["weights"], expected["weights"], strict=True))
            differing += not same or (results["primal"], results["dual"]) != (expected["primal"], expected["dual"])
    gap = expected["primal"] - expected["dual"]
    print(
        f"{args.processes} processes: {kills} kills in {runs} runs, {hangs} hangs, {lost} lost checkpoints, "
        f"{differing} differing runs, gap {gap:.4f}, {time.perf_counter() - begun:.0f} s"
    )
    sys.exit(bool(hangs or lost or differing))


if __name__ == "__main__":
    main()
