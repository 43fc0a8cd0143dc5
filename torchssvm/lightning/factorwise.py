"""A LightningModule that trains a head by GDMM, for outputs too large to decode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from torchssvm.batch import Batch
from torchssvm.dual import DualState
from torchssvm.dual.problem import check_lam, find_structure
from torchssvm.factorwise import GDMM, BruteForce, SortedOracle
from torchssvm.factorwise.rules import BlockRule, Penalty
from torchssvm.lightning.exact_pass import find_gdmm
from torchssvm.lightning.loaders import count_examples, exact_pass_loader, take_training_loader
from torchssvm.lightning.predicting import Predicting
from torchssvm.lightning.steps import check_batch


class FactorwiseSVM(Predicting):
    """Max-margin training of a head under a ``Trainer`` by :class:`torchssvm.GDMM`: no decoding, no learning rate.

    Every batch's examples are visited; the last batch of an epoch completes the pass, with the examples that no batch
    had, and moves the multipliers. Features are computed once, when a fit begins, and kept: they are frozen, and a
    dataset must give an example the same features each time. :class:`DualityGap` certifies and stops, on the
    consistency violation too; the optimizer's duals travel in checkpoints. It needs ``Trainer(accelerator="cpu")``.

    Args:
        head: One of those that :class:`torchssvm.GDMM` trains.
        lam: Regularisation of the head, the lambda of ``lam/2 |w|^2``.
        features: What is below the head, ``x`` -> features; None gives ``x`` to the head.
        rule: How blocks move; see :class:`torchssvm.GDMM`, like the rest.
        penalty: rho and eta.
        oracle: The factorwise oracle.
        seed: Of the order in which an epoch's leftover examples are visited.

    Raises:
        ValueError: ``lam`` is not positive, or the head has no structure.
    """

    def __init__(
        self,
        head: nn.Module,
        lam: float,
        features: nn.Module | None = None,
        rule: BlockRule | None = None,
        penalty: Penalty | None = None,
        oracle: SortedOracle | BruteForce | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        check_lam(lam)
        self.save_hyperparameters("lam", "seed")
        self.head, self.features, self.lam = head, features, lam
        self.structure = find_structure(head, None)
        self.rule, self.penalty, self.oracle, self.seed = rule, penalty, oracle, seed
        self.train(self.training)

    @property
    def dual(self) -> DualState:
        """The training problem: n, lam, structure and parameters. GDMM's duals are its own, see :attr:`gdmm`."""
        return self.gdmm.problem.dual

    @property
    def gdmm(self) -> GDMM:
        """The optimizer of the fit under way, or of the last one.

        Raises:
            RuntimeError: No fit has begun.
        """
        optimizer = find_gdmm(self.trainer)
        if optimizer is None:
            raise RuntimeError("no fit has begun: there is no GDMM yet")
        return optimizer

    def setup(self, stage: str) -> None:
        """Refuse what cannot work."""
        if stage == "fit" and self.trainer.world_size > 1:
            raise ValueError(
                f"world size {self.trainer.world_size}: FactorwiseSVM trains in one process, so that every dual has "
                "one owner; use Trainer(devices=1)"
            )
        if stage == "fit" and self.trainer.strategy.root_device.type != "cpu":
            raise ValueError(
                f"the trainer runs on {self.trainer.strategy.root_device}, and GDMM on the CPU: use "
                "Trainer(accelerator='cpu'), and features that were computed before"
            )

    def configure_optimizers(self) -> GDMM:
        """GDMM on the features of the training dataset."""
        run = self._run
        run.start(take_training_loader(self.trainer), resumed=self.trainer.ckpt_path is not None)
        if run.sampler is not None:
            raise ValueError(
                "the training loader has a GapBatchSampler, which draws by the gaps of BCFW's blocks: FactorwiseSVM "
                "visits every example in a pass, so give the loader shuffle=True"
            )
        n, resume = count_examples(self.training_loader), run.resume
        if resume is not None:  # GDMM would warn of weights that it is about to restore
            if resume.num_examples != n:
                raise ValueError(
                    f"the checkpoint was trained on {resume.num_examples} examples, and the training dataset has {n}"
                )
            with torch.no_grad():
                for parameter in self.head.parameters():
                    parameter.zero_()
        optimizer = GDMM(
            self.head,
            self._batches(),
            num_examples=n,
            lam=self.lam,
            rule=self.rule,
            penalty=self.penalty,
            oracle=self.oracle,
            seed=self.seed,
        )
        if resume is not None:
            resume.rewind(None)
        return optimizer

    def _batches(self) -> Iterator[Batch]:
        """Every training example once, with what the head is given of it."""
        for batch in exact_pass_loader(self.training_loader):
            batch = check_batch(batch)
            yield batch._replace(x=self.extract(batch.x))

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Visit the examples of the batch; the last one completes the pass."""
        gdmm = self.gdmm
        gdmm.visit(check_batch(batch).index)
        if batch_idx + 1 < self.trainer.num_training_batches:
            return
        optimizer: Any = self.optimizers()
        optimizer.step()
        self.log("violation", gdmm.violation, prog_bar=True, batch_size=1)
        self.log("rho", gdmm.rho, prog_bar=True, batch_size=1)
