"""Chains of thousands of states: trained by GDMM, which never looks at all pairs of them.

python examples/large_chain.py --labels 1000
python examples/large_chain.py --data words --labels 3000

``synthetic`` chains come from a hidden Markov model, so that the error of the best weights is known; ``words`` are the
sentences of CoNLL-2000 with letters dropped, changed and swapped, and a labeling says which words they were.
"""

from pathlib import Path
from typing import Literal

import lightning as L
import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm import Chain, SparseLinearChain
from torchssvm.datasets import GapDataModule, LargeChains, WordChains
from torchssvm.lightning import DualityGap, FactorwiseSVM, Report
from torchssvm.solvers.gdmm import Penalty


def main(
    data: Literal["synthetic", "words"] = "synthetic",
    labels: PositiveInt = 1000,
    chains: PositiveInt = 1000,
    test_chains: PositiveInt = 100,
    lam: PositiveFloat = 0.01,
    rho: PositiveFloat | None = None,
    gap: PositiveFloat = 0.002,
    violation: PositiveFloat = 0.01,
    max_passes: PositiveInt = 200,
    seed: int = 0,
    report: Path = Path("runs/large_chain"),
) -> Report:
    """Train a chain of many states to a certified gap.

    Args:
        data: Which chains.
        labels: States.
        chains: To train on.
        test_chains: To test on; decoding them looks at all pairs of states.
        lam: Regularisation.
        rho: Penalty of GDMM, in mean costs of a wrong state; by default GDMM's choice.
        gap: Stop at this certified gap.
        violation: And this mean violation.
        max_passes: Or after so many passes.
        seed: Runs with the same seed are the same.
        report: Folder of report.json and the picture.
    """
    torch.set_num_threads(1)
    L.seed_everything(seed)
    if data == "synthetic":
        train = LargeChains(num_states=labels, num_chains=chains)
        test = LargeChains("test", num_states=labels, num_chains=test_chains)
    else:
        train = WordChains("train", num_states=labels, num_chains=chains)
        test = WordChains("test", vocabulary=train.vocabulary, num_chains=test_chains)
    head = SparseLinearChain(train.in_features, train.num_states, boundary=False, structure=Chain(train.num_states))
    mean_cost = len(train) / len(train.states)  # a wrong state costs 1 / length
    model = FactorwiseSVM(head, lam, penalty=None if rho is None else Penalty(rho * mean_cost), seed=seed)
    result = Report(report, f"{data} chains of {labels} states")
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=max_passes,
        callbacks=[DualityGap(gap, every_n_epochs=10, violation=violation), result],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(model, GapDataModule.from_datasets(train, test_dataset=test, seed=seed, by_gap=False))

    usual = int(torch.bincount(train.states).argmax())
    errors = {
        "chain": result.report.test.token_error,
        "most frequent state": float((test.states != usual).double().mean()),
        "the weights it was drawn by": test.truth_error if data == "synthetic" else None,
    }
    print(f"\n{'':28}  wrong states of {len(test.states)} test tokens")
    for name, error in errors.items():
        print(f"{name:28}  " + ("not known" if error is None else f"{100 * error:.2f} %"))
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
