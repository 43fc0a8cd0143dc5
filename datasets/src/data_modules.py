"""The datasets as LightningDataModules: training batches are drawn by the gaps, all others come in order."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from torchssvm.core.arguments import check_choice, check_object, check_seed, check_whole, needs
from torchssvm.core.batch import numbered
from torchssvm.steps.directions import Order
from torchssvm.steps.sampler import GapBatchSampler

from .images.horses import HorseSegmentation
from .images.lspet import LSPET, PoseTargets
from .images.superpixel_graphs import PixelSegmentation
from .multilabel.dataset import Multilabel, locate
from .multilabel.scaling import ByDensity, Scaling
from .ocr.dataset import OCR
from .text.chunking import ChunkingDataset
from .text.conll2000 import SPLITS, CoNLL2000
from .text.conll2000 import locate as locate_conll2000
from .text.word_alignment import WordAlignment

with needs("data modules need Lightning: pip install 'torchssvm[lightning]'", "lightning"):
    import lightning as L

Root = str | os.PathLike[str] | None


class GapDataModule(L.LightningDataModule):
    """Loaders for map-style datasets with a ``collate``; a subclass overrides :meth:`read` only.

    ``train``, ``val`` and ``test`` are the datasets, each read at its first use.

    Args:
        batch_size: Examples of a training step.
        num_workers: Worker processes of each loader.
        order: How training examples are drawn; None is ``Proportional()``. ``StructuredSVM`` binds the sampler of the
            training loader to its dual.
        seed: Seed of the draws.
        evaluation_size: Examples of an evaluation batch, unless ``batch_size`` is larger.
        by_gap: Whether a ``GapBatchSampler`` draws training examples; otherwise they are shuffled, as
            ``FactorwiseSVM`` needs.
    """

    def __init__(
        self,
        batch_size: int = 16,
        num_workers: int = 0,
        order: Order | None = None,
        seed: int = 0,
        evaluation_size: int = 256,
        by_gap: bool = True,
    ) -> None:
        super().__init__()
        self.batch_size = check_whole(batch_size, "batch_size")
        self.num_workers = check_whole(num_workers, "num_workers", 0)
        if order is not None:
            check_object(order, "order", "draw", "Permutation()")
        self.order = order
        self.seed = check_seed(seed)
        self.by_gap = by_gap
        self._evaluation_size = check_whole(evaluation_size, "evaluation_size")
        self._splits: dict[str, Any] = {}

    @classmethod
    def from_datasets(  # type: ignore[override]
        cls, train_dataset: Any, val_dataset: Any = None, test_dataset: Any = None, **loading: Any
    ) -> GapDataModule:
        """The module of given map-style datasets with a ``collate``; ``val_dataset`` None is the test set."""
        made = GapDataModule(**loading)
        made._splits = {
            "train": train_dataset,
            "val": test_dataset if val_dataset is None else val_dataset,
            "test": test_dataset,
        }
        return made

    def read(self, split: Any) -> Any:
        """The dataset ``"train"``, ``"val"`` or ``"test"``; None for ``"val"`` means the test set."""
        raise NotImplementedError(f"{type(self).__name__} has no dataset {split!r}: override read")

    def _split(self, split: str) -> Any:
        if split not in self._splits:
            dataset = self.read(split)
            self._splits[split] = self._split("test") if dataset is None else dataset
        return self._splits[split]

    @property
    def train(self) -> Any:
        """The training set."""
        return self._split("train")

    @property
    def val(self) -> Any:
        """The validation set."""
        return self._split("val")

    @property
    def test(self) -> Any:
        """The test set, also used for predictions."""
        return self._split("test")

    def setup(self, stage: str | None = None) -> None:
        """Read the datasets of the stage, once."""
        every = ("train", "val", "test")
        for split in {None: every, "fit": every[:2], "validate": every[1:2]}.get(stage, every[2:]):
            self._split(split)

    def shown(self, dataset: Any) -> Any:
        """The dataset that the loaders use."""
        return dataset

    def train_dataloader(self) -> DataLoader:
        """Batches in the order of ``order``, or shuffled."""
        if not self.by_gap:
            random = torch.Generator().manual_seed(self.seed)
            return self._loader(self.train, batch_size=self.batch_size, shuffle=True, generator=random)
        sampler = GapBatchSampler(
            num_examples=len(self.train), batch_size=self.batch_size, order=self.order, seed=self.seed
        )
        return self._loader(self.train, batch_sampler=sampler)

    def val_dataloader(self) -> Any:
        """The validation set, in order."""
        return self._in_order(self.val)

    def test_dataloader(self) -> Any:
        """The test set, in order."""
        return self._in_order(self.test)

    def predict_dataloader(self) -> Any:
        """The test set, in order."""
        return self.test_dataloader()

    def _in_order(self, dataset: Any) -> Any:
        if dataset is None:  # of from_datasets: Lightning skips a stage without loaders
            return []
        return self._loader(dataset, batch_size=max(self.batch_size, self._evaluation_size), shuffle=False)

    def _loader(self, dataset: Any, **options: Any) -> DataLoader:
        shown = numbered(self.shown(dataset))
        workers: dict[str, Any] = {"num_workers": self.num_workers, "persistent_workers": self.num_workers > 0}
        return DataLoader(shown, collate_fn=shown.collate, **workers, **options)


class OCRData(GapDataModule):
    """Trains on one split of :class:`torchssvm.datasets.OCR`; validates, tests and predicts on the other.

    Args:
        size: ``"small"`` or ``"large"``, the papers' sizes.
        batch_size: Words of a training step.
        fold: The fold, of ten, that is one split.
        loading: As :class:`GapDataModule` takes it: ``num_workers``, ``order``, ``seed``.
    """

    def __init__(
        self, size: Literal["small", "large"] = "small", batch_size: int = 16, fold: int = 0, **loading: Any
    ) -> None:
        super().__init__(batch_size, **loading)
        check_choice(size, "size", "small", "large")
        self.size = size
        self.fold = check_whole(fold, "fold", 0, most=9)

    def read(self, split: Any) -> OCR | None:
        """The words."""
        return None if split == "val" else OCR(split, self.size, self.fold)


class CoNLL2000Data(GapDataModule):
    """Trains on the training set of :class:`torchssvm.datasets.CoNLL2000`; tests and predicts on the test set.

    Args:
        batch_size: Sentences of a training step.
        min_count: How often an attribute must occur in the training sentences.
        hold_out: Share of the training set, from its end, that is held out for validation; with 0 validation uses the
            test set.
        root: The folder that has ``conll2000``; None is ``TORCHSSVM_DATA`` and the cache.
        loading: As :class:`GapDataModule` takes it.
    """

    def __init__(
        self, batch_size: int = 64, min_count: int = 3, hold_out: float = 0.0, root: Root = None, **loading: Any
    ) -> None:
        super().__init__(batch_size, **loading)
        self.min_count = min_count
        self.hold_out = _share(hold_out)
        self.root = root

    def prepare_data(self) -> None:
        """Download missing files."""
        for split in SPLITS:
            locate_conll2000(split, self.root)

    def read(self, split: Any) -> ChunkingDataset | None:
        """The sentences; the columns of all splits are the attributes of the training sentences."""
        if split == "test":
            return CoNLL2000("test", vocabulary=self.train.vocabulary, root=self.root)
        if not self.hold_out:
            return CoNLL2000("train", min_count=self.min_count, root=self.root) if split == "train" else None
        if split == "train":
            whole = CoNLL2000("train", min_count=self.min_count, root=self.root)
            train, self._splits["val"] = whole.hold_out(self.hold_out)
            return train
        return self.train and self._splits["val"]


class WordAlignmentData(GapDataModule):
    """Trains on the 100 training sentences of :class:`torchssvm.datasets.WordAlignment`, validates on the 37 trial
    sentences, tests and predicts on the other 347.

    Args:
        batch_size: Sentence pairs of a training step.
        root: The folder that ``hansards`` lies in; None is what ``TORCHSSVM_DATA`` names, or the cache.
        loading: As :class:`GapDataModule` takes it.
    """

    def __init__(self, batch_size: int = 4, root: Root = None, **loading: Any) -> None:
        super().__init__(batch_size, evaluation_size=64, **loading)
        self.root = root

    def read(self, split: Any) -> WordAlignment:
        """The sentence pairs; all splits share their features."""
        known = next((one.features for one in self._splits.values()), None)
        return WordAlignment("dev" if split == "val" else split, self.root, known)


class MultilabelData(GapDataModule):
    """Trains on the training set of a :class:`torchssvm.datasets.Multilabel`; evaluates on the test set.

    Args:
        dataset: ``"bibtex"``, ``"medical"`` or ``"scene"``.
        batch_size: Examples of a training step.
        scaling: How features are scaled, fitted to the training set: :class:`Standardised`, :class:`UnitRows` or
            :class:`Unscaled`. None is :class:`ByDensity`, which standardises dense features, gives sparse rows norm 1,
            and prints which.
        bias: Whether there is one more feature, always 1.
        dense: Whether ``x`` is a dense tensor.
        root: The folder that has ``multilabel``; None is ``TORCHSSVM_DATA`` and the cache.
        loading: As :class:`GapDataModule` takes it.
    """

    def __init__(
        self,
        dataset: Literal["bibtex", "medical", "scene"] = "bibtex",
        batch_size: int = 64,
        scaling: Scaling | None = None,
        bias: bool = True,
        dense: bool = False,
        root: Root = None,
        **loading: Any,
    ) -> None:
        super().__init__(batch_size, **loading)
        self.dataset = dataset
        self.root = root
        self._scaling = ByDensity() if scaling is None else scaling
        self._options = {"bias": bias, "dense": dense}

    def prepare_data(self) -> None:
        """Raise if files are missing."""
        for split in ("train", "test"):
            locate(self.dataset, split, self.root)

    def read(self, split: Any) -> Multilabel | None:
        """The examples."""
        if split == "val":
            return None
        scaling = self._scaling if split == "train" else self.train.scaling
        return Multilabel(self.dataset, split, scaling=scaling, root=self.root, **self._options)


class HorseData(GapDataModule):
    """Trains on one split of :class:`torchssvm.datasets.HorseSegmentation`; validates, tests and predicts on the other.

    Args:
        batch_size: Images of a training step; evaluation takes at least 16 at a time.
        pixels: Whether batches have the pixels too: :class:`torchssvm.datasets.PixelSegmentation`.
        num_workers: Worker processes of each loader, and for building the graphs.
        order: As :class:`GapDataModule` takes it.
        seed: As :class:`GapDataModule` takes it.
        images: Arguments of :class:`HorseSegmentation` other than the split: ``root``, ``num_train``, ``size``,
            ``settings``, ``cache`` and so on.
    """

    def __init__(
        self,
        batch_size: int = 4,
        pixels: bool = False,
        num_workers: int = 0,
        order: Order | None = None,
        seed: int = 0,
        **images: Any,
    ) -> None:
        super().__init__(batch_size, num_workers, order, seed, evaluation_size=16)
        self.pixels = pixels
        self._images = images

    def prepare_data(self) -> None:
        """Build missing graphs."""
        self._split("train")

    def read(self, split: Any) -> HorseSegmentation | None:
        """The images and their graphs."""
        return None if split == "val" else HorseSegmentation(split, workers=self.num_workers, **self._images)

    def shown(self, dataset: HorseSegmentation) -> HorseSegmentation | PixelSegmentation:
        """The dataset, with pixels if ``pixels``."""
        return PixelSegmentation(dataset) if self.pixels else dataset


class LSPETData(GapDataModule):
    """Trains on the training images of :class:`torchssvm.datasets.LSPET`; tests on the other 200.

    The datasets are :class:`torchssvm.datasets.PoseTargets`: batches have labelings as targets.

    Args:
        label: Joints on the grid ``[n, 14, 2]`` -> labelings ``[n, P, 4]``; see
            :class:`torchssvm.datasets.PoseTargets`.
        batch_size: Images of a training step; evaluation takes at least 16 at a time.
        size: ``"large"`` or ``"small"``, 800 or 100 images to train on.
        hold_out: Share of them, from their end, that is held out for validation; with 0 validation uses the test
            images.
        canvas: (H, W) in pixels.
        stride: Side of a place of the grid, in pixels.
        root: The folder that holds ``lspet``; None is ``TORCHSSVM_DATA`` or the cache.
        keep: Whether images stay in memory after they are read.
        loading: As :class:`GapDataModule` takes it.

    Raises:
        ValueError: ``hold_out`` is out of range, or leaves no image to train or to validate on.
    """

    def __init__(
        self,
        label: Callable[[Tensor], Tensor],
        batch_size: int = 8,
        size: Literal["small", "large"] = "large",
        hold_out: float = 0.0,
        canvas: tuple[int, int] = (192, 192),
        stride: int = 4,
        root: Root = None,
        keep: bool = False,
        **loading: Any,
    ) -> None:
        super().__init__(batch_size, evaluation_size=16, **loading)
        self.label = label
        self.size = size
        self.hold_out = _share(hold_out)
        self.stride = stride
        self._options: dict[str, Any] = {"canvas": canvas, "root": root, "keep": keep}

    def read(self, split: Any) -> PoseTargets | None:
        """The images and the labelings."""
        if split == "test":
            return PoseTargets(LSPET("test", **self._options), self.label, self.stride)
        if split == "val":
            return self.train and self._splits["val"] if self.hold_out else None
        images = LSPET("train", self.size, **self._options)
        first = len(images) - round(self.hold_out * len(images))
        if first < 1 or (self.hold_out and first == len(images)):
            raise ValueError(f"hold_out={self.hold_out} of {len(images)} images leaves {first} to train on")
        if self.hold_out:
            self._splits["val"] = PoseTargets(images, self.label, self.stride, range(first, len(images)))
        return PoseTargets(images, self.label, self.stride, range(first))


def _share(hold_out: float) -> float:
    if not 0.0 <= hold_out < 1.0:
        raise ValueError(f"hold_out={hold_out} must be a share of the training set, at least 0 and below 1")
    return hold_out
