"""A LightningModule that trains a head by GDMM, for outputs that are too large to decode."""

from __future__ import annotations

from typing import Any

from torch import nn
from typing_extensions import override

from torchssvm.core.batch import Batch, as_batch
from torchssvm.core.problem import check_lam, find_structure
from torchssvm.dual.state import DualState
from torchssvm.lightning.figures import log, publish
from torchssvm.lightning.predicting import Predicting
from torchssvm.lightning.training_batches import exact_pass_loader
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.gdmm.rules import BlockRule, BruteForce, Penalty, SortedOracle
from torchssvm.solvers.gdmm.solver import GDMM, check_kind


class FactorwiseSVM(Predicting):
    """Max-margin training of a head under a ``Trainer`` by :class:`torchssvm.GDMM`: no decoding, no learning rate.

    Each training step visits the examples of its batch. The last step of an epoch visits the examples that were in no
    batch, which completes the pass, and moves the multipliers.

    Features are computed once, when a fit begins, and kept: they are not trained, and the dataset must give an example
    the same features each time. :class:`StructuredSVM` trains features jointly with the head.

    :class:`DualityGap` certifies, and stops on the consistency violation and on the gap of the relaxation that GDMM
    minimises (on chains the gap itself). Checkpoints hold the duals. The module needs ``Trainer(accelerator="cpu")``.

    Args:
        head: A head that :class:`torchssvm.GDMM` trains.
        lam: Regularisation of the head, the lambda of ``lam/2 |w|^2``.
        features: The module below the head, ``x`` -> features; None gives ``x`` to the head.
        rule, penalty, oracle: How blocks move; as in :class:`torchssvm.GDMM`.
        seed: Seed of the order in which the examples that were in no batch are visited.

    Raises:
        ValueError: ``lam`` is not positive.
        TypeError: GDMM does not train this kind of head.

    Example:
        >>> gap = DualityGap(tolerance=0.05)
        >>> trainer = L.Trainer(max_epochs=100, callbacks=[gap], **quiet)
        >>> ragged = torch.utils.data.DataLoader(chains, batch_size=10, collate_fn=chains.collate)
        >>> trainer.fit(FactorwiseSVM(LinearChain(4, 3), lam=0.1), ragged)
        >>> gap.certificate.gap <= 0.05
        True
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
        lam = check_lam(lam)  # hyperparameters in checkpoints are plain numbers
        check_kind(head)
        self.save_hyperparameters("lam", "seed")
        self.head, self.features, self.lam = head, features, lam
        self.structure = find_structure(head, None)
        self.rule, self.penalty, self.oracle, self.seed = rule, penalty, oracle, seed
        self.train(self.training)

    @property
    def dual(self) -> DualState:
        """The training problem: n, lam, structure and parameters. The duals are in :attr:`gdmm`."""
        return self.gdmm.problem.dual

    @property
    def gdmm(self) -> GDMM:
        """The optimizer of the fit under way, or of the last one.

        Raises:
            RuntimeError: No fit has begun.
        """
        for optimizer in self.trainer.optimizers:
            if isinstance(optimizer, GDMM):
                return optimizer
        raise RuntimeError("the trainer has no GDMM optimizer: a fit has to begin first")

    solves_head = True

    @property
    def passes(self) -> float:
        """Passes so far."""
        return float(self.gdmm.passes)

    def pacing(self, **rules: Any) -> None:
        """None: an epoch is a pass, and certificates follow epochs."""

    def figures(self, pacing: None) -> dict[str, float]:
        """None between certificates."""
        return {}

    def certify(self, batches: Any = None) -> Certificate:
        """The certificate of the head's weights, during or after a fit; ``batches`` are unused."""
        return self.gdmm.certify()

    @override
    def setup(self, stage: str) -> None:
        size, device = self.trainer.world_size, self.trainer.strategy.root_device
        if stage == "fit" and (size > 1 or device.type != "cpu"):
            raise ValueError(f"GDMM runs in one process, not {size} on {device}: Trainer(accelerator='cpu', devices=1)")

    @override
    def configure_optimizers(self) -> GDMM:
        run, n = self._run, self.begin_fit()
        assert run.batches is not None
        if run.batches.gap_sampler is not None:
            raise ValueError("GapBatchSampler does not visit every example in a pass: give the loader shuffle=True")
        if run.resume is not None:  # the weights of the checkpoint are loaded next
            self.zero_head()
        optimizer = GDMM(
            self.head,
            self.extracted(exact_pass_loader(self.training_loader)),
            num_examples=n,
            lam=self.lam,
            rule=self.rule,
            penalty=self.penalty,
            oracle=self.oracle,
            seed=self.seed,
        )
        if run.resume is not None:
            run.resume.random_here().restore()
        return optimizer

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Visit the examples of the batch; the last batch completes the pass."""
        gdmm = self.gdmm
        gdmm.visit(as_batch(batch).index)
        if batch_idx + 1 < self.trainer.num_training_batches:
            return
        optimizer: Any = self.optimizers()
        optimizer.step()
        publish(self.trainer, figures := {"violation": gdmm.violation, "rho": gdmm.rho}, ["violation"])
        log(self, figures, batch_size=1)
