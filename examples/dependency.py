"""Dependency parsing: first-order arcs, trained by the compiled loop to a certified duality gap.

Any treebank in CoNLL-U does, e.g. of Universal Dependencies (https://universaldependencies.org):

python examples/dependency.py --train en_ewt-ud-train.conllu --test en_ewt-ud-test.conllu
"""

import sys
import time
from pathlib import Path
from typing import Literal

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm import Arborescence, LinearArcs, Relative, Solver, in_order, solve
from torchssvm.datasets import CoNLLU, attachment
from torchssvm.datasets.text.arc_drawing import draw_arcs
from torchssvm.solvers import Certificate, RunReport
from torchssvm.structures.arborescence import NonProjective, Projective


def main(
    train: str,
    test: str,
    nonprojective: bool = False,
    labelled: bool = False,
    tags: Literal["upos", "xpos"] = "upos",
    features: PositiveInt | None = None,
    lam: PositiveFloat | None = None,
    gap: PositiveFloat = 0.01,
    max_passes: PositiveFloat = 100.0,
    seed: int = 0,
    report: Path = Path("runs/dependency"),
) -> RunReport:
    """Train a parser to a certified gap, and score the arcs of the test sentences.

    Args:
        train: CoNLL-U file.
        test: CoNLL-U file.
        nonprojective: Let arcs cross (Chu-Liu-Edmonds, not Eisner).
        labelled: Learn the relations of the arcs too.
        tags: Column of the parts of speech.
        features: Columns of the hashed features; by default 2^22, or 2^18 for each label.
        lam: Regularisation; by default 30/n, chosen on the development sentences of an English treebank.
        gap: Stop when the certified gap is at most this share of the primal.
        max_passes: Or after so many passes.
        seed: Runs with the same seed are the same.
        report: Folder of report.json and the picture.
    """
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    try:
        features = features or (2**18 if labelled else 2**22)
        bank = CoNLLU(train, num_features=features, tags=tags, skip_nonprojective=not nonprojective, labelled=labelled)
        tests = CoNLLU(test, num_features=features, tags=tags, labels=bank.labels)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(f"train: {bank}\ntest:  {tests}")
    among = NonProjective(single_root=True) if nonprojective else Projective(single_root=True)
    # The loss is the number of wrong heads: divided by the length, long sentences would count less.
    trees = Arborescence(among, normalize=False, num_labels=bank.num_labels)
    head = LinearArcs(features, num_labels=bank.num_labels, structure=trees)
    history: list[tuple[Certificate, float]] = []
    start = time.perf_counter()

    def on_check(certificate: Certificate) -> None:
        history.append((certificate, time.perf_counter() - start))
        print(certificate)

    last = solve(
        head,
        bank,
        lam or 30.0 / len(bank),
        tolerance=Relative(gap),
        max_passes=max_passes,
        solver=Solver(seed=seed),
        on_check=on_check,
    )

    scores: dict[str, float | None] = {}
    predicted: list[list[int]] = []
    for name, sentences in (("train", bank), ("test", tests)):
        predicted, relations = [[]] * len(sentences), [[""]] * len(sentences)
        for b in in_order(sentences, lengths=sentences.lengths):
            heads, labels = trees.split(trees.decode(head(b.x, b.lengths)))
            for place, row, names in zip(b.index.tolist(), heads.tolist(), bank.relations(labels), strict=True):
                predicted[place], relations[place] = row, names
        its = attachment(predicted, sentences.sentences, relations if labelled else None)
        scores |= {f"{name}_uas": its.uas, f"{name}_uas_without_punctuation": its.uas_without_punctuation}
        scores |= {f"{name}_las": its.las} if labelled else {}
    result = RunReport(
        f"dependency parsing, {bank.path.name}, {among}",
        history,
        num_weights=head.weight.numel(),
        stopped_because=f"certified {last.gaps} after {last.passes:.0f} passes",
        seed=seed,
        extra={**scores, "train_nonprojective_left_out": bank.num_skipped},
    )
    shown = sorted(range(len(tests)), key=lambda i: abs(len(predicted[i]) - 9))[:4]
    result.write(
        report, lambda figure: draw_arcs(figure, [tests.sentences[i] for i in shown], [predicted[i] for i in shown])
    )
    print(f"{result}\nwritten to {report}")
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
