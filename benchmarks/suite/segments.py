"""Segments: 64 sequences of 100 frames, 5 labels and durations up to 10, beside chains of frames and semi-Markov CRFs.

flash-semicrf is measured where it is installed, and torch-struct where it is.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchssvm import Chain, LinearChain, LinearSegments, Relative, Segments, solve
from torchssvm.datasets import EventSequences, PaddedDataset
from torchssvm.structures.segments import span_f1

from .measuring import Ask, Limit, Settings, Summary, Table, best_of, chosen

TITLE = "Segments, beside chains and semi-Markov CRFs"
OPTIONS: dict[str, Any] = {"sequences": 64, "length": 100, "lams": [0.03, 0.1, 0.3], "epochs": 40, "long": 1_000_000}
QUICK = {"sequences": 8, "length": 30, "lams": [0.3], "epochs": 1, "long": 1000}
LABELS, DURATION = 5, 10
PEERS = {"flash-semicrf": "flash_semicrf", "torch-struct": "torch_struct"}


def read(sequences: int, length: int) -> list[EventSequences]:
    """Training set and test set."""
    return [EventSequences(split, num_sequences=sequences, length=length) for split in ("train", "test")]


def train(model: str, lam: float, sequences: int, length: int) -> dict[str, Any]:
    """CPU seconds to a gap of 1 % of the primal, compilation left out, and the test scores."""
    data, test = read(sequences, length)
    structure = Segments(LABELS, DURATION, span_loss=model == "segments, spans")

    def make() -> Any:
        if model == "chain":
            return LinearChain(8, LABELS, structure=Chain(LABELS, normalize=False))
        return LinearSegments(8, LABELS, DURATION, structure=structure)

    own: Any = PaddedDataset(data.x, structure.frames(data.y)) if model == "chain" else data
    solve(make(), own, lam, tolerance=Relative(0.5), progress=False)  # compiles
    head, start = make(), time.process_time()
    found = solve(head, own, lam, tolerance=Relative(0.01), progress=False)
    spent = time.process_time() - start
    labeling = head.structure.decode(head(test.x))
    codes = structure.from_frames(labeling) if model == "chain" else labeling
    return {"cpu_seconds": spent, "passes": found.passes, **scores(structure, codes, test.y)}


def scores(structure: Segments, codes: Tensor, true: Tensor) -> dict[str, float]:
    """The F1 score of spans, and the share of right frames."""
    right = (structure.frames(codes) == structure.frames(true)).double().mean()
    return {"f1": span_f1(structure.spans(codes), structure.spans(true)), "frames": float(right)}


def flash(epochs: int, sequences: int, length: int) -> dict[str, Any]:
    """flash-semicrf by Adam in batches of 16; the best test score of all epochs."""
    from flash_semicrf import SemiMarkovCRFHead

    torch.manual_seed(0)
    data, test = read(sequences, length)
    structure = Segments(LABELS, DURATION)
    head = SemiMarkovCRFHead(LABELS, DURATION + 1, hidden_dim=8)  # its largest duration is one less
    optimizer, spent, best = torch.optim.Adam(head.parameters(), lr=0.03), 0.0, {"f1": 0.0, "frames": 0.0}
    frames = structure.frames(data.y)
    for epoch in range(epochs):
        start = time.process_time()
        for rows in torch.randperm(sequences).split(16):
            optimizer.zero_grad()
            lengths = torch.full((len(rows),), length)
            head.compute_loss(data.x[rows], lengths, frames[rows], use_triton=False).backward()
            optimizer.step()
        spent += time.process_time() - start
        if epoch % 5 == 4 or epoch == epochs - 1:
            with torch.no_grad():
                found = head.decode_with_traceback(test.x, torch.full((sequences,), length), use_triton=False)
            spans = [sorted((s.start, s.end + 1, s.label) for s in own) for own in found.segments]
            reached = scores(structure, structure.from_spans(spans), test.y)
            best = max(best, reached, key=lambda each: each["f1"])
    return {"cpu_seconds": spent, "passes": epochs, **best}


def decode(model: str, sequences: int, length: int) -> float:
    """Seconds of decoding all sequences at random scores."""
    random = torch.Generator().manual_seed(0)
    emission = torch.randn(sequences, length, LABELS, generator=random)
    table = torch.randn(1, LABELS + DURATION, LABELS, generator=random).expand(sequences, -1, -1)
    call: Callable[[], Any]
    if model == "segments":
        structure = Segments(LABELS, DURATION)
        call = lambda: structure.decode({"emission": emission, "segment": table})  # noqa: E731
    elif model == "flash-semicrf":
        from flash_semicrf import SemiMarkovCRFHead

        head, lengths = SemiMarkovCRFHead(LABELS, DURATION + 1), torch.full((sequences,), length)
        call = lambda: head.decode_with_traceback(emission, lengths, use_triton=False)  # noqa: E731
    else:
        from torch_struct import SemiMarkovCRF

        # [B, N - 1, D, K, K]: the caller makes the sum of every segment's frames.
        edges = torch.randn(sequences, length, DURATION, LABELS, LABELS, generator=random)
        call = lambda: SemiMarkovCRF(edges).argmax  # noqa: E731
    with torch.no_grad():
        call()
    return best_of(call, least=1)


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """Training of each, then decoding."""
    options = chosen(settings, OPTIONS, QUICK)
    own = {name: options[name] for name in ("sequences", "length")}
    there = [name for name, module in PEERS.items() if importlib.util.find_spec(module)]
    models = ("segments", "segments, spans", "chain")
    found: dict[str, Any] = {
        "train": {
            f"{m}, λ = {lam:g}": ask("train", model=m, lam=lam, **own) for m in models for lam in options["lams"]
        },
        "decode": {name: ask("decode", model=name, **own) for name in ("segments", *there)},
        "long": ask("decode", model="segments", sequences=1, length=options["long"]),
        "frames": options["long"],
    }
    if "flash-semicrf" in there:
        found["train"]["flash-semicrf, Adam"] = ask("flash", epochs=options["epochs"], **own)
    return found


def summarise(found: dict[str, Any]) -> Summary:
    """Two tables and the limits."""
    names = ("cpu_seconds", "passes", "f1", "frames")
    rows = [[name, *(own[key] for key in names)] for name, own in found["train"].items()]
    every = found["decode"]
    decoded = [[name, 1e3 * seconds, seconds / every["segments"]] for name, seconds in every.items()]
    decoded.append([f"segments, one sequence of {found['frames']:g} frames", 1e3 * found["long"], None])
    own = {name: each for name, each in found["train"].items() if name.startswith("segments, λ")}
    best = max(each["f1"] for each in own.values())
    other = max((each["f1"] for name, each in found["train"].items() if not name.startswith("segments")), default=0.0)
    ratio = every["flash-semicrf"] / every["segments"] if "flash-semicrf" in every else None
    return Summary(
        [
            Table("To 1 % of the primal", ["", "CPU seconds", "passes", "F1 of spans", "right frames"], rows),
            Table("Decoding all sequences", ["", "ms", "times ours"], decoded),
        ],
        [
            Limit("CPU seconds to 1 %, the slowest λ", max(each["cpu_seconds"] for each in own.values()), 5.0, " s"),
            Limit("F1 of spans less the best of the others", best - other, 0.0, at_least=True),
            Limit("flash-semicrf's decoding over ours", ratio, 100.0, at_least=True),
        ],
    )


def draw(found: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"train": train, "flash": flash, "decode": decode}
