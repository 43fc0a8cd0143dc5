"""Sets of labels, every two of which may attract or repel each other: trained by GDMM, without decoding.

python examples/multilabel.py --data bibtex --lam 0.01
python examples/multilabel.py --data bibtex --lam 0.01 --interactions false     # every label alone, by BCFW
python examples/multilabel.py --data my.arff --labels my.xml   # any file, a third of it tested on
python examples/multilabel.py --data yeast-train.arff --test yeast-test.arff --labels -14   # the last 14 attributes

Prints certificates, of the problem and of the relaxation that GDMM minimises, and how good the sets are that joint
decoding finds for the test examples; draws what was learned.
"""

import sys
from pathlib import Path

import lightning as L
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm import BlockGap, SparseLinearMultilabel, TorchLoop
from torchssvm.core.batch import in_order
from torchssvm.datasets import ByDensity, Multilabel, MultilabelData, Scaling, multilabel_scores
from torchssvm.datasets.multilabel.dataset import NAMES
from torchssvm.datasets.multilabel.drawing import draw_interactions, strongest_pairs
from torchssvm.lightning import DualityGap, FactorwiseSVM, Report, StructuredSVM
from torchssvm.solvers.figures import new_figure
from torchssvm.solvers.gdmm import Penalty

SHARE = 1 / 3  # of the examples are tested on, where no test file is given


def read(
    data: str, labels: int | Path | None, test: Path | None, scaling: Scaling, seed: int, root: str | None
) -> tuple[Multilabel, Multilabel]:
    """Training and test examples, their features scaled alike."""
    if data in NAMES:
        train, tested = (Multilabel(data, split, root=root) for split in ("train", "test"))
    else:
        train = Multilabel.from_mulan(data, labels)
        if test is None:
            train, tested = train.split(SHARE, seed)
        else:
            tested = Multilabel.from_mulan(test, labels)
    if (train.feature_names, train.label_names) != (tested.feature_names, tested.label_names):
        raise ValueError(f"--test {test} has other features or labels than --data {data}: give files of one dataset")
    train = train.scaled(scaling)
    return train, tested.scaled(train.scaling)


def main(
    data: str = "bibtex",
    labels: int | Path | None = None,
    test: Path | None = None,
    scaling: Scaling | None = None,
    lam: PositiveFloat = 0.01,
    interactions: bool = True,
    rho: PositiveFloat | None = None,
    gap: PositiveFloat = 0.002,
    max_passes: PositiveInt = 200,
    seed: int = 0,
    root: str | None = None,
    report: Path = Path("runs/multilabel"),
) -> Report:
    """Train weights of labels and of their pairs to a certified gap, where there are interactions of the relaxation.

    Args:
        data: bibtex, scene or medical; or an ARFF file in Mulan's or MEKA's format.
        labels: Mulan's XML file, or how many of the first attributes are labels, of the last if it is negative; by
            default the file's @relation says so, or the XML file beside it.
        test: The ARFF file to test on; by default a third of the examples, drawn by the seed, is left out of training.
        scaling: Standardised, UnitRows or Unscaled; by default dense features are standardised, and the rows of sparse
            features get norm 1.
        lam: Regularisation.
        interactions: Whether pairs of labels have weights.
        rho: Penalty of GDMM, in mean costs of a wrong label; by default GDMM chooses it.
        gap: Stop at this certified gap, of the relaxation where there are interactions.
        max_passes: Or after so many passes; GDMM that is not there by then leaves the rest to as many of BCFW.
        seed: Runs with the same seed are the same.
        root: Folder that multilabel/ lies in; by default TORCHSSVM_DATA.
        report: Folder of report.json and the pictures.
    """
    torch.set_num_threads(1)
    L.seed_everything(seed)
    try:
        train, tested = read(data, labels, test, ByDensity() if scaling is None else scaling, seed, root)
    except (OSError, ValueError) as error:
        sys.exit(f"error: data={data!r} must be bibtex, scene, medical or an ARFF file: {error}")
    examples = MultilabelData.from_datasets(
        train, test_dataset=tested, batch_size=64, seed=seed, by_gap=not interactions
    )
    head = SparseLinearMultilabel(examples.train.in_features, examples.train.num_labels, pairwise=interactions)
    if interactions:
        penalty = None if rho is None else Penalty(rho * float(head.structure.costs.mean()))
        model = FactorwiseSVM(head, lam, penalty=penalty, seed=seed)
    else:
        model = StructuredSVM(head, lam)
    result = Report(report, f"{Path(data).stem}, sets of labels")
    proof = DualityGap(gap, every_n_epochs=10)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=max_passes,
        callbacks=[proof, result],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, examples)
    if interactions and model.gdmm.gap_estimate > gap:
        print(f"GDMM stopped at a certified {proof.certificate.gaps}: BCFW goes on from its point")
        dual = model.gdmm.dual_state(in_order(train))
        loop = TorchLoop(head, BlockGap(dual), train, seed=seed)
        print(loop.solve(gap, max_passes=dual.passes + max_passes))

    predicted = torch.cat([model.decode(batch.x, batch.lengths) for batch in examples.test_dataloader()])
    truth = examples.test.labels.dense()
    print(f"\ntest examples: {multilabel_scores(truth, predicted)}")
    print(f"no labels:     {multilabel_scores(truth, torch.zeros_like(truth))}")
    if interactions:
        names = [name.removeprefix("TAG_") for name in examples.train.label_names]
        for text, pairs in zip(("attract", "repel"), strongest_pairs(head.interactions(), 3), strict=True):
            print(f"{text}: " + ", ".join(f"{names[a]} + {names[b]} {value:+.3f}" for a, b, value in pairs))
        figure = new_figure((14, 7))
        draw_interactions(figure, head.interactions(), names)
        figure.savefig(report / "interactions.png", dpi=100)
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
