"""Viterbi: chains per second of the library's oracle and of others, on one thread or on all, whichever is faster.

All sides decode the same random potentials in one process and take turns in it; their values are compared before any of
them is timed. Scores and transitions are given in the form that each side takes. On a machine with other work, or for
small operations, more threads make torch much slower: every side is timed with one and with all, and its better time
counts.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchssvm.structures.chain.oracle import viterbi as oracle
from torchssvm.structures.chain.oracle import viterbi_torch

from .measuring import Ask, Limit, Settings, Summary, Table, best_of, ratio

TITLE = "Oracles: Viterbi"
SETTINGS = [(64, 14, 26), (1, 8, 26), (256, 50, 3), (16, 100, 200), (4, 50, 2000)]
QUICK = [(64, 14, 26), (1, 8, 26)]
OURS, PLAIN, STRUCT, CRF = "torchssvm", "torch operations", "torch-struct", "pytorch-crf"
SIDES = (OURS, PLAIN, STRUCT, CRF)
ROOM = 2.0 * 2**30  # bytes that a side may take
PATIENCE = 20.0  # seconds that one call may be expected to take

Decoder = Callable[[], Any]


def decoders(emission: Tensor, transition: Tensor) -> dict[str, tuple[Decoder, Callable[[Any], Tensor]] | str]:
    """Of every side, the call and what tells the labels from its result; or why it is skipped."""
    lengths = torch.full((len(emission),), emission.shape[1], device=emission.device)
    return {
        OURS: (lambda: oracle(emission, transition, lengths), lambda results: results[0]),
        PLAIN: (lambda: viterbi_torch(emission, transition, lengths), lambda results: results[0]),
        STRUCT: _torch_struct(emission, transition),
        CRF: _pytorch_crf(emission, transition),
    }


def _torch_struct(emission: Tensor, transition: Tensor) -> Any:
    """Its algorithm multiplies K x K matrices in a tree: (N - 1)/2 products of K^3 sums at once."""
    if importlib.util.find_spec("torch_struct") is None:
        return "not installed"
    batch, longest, states = emission.shape
    needed = 4.0 * batch * math.ceil((longest - 1) / 2) * states**3
    if needed > ROOM:
        return f"skipped: would take some {needed / 2**30:,.0f} GiB"
    from torch_struct import LinearChainCRF

    # [B, N-1, next, previous]; the emission of the first position goes with the first pair
    pairs = transition.t() + emission[:, 1:].unsqueeze(3)
    pairs[:, 0] += emission[:, 0].unsqueeze(1)
    lengths = torch.full((batch,), longest, device=emission.device)

    def labels(results: Tensor) -> Tensor:
        edges = results.detach().flatten(2).argmax(2)
        return torch.cat([edges[:, :1] % states, edges // states], 1)

    return lambda: LinearChainCRF(pairs, lengths=lengths).argmax, labels


def _pytorch_crf(emission: Tensor, transition: Tensor) -> Any:
    if importlib.util.find_spec("torchcrf") is None:
        return "not installed"
    batch, _, states = emission.shape
    if 4.0 * batch * states**2 > ROOM:
        return "skipped: would take too much memory"
    from torchcrf import CRF as Layer

    layer = Layer(states, batch_first=True).to(emission.device)
    with torch.no_grad():
        layer.transitions.copy_(transition)
        layer.start_transitions.zero_()
        layer.end_transitions.zero_()
    return torch.no_grad()(lambda: layer.decode(emission)), lambda results: torch.tensor(results)


def scores(labels: Tensor, emission: Tensor, transition: Tensor) -> Tensor:
    """``[B]`` float64."""
    labels = labels.to(emission.device)
    states = emission.double().gather(2, labels.unsqueeze(2)).sum((1, 2))
    return states + transition.double()[labels[:, :-1], labels[:, 1:]].sum(1)


def viterbi(shape: list[int], seconds: float, seed: int, device: str = "cpu") -> dict[str, Any]:
    """Seconds of a call of every side, on one thread and on all."""
    batch, longest, states = shape
    warnings.filterwarnings("ignore", module="torchcrf|torch_struct")  # of old calls into torch
    warnings.filterwarnings("ignore", message=".*arg_constraints.*")
    torch.manual_seed(seed)
    emission = torch.randn(batch, longest, states, device=device)
    transition = torch.randn(states, states, device=device)
    sides = decoders(emission, transition)
    oracle(emission, transition, torch.full((batch,), longest, device=device))  # compiles
    ready: dict[str, Decoder] = {}
    results: dict[str, Any] = {"skipped": {}, "seconds": {}}
    every = sorted({1, torch.get_num_threads()}, reverse=True)
    torch.set_num_threads(1)
    best: Tensor | None = None
    for name, side in sides.items():
        if isinstance(side, str):
            results["skipped"][name] = side
            continue
        decode, labels = side
        start = time.perf_counter()
        value = scores(labels(decode()), emission, transition)
        took = time.perf_counter() - start
        best = value if best is None else best
        if not torch.allclose(value, best, rtol=1e-5, atol=1e-4):
            raise AssertionError(f"{name} returned other values than {OURS} for {shape}")
        if took > PATIENCE:
            results["skipped"][name] = f"skipped: one call takes {took:.0f} s"
            continue
        ready[name] = functools.partial(_synchronised, decode) if device == "cuda" else decode
    for threads in every:
        torch.set_num_threads(threads)
        for name, decode in ready.items():
            results["seconds"].setdefault(name, {})[threads] = best_of(decode, seconds)
    return results


def _synchronised(decode: Decoder) -> None:
    decode()
    torch.cuda.synchronize()


MEASURES = {"viterbi": viterbi}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Every setting, on every device that there is."""
    shapes = QUICK if settings.quick else SETTINGS
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    runs: dict[str, list[Any]] = {}
    for repeat in range(settings.repeats):
        for device in devices:
            for shape in shapes:
                seconds = 0.1 if settings.quick else 0.5
                options = {"shape": shape, "seconds": seconds, "seed": repeat, "device": device}
                runs.setdefault(f"{device} {shape}", []).append(ask("viterbi", threads=None, **options))
    return {"shapes": shapes, "devices": devices, "runs": runs}


def better(runs: list[dict[str, Any]], side: str) -> tuple[float, str] | None:
    """Median seconds of a call on the better number of threads, and that number; None if it was skipped."""
    if any(side not in run["seconds"] for run in runs):
        return None
    return min((statistics.median(run["seconds"][side][t] for run in runs), t) for t in runs[0]["seconds"][side])


def summarise(results: dict[str, Any]) -> Summary:
    """Microseconds a call, how many times ours that is, and on how many threads."""
    rows: list[list[Any]] = []
    times: dict[tuple[str, str], float] = {}
    for key, runs in results["runs"].items():
        row: list[Any] = [key]
        for side in SIDES:
            if (its := better(runs, side)) is None:
                row.append(next(run["skipped"][side] for run in runs if side in run["skipped"]))
                continue
            times[key, side], threads = its
            compared = "" if side == OURS else f" ({its[0] / times[key, OURS]:,.1f} x)"
            row.append(f"{1e6 * its[0]:,.1f}{compared} on {threads}")
        batch = int(key.partition("(")[2].partition(",")[0])
        rows.append([*row, batch / times[key, OURS]])
    title = "Viterbi: microseconds a call of (B, T, K), on the better number of threads"
    main, single = (f"cpu {shape}" for shape in SETTINGS[:2])
    limits = [
        Limit(
            f"{side} over {OURS} at {SETTINGS[0]}",
            ratio(times.get((main, side)), times.get((main, OURS))),
            least,
            " x",
            at_least=True,
        )
        for side, least in ((STRUCT, 500.0), (PLAIN, 10.0))
    ]
    limits.append(Limit(f"one chain, {SETTINGS[1]}", 1e6 * times.get((single, OURS), math.nan), 50.0, " us"))
    notes = [] if "cuda" in results["devices"] else ["CUDA: not run, there is no device"]
    return Summary([Table(title, ["device (B, T, K)", *SIDES, "chains/s"], rows)], limits, notes)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing: the table says it."""
    return []
