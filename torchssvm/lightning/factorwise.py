"""A LightningModule that trains a head by GDMM, for outputs too large to decode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from torchssvm.batch import Batch
from torchssvm.dual import DualState
from torchssvm.dual.problem import check_lam, find_structure
from torchssvm.factorwise import GDMM, BruteForce, SortedOracle
from torchssvm.factorwise.kinds import check_kind
from torchssvm.factorwise.rules import BlockRule, Penalty
from torchssvm.lightning.exact_pass import find_gdmm
from torchssvm.lightning.loaders import count_examples, exact_pass_loader, take_training_loader
from torchssvm.lightning.predicting import Predicting
from torchssvm.lightning.steps import check_batch


class FactorwiseSVM(Predicting):
    """Max-margin training of a head under a ``Trainer`` by :class:`torchssvm.GDMM`: no decoding, no learning rate.

    Every batch's examples are visited; the last batch of an epoch completes the pass, with the examples that no batch
    had, and moves the multipliers. Features are computed once, when a fit begins, and kept: they are frozen, and a
    dataset must give an example the same features each time. Features that change during a fit are refused, and
    :class:`StructuredSVM` trains them jointly with the head. :class:`DualityGap` certifies and stops, on the
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
        ValueError: ``lam`` is not positive.
        TypeError: The head is of no kind that GDMM trains, or there are arguments for training the features.
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
        **others: Any,
    ) -> None:
        super().__init__()
        if wrong := {"features_optimizer", "joint"} & others.keys():
            raise TypeError(
                f"{' and '.join(sorted(wrong))}: GDMM's features are frozen; StructuredSVM trains them with the head"
            )
        if others:
            raise TypeError(f"FactorwiseSVM has no arguments {sorted(others)}")
        self.automatic_optimization = False
        check_lam(lam)
        check_kind(head)
        self.save_hyperparameters("lam", "seed")
        self.head, self.features, self.lam = head, features, lam
        self.structure = find_structure(head, None)
        self.rule, self.penalty, self.oracle, self.seed = rule, penalty, oracle, seed
        self._kept: list[int] = []  # versions of the features that are kept
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
        if resume is not None and resume.num_examples != n:
            raise ValueError(
                f"the checkpoint was trained on {resume.num_examples} examples, and the training dataset has {n}"
            )
        self._freeze_features()
        self._kept = self._versions()
        with self._overwriting(resumed=resume is not None):
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

    def _versions(self) -> list[int]:
        tensors = [] if self.features is None else [*self.features.parameters(), *self.features.buffers()]
        return [tensor._version for tensor in tensors]

    def follow_features(self) -> None:
        """Refuse features that have moved since the fit began: GDMM keeps what they gave then.

        Raises:
            RuntimeError: They have.
        """
        if self._versions() != self._kept:
            raise RuntimeError(
                "the features moved during the fit, and the duals are of the features as they were when it began: "
                "leave them alone, or train them jointly with the head by StructuredSVM(features_optimizer=...)"
            )

    def on_train_epoch_start(self) -> None:
        """Refuse features that have moved."""
        self.follow_features()

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
