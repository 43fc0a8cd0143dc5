"""Segments: 64 sequences of 100 frames, 5 labels and durations up to 10, beside chains of frames and semi-Markov CRFs.

Lambda is chosen by the F1 of spans on a third of the training set, outside the clocks. flash-semicrf, whose best epoch
is that of the test set, is measured where it is installed, and torch-struct where it is. Then the chunks of
CoNLL-2000 as segments, by dense features of the parts of speech of five words, beside a chain of B, I and O on the same
features; and phases of gestures (``suite/gestures.py``).
"""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torchssvm import Chain, LinearChain, LinearSegments, Relative, Segments, choose_lam, solve
from torchssvm.datasets import EventSequences, GesturePhases, PaddedDataset, TaggedSentences, read_columns
from torchssvm.datasets.text.conll2000 import locate
from torchssvm.structures.segments import span_f1

from .gestures import EVERY, MODELS, SPLITS, gesture_scores, gestures, longest_of
from .measuring import Ask, Limit, Settings, Summary, Table, best_of, chosen

TITLE = "Segments, beside chains and semi-Markov CRFs"
OPTIONS: dict[str, Any] = {
    "sequences": 64,
    "length": 100,
    "lams": [0.3, 0.1, 0.03, 0.01, 0.003],
    "epochs": 40,
    "long": 1_000_000,
    "sentences": 1000,  # to train on
    "chunk_lams": [0.03, 0.01, 0.003, 0.001],
    "gesture_lams": [30.0, 10.0, 3.0, 1.0],
    "gesture_epochs": 5,  # of flash-semicrf, a minute each
}
QUICK = {"sequences": 8, "length": 30, "lams": [0.3], "epochs": 1, "long": 1000, "sentences": 0, "gesture_lams": []}
LABELS, DURATION = 5, 10
PEERS = {"flash-semicrf": "flash_semicrf", "torch-struct": "torch_struct"}


def read(sequences: int, length: int) -> list[EventSequences]:
    """Training set and test set."""
    return [EventSequences(split, num_sequences=sequences, length=length) for split in ("train", "test")]


def train(model: str, lams: list[float], sequences: int, length: int) -> dict[str, Any]:
    """CPU seconds to a gap of 1 % of the primal, compilation and the choice of lambda left out, and the test scores."""
    data, test = read(sequences, length)
    structure = Segments(LABELS, DURATION, span_loss=model == "segments, spans")
    chain = model == "chain"

    def make() -> Any:
        if chain:
            return LinearChain(8, LABELS, structure=Chain(LABELS, normalize=False))
        return LinearSegments(8, LABELS, DURATION, structure=structure)

    @torch.no_grad()
    def codes(head: Any, x: Tensor) -> Tensor:
        labeling = head.structure.decode(head(x))
        return structure.from_frames(labeling) if chain else labeling

    y = structure.frames(data.y) if chain else data.y
    last = sequences * 2 // 3
    whole, part, held_out = (
        PaddedDataset(data.x[rows], y[rows]) for rows in (slice(None), slice(last), slice(last, None))
    )
    head, spent, passes, lam = _trained(
        make, whole, part, held_out, lams, lambda head: scores(structure, codes(head, held_out.x), data.y[last:])["f1"]
    )
    return {"lam": lam, "cpu_seconds": spent, "passes": passes, **scores(structure, codes(head, test.x), test.y)}


def _trained(
    make: Callable[[], Any], whole: Any, part: Any, held_out: Any, lams: list[float], score: Callable[[Any], float]
) -> tuple[Any, float, float, float]:
    """A head trained on ``whole`` at the lambda that scores best, trained on ``part``; CPU seconds, passes, lambda."""
    lam = choose_lam(make(), part, held_out, lams, score=score, progress=False).best.lam
    head, start = make(), time.process_time()
    run = solve(head, whole, lam, tolerance=Relative(0.01), progress=False)
    return head, time.process_time() - start, run.passes, lam


def chunks(model: str, lams: list[float], sentences: int) -> dict[str, Any]:
    """Segments, or a chain of B, I and O, on the first sentences of CoNLL-2000; the whole test set is scored."""
    files = {split: read_columns(locate(split)) for split in ("train", "test")}  # type: ignore[arg-type]
    number = {tag: k for k, tag in enumerate(sorted(set(files["train"].pos)))}
    spans = {split: [_chunks(tags) for tags in _by_sentence(file, file.tags or [])] for split, file in files.items()}
    names = sorted({label for sentence in spans["train"] for _, _, label in sentence} - {"O"})
    labels, longest = ["O", *names], max(end - start for sentence in spans["train"] for start, end, _ in sentence)
    chain, states = model == "chain", {"O": 0}
    for name in names:
        states |= {f"B-{name}": len(states), f"I-{name}": len(states) + 1}
    structure = Segments(len(labels), longest, boundary=True, span_loss=model == "segments, spans")

    def part(split: str, rows: slice) -> tuple[PaddedDataset, list[Any]]:
        words = [
            _window([number[tag] for tag in tags], len(number))
            for tags in _by_sentence(files[split], files[split].pos)[rows]
        ]
        true, length = spans[split][rows], torch.tensor([len(x) for x in words])
        if chain:
            tags = [torch.tensor([states[tag] for tag in _tags(each)]) for each in true]
            y = pad_sequence(tags, True, -1.0)
        else:
            y = structure.from_spans([[(s, e, labels.index(k)) for s, e, k in each] for each in true])
        return PaddedDataset(pad_sequence(words, True), y, length), true

    @torch.no_grad()
    def f1(head: Any, data: PaddedDataset, true: list[Any]) -> float:
        predicted = []
        for x, length in zip(data.x.split(256), data.lengths.split(256), strict=True):
            labeling = head.structure.decode(head(x, length))
            if chain:
                tags = list(states)
                predicted += [_chunks([tags[k] for k in row if k >= 0]) for row in labeling.tolist()]
            else:
                predicted += [[(s, e, labels[k]) for s, e, k in row] for row in structure.spans(labeling)]
        return span_f1(*([[one for one in row if one[2] != "O"] for row in each] for each in (predicted, true)))

    def make() -> Any:
        if chain:
            return LinearChain(5 * len(number), len(states), structure=Chain(len(states), normalize=False))
        return LinearSegments(5 * len(number), len(labels), longest, structure=structure)

    last = sentences * 2 // 3
    (whole, _), (rest, _), (held_out, known) = (
        part("train", rows) for rows in (slice(sentences), slice(last), slice(last, sentences))
    )
    head, spent, passes, lam = _trained(make, whole, rest, held_out, lams, lambda head: f1(head, held_out, known))
    return {"lam": lam, "cpu_seconds": spent, "passes": passes, "f1": f1(head, *part("test", slice(None)))}


def _by_sentence(file: TaggedSentences, column: list[str]) -> list[list[str]]:
    return [list(column[start:end]) for start, end in itertools.pairwise(file.offsets.tolist())]


def _chunks(tags: list[str]) -> list[tuple[int, int, str]]:
    """The segments of tags: chunks, and every word outside of them alone."""
    segments: list[tuple[int, int, str]] = []
    for place, tag in enumerate(tags):
        kind = tag[2:] or "O"
        if tag.startswith("I-") and segments and segments[-1][2] == kind:
            segments[-1] = (segments[-1][0], place + 1, kind)
        else:
            segments.append((place, place + 1, kind))
    return segments


def _tags(spans: list[tuple[int, int, str]]) -> list[str]:
    return [
        "O" if kind == "O" else f"{'I' if at > start else 'B'}-{kind}"
        for start, end, kind in spans
        for at in range(start, end)
    ]


def _window(tags: list[int], number: int) -> Tensor:
    """Which part of speech each of five words has, ``[N, 5 F]``; the word itself in the middle."""
    one = torch.nn.functional.one_hot(torch.tensor(tags), number).float()
    padded = torch.nn.functional.pad(one, (0, 0, 2, 2))
    return torch.cat([padded[k : k + len(tags)] for k in range(5)], 1)


def scores(structure: Segments, codes: Tensor, true: Tensor) -> dict[str, float]:
    """The F1 score of spans, and the share of right frames."""
    right = (structure.frames(codes) == structure.frames(true)).double().mean()
    return {"f1": span_f1(structure.spans(codes), structure.spans(true)), "frames": float(right)}


def flash(epochs: int, sequences: int, length: int) -> dict[str, Any]:
    """flash-semicrf by Adam; the best test score of every fifth epoch. Without sequences, on phases of gestures."""
    from flash_semicrf import SemiMarkovCRFHead

    torch.manual_seed(0)
    data, test = (
        read(sequences, length) if sequences else [GesturePhases(part, every=EVERY) for part in ("train", "test")]
    )
    structure = Segments(LABELS, 1)
    durations = longest_of(data) + 1  # its largest duration is one less
    head = SemiMarkovCRFHead(LABELS, durations, hidden_dim=data.x.shape[2])
    optimizer, spent, best = torch.optim.Adam(head.parameters(), lr=0.03), 0.0, {"f1": 0.0, "frames": 0.0}
    frames = structure.frames(data.y).clamp(min=0)
    lengths, unseen = (torch.full((len(one),), length) if one.lengths is None else one.lengths for one in (data, test))
    how = {"use_triton": False, "backend": "auto" if sequences else "streaming"}
    for epoch in range(epochs):
        start = time.process_time()
        for rows in torch.randperm(len(data)).split(16 if sequences else 1):
            optimizer.zero_grad()
            most = int(lengths[rows].max())
            head.compute_loss(data.x[rows, :most], lengths[rows], frames[rows, :most], **how).backward()
            optimizer.step()
        spent += time.process_time() - start
        if epoch % 5 == 4 or epoch == epochs - 1:
            with torch.no_grad():
                cuts = head.decode_with_traceback(test.x, unseen, use_triton=False)
            spans = structure.from_spans([sorted((s.start, s.end + 1, s.label) for s in row) for row in cuts.segments])
            if sequences:
                reached = scores(structure, spans, test.y)
            else:
                reached = gesture_scores([(structure.frames(spans), structure.frames(test.y))])
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
    sizes = {name: options[name] for name in ("sequences", "length")}
    there = [name for name, module in PEERS.items() if importlib.util.find_spec(module)]
    models = ("segments", "segments, spans", "chain")
    results: dict[str, Any] = {
        "train": {name: ask("train", model=name, lams=options["lams"], **sizes) for name in models},
        "chunks": {
            name: ask("chunks", model=name, lams=options["chunk_lams"], sentences=options["sentences"])
            for name in models
            if options["sentences"]
        },
        "gestures": {
            f"{name}; {split}": ask("gestures", model=name, split=split, lams=options["gesture_lams"])
            for split in SPLITS
            for name in MODELS
            if options["gesture_lams"]
        },
        "decode": {name: ask("decode", model=name, **sizes) for name in ("segments", *there)},
        "long": ask("decode", model="segments", sequences=1, length=options["long"]),
        "frames": options["long"],
    }
    if "flash-semicrf" in there:
        results["train"]["flash-semicrf, Adam"] = ask("flash", epochs=options["epochs"], **sizes)
        if options["gesture_lams"]:
            results["gestures"]["flash-semicrf, Adam; stories"] = ask(
                "flash", epochs=options["gesture_epochs"], sequences=0, length=0
            )
    return results


def summarise(parts: dict[str, Any]) -> Summary:
    """The tables and the limits."""
    names = ("cpu_seconds", "passes", "f1", "frames")
    rows = [[name, result.get("lam"), *(result[key] for key in names)] for name, result in parts["train"].items()]
    chunked = [[name, *(result[key] for key in ("lam", *names[:3]))] for name, result in parts["chunks"].items()]
    gestured = [
        [name, *(result[key] for key in ("cpu_seconds", "f1", "frames"))] for name, result in parts["gestures"].items()
    ]
    every = parts["decode"]
    decoded = [[name, 1e3 * seconds, seconds / every["segments"]] for name, seconds in every.items()]
    decoded.append([f"segments, one sequence of {parts['frames']:g} frames", 1e3 * parts["long"], None])
    result = parts["train"]["segments"]
    other = max((each["f1"] for name, each in parts["train"].items() if not name.startswith("segments")), default=0.0)
    ratio = every["flash-semicrf"] / every["segments"] if "flash-semicrf" in every else None
    return Summary(
        [
            Table("To 1 % of the primal", ["", "λ", "CPU seconds", "passes", "F1 of spans", "right frames"], rows),
            Table("Chunks of CoNLL-2000", ["", "λ", "CPU seconds", "passes", "F1 of chunks"], chunked),
            Table("Phases of gestures", ["", "CPU seconds", "F1 of spans", "right frames"], gestured),
            Table("Decoding all sequences", ["", "ms", "times ours"], decoded),
        ],
        [
            Limit("CPU seconds to 1 %", result["cpu_seconds"], 5.0, " s"),
            Limit("F1 of spans less the best of the others", result["f1"] - other, 0.0, at_least=True),
            Limit("flash-semicrf's decoding over ours", ratio, 100.0, at_least=True),
        ],
    )


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Nothing."""
    return []


MEASURES = {"train": train, "chunks": chunks, "gestures": gestures, "flash": flash, "decode": decode}
