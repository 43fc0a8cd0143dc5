"""Events in noisy sequences, or phases of gestures: segments with labels and durations, beside a chain of frames.

Prints the F1 scores of both, and draws true and predicted events over time.

python examples/events.py --noise 1.5
python examples/events.py --data gestures --lam 10
"""

from pathlib import Path
from typing import Literal

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt
from matplotlib import colormaps
from matplotlib.figure import Figure

from torchssvm import Chain, LinearChain, LinearSegments, Segments, solve
from torchssvm.datasets import EventSequences, GesturePhases, PaddedDataset
from torchssvm.structures.segments import span_f1


def main(
    data: Literal["drawn", "gestures"] = "drawn",
    lam: PositiveFloat = 0.03,
    noise: NonNegativeFloat = 1.5,
    num_sequences: PositiveInt = 64,
    seed: int = 0,
    report: Path = Path("runs/events"),
) -> float:
    """Train segments and a chain on the same sequences.

    Args:
        data: Drawn sequences, where an event is right if both ends are; or videos, ten frames a second, where an event
            is right if it shares half of its frames.
        lam: Regularisation.
        noise: Standard deviation of the noise of each frame.
        num_sequences: Sequences for training, and for the test.
        seed: Of the sequences.
        report: Folder of the picture.
    """
    torch.set_num_threads(1)
    gestures = data == "gestures"
    train, test = (
        GesturePhases(s, every=3)
        if gestures
        else EventSequences(s, num_sequences=num_sequences, noise=noise, seed=seed)
        for s in ("train", "test")
    )
    longest = max(end - start for spans in Segments(5, 1).spans(train.y) for start, end, _ in spans)
    structure = Segments(5, longest, boundary=gestures)
    head = LinearSegments(train.x.shape[2], 5, longest, structure=structure)
    print(solve(head, train, lam))

    frames = PaddedDataset(train.x, structure.frames(train.y), train.lengths)
    chain = LinearChain(train.x.shape[2], 5, structure=Chain(5, normalize=False))
    solve(chain, frames, lam, progress=False)

    true = structure.spans(test.y)
    predicted, others = (
        structure.spans(
            structure.from_frames(one.structure.by_position(one.structure.decode(one(test.x, test.lengths))))
        )
        for one in (head, chain)
    )
    overlap = 0.5 if gestures else 1.0
    scores = span_f1(predicted, true, overlap), span_f1(others, true, overlap)
    print(f"F1 of events: segments {scores[0]:.3f}, chain {scores[1]:.3f}")

    figure = Figure(figsize=(9, 2.4), layout="tight")
    axes = figure.subplots()
    for row, spans in enumerate((others[0], predicted[0], true[0])):
        for start, end, label in spans:
            axes.barh(row, end - start, left=start, color=colormaps["tab10"](label), edgecolor="white", height=0.8)
    axes.set_yticks(range(3), ["chain", "segments", "true"])
    axes.set_xlim(0, true[0][-1][1])
    axes.set_xlabel("frame")
    report.mkdir(parents=True, exist_ok=True)
    figure.savefig(report / "events.png", dpi=80)
    return scores[0]


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
