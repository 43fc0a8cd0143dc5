"""Dependency parsing: first-order arcs, trained by ``solve`` to a certified duality gap.

Any treebank in CoNLL-U does, e.g. of Universal Dependencies (https://universaldependencies.org):

python examples/dependency.py --train en_ewt-ud-train.conllu --test en_ewt-ud-test.conllu
"""

import sys
import time
from pathlib import Path

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm import (
    Arborescence,
    BlockGap,
    Certificate,
    DualState,
    LinearArcs,
    NonProjective,
    Projective,
    RunOptions,
    RunReport,
    TorchLoop,
    in_order,
)
from torchssvm.datasets import CoNLLU, attachment
from torchssvm.datasets.text.arc_drawing import draw_arcs


def main(
    train: str,
    test: str,
    nonprojective: bool = False,
    features: PositiveInt = 2**16,
    lam: PositiveFloat | None = None,
    gap: PositiveFloat = 0.01,
    max_passes: PositiveFloat = 200.0,
    batch_size: PositiveInt = 16,
    seed: int = 0,
    report: Path = Path("runs/dependency"),
) -> RunReport:
    """Train a parser to a certified gap, and score the arcs of the test sentences.

    Args:
        train: CoNLL-U file.
        test: CoNLL-U file.
        nonprojective: Let arcs cross (Chu-Liu-Edmonds, not Eisner).
        features: Columns of the hashed features.
        lam: Regularisation; by default 35/n: an arc has some 35 features, each worth 1.
        gap: Stop at this certified gap.
        max_passes: Or after so many passes.
        batch_size: Sentences of a step.
        seed: Runs with the same seed are the same.
        report: Folder of report.json and the picture.
    """
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    try:
        bank = CoNLLU(train, num_features=features, keep_features=True, skip_nonprojective=not nonprojective)
        tests = CoNLLU(test, num_features=features, keep_features=True)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(f"train: {bank}\ntest:  {tests}")
    among = NonProjective(single_root=True) if nonprojective else Projective(single_root=True)
    head = LinearArcs(features, structure=Arborescence(among))
    dual = DualState.for_head(head, num_examples=len(bank), lam=lam or 35.0 / len(bank))
    history: list[tuple[Certificate, float]] = []
    start = time.perf_counter()

    def on_check(certificate: Certificate) -> None:
        history.append((certificate, time.perf_counter() - start))
        print(certificate)

    options = RunOptions(batch_size=batch_size, seed=seed)
    last = TorchLoop(head, BlockGap(dual), bank, options).solve(gap, max_passes=max_passes, on_check=on_check)

    scores, found = {}, []
    for name, sentences in (("train", bank), ("test", tests)):
        batches = in_order(sentences, batch_size=32)
        found = [heads for b in batches for heads in head.structure.decode(head(b.x, b.lengths)).tolist()]
        its = attachment(found, sentences.sentences)
        scores |= {f"{name}_uas": its.uas, f"{name}_uas_without_punctuation": its.uas_without_punctuation}
    result = RunReport.from_history(
        f"dependency parsing, {bank.path.name}, {among}",
        history,
        num_weights=features,
        stopped_because=f"certified gap {last.gap:.6g} after {last.passes:.0f} passes",
        seed=seed,
        extra={**scores, "train_nonprojective_left_out": bank.num_skipped},
    )
    shown = sorted(range(len(tests)), key=lambda i: abs(len(found[i]) - 9))[:4]
    result.write(
        report, lambda figure: draw_arcs(figure, [tests.sentences[i] for i in shown], [found[i] for i in shown])
    )
    print(f"{result}\nwritten to {report}")
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
