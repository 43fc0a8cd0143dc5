"""What the LightningDataModules share: training batches drawn by the gaps, all others in order."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from torchssvm.core.arguments import check_object, check_seed, check_whole
from torchssvm.core.extras import needs
from torchssvm.steps.orders import GapBatchSampler, Order

with needs("data modules need Lightning: pip install 'torchssvm[lightning]'", "lightning"):
    import lightning as L


class GapDataModule(L.LightningDataModule):
    """Loaders for map-style datasets with a ``collate``.

    Args:
        batch_size: Examples of a training step.
        num_workers: Worker processes of each loader.
        order: How training examples are drawn; None is in proportion to their gaps. The sampler of the training loader
            must be bound to a dual, which ``StructuredSVM`` does.
        seed: Of the draws.
        evaluation_size: Examples of a batch elsewhere, where nothing is kept, unless ``batch_size`` is larger.
    """

    def __init__(
        self, batch_size: int, num_workers: int, order: Order | None, seed: int, evaluation_size: int = 256
    ) -> None:
        super().__init__()
        self.batch_size = check_whole(batch_size, "batch_size")
        self.num_workers = check_whole(num_workers, "num_workers", 0)
        if order is not None:
            check_object(order, "order", "draw", "Permutation()")
        self.order = order
        self.seed = check_seed(seed)
        self._evaluation_size = check_whole(evaluation_size, "evaluation_size")

    def sampled(self, dataset: Any) -> DataLoader:
        """Batches in the order of ``order``."""
        sampler = GapBatchSampler(
            num_examples=len(dataset), batch_size=self.batch_size, order=self.order, seed=self.seed
        )
        return DataLoader(dataset, batch_sampler=sampler, **self._loading(dataset))

    def in_order(self, dataset: Any) -> DataLoader:
        """One example after another."""
        size = max(self.batch_size, self._evaluation_size)
        return DataLoader(dataset, batch_size=size, shuffle=False, **self._loading(dataset))

    def predict_dataloader(self) -> DataLoader:
        """What is tested on."""
        return self.test_dataloader()

    def _loading(self, dataset: Any) -> dict[str, Any]:
        return {
            "collate_fn": dataset.collate,
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
        }
