"""Sets of labels, every two of which may attract or repel each other: trained by GDMM, without decoding.

python examples/multilabel.py --data bibtex --lam 0.01
python examples/multilabel.py --data bibtex --lam 0.01 --interactions false     # every label alone, by BCFW

Prints certificates, and how good the sets are that joint decoding finds for the test examples; draws what was learned.
"""

from pathlib import Path
from typing import Literal

import lightning as L
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm import Penalty, SparseLinearMultilabel
from torchssvm.core.figures import new_figure
from torchssvm.datasets import MultilabelData, multilabel_scores
from torchssvm.datasets.multilabel.drawing import draw_interactions, strongest_pairs
from torchssvm.lightning import DualityGap, FactorwiseSVM, Report, StructuredSVM


def main(
    data: Literal["bibtex", "scene", "medical"] = "bibtex",
    lam: PositiveFloat = 0.01,
    interactions: bool = True,
    rho: PositiveFloat = 0.1,
    gap: PositiveFloat = 0.002,
    max_passes: PositiveInt = 200,
    seed: int = 0,
    root: str | None = None,
    report: Path = Path("runs/multilabel"),
) -> Report:
    """Train weights of labels and of their pairs to a certified gap.

    Args:
        data: Which examples.
        lam: Regularisation.
        interactions: Whether pairs of labels have weights.
        rho: Penalty of GDMM, in mean costs of a wrong label.
        gap: Stop at this certified gap, of the relaxation where there are interactions.
        max_passes: Or after so many passes.
        seed: Runs with the same seed are the same.
        root: Folder that multilabel/ lies in; by default TORCHSSVM_DATA.
        report: Folder of report.json and the pictures.
    """
    torch.set_num_threads(1)
    L.seed_everything(seed)
    examples = MultilabelData(data, bias=False, root=root, seed=seed, by_gap=not interactions)
    head = SparseLinearMultilabel(examples.train.num_features, examples.train.num_labels, pairwise=interactions)
    if interactions:
        model = FactorwiseSVM(head, lam, penalty=Penalty(rho * float(head.structure.costs.mean())), seed=seed)
    else:
        model = StructuredSVM(head, lam)
    result = Report(report, f"{data}, sets of labels")
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=max_passes,
        callbacks=[DualityGap(gap, every_n_epochs=10), result],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, examples)

    found = torch.cat([model.decode(batch.x, batch.lengths) for batch in examples.test_dataloader()])
    truth = examples.test.labels.dense()
    print(f"\ntest examples: {multilabel_scores(truth, found)}")
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
