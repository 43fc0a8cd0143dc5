"""The network below the pose model: trained by cross-entropy on places and types, kept in the report's folder."""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from common import trainer_flags
from torch.utils.data import DataLoader, Subset

from torchssvm import Pose
from torchssvm.core.files import whole_file
from torchssvm.core.structure import digest
from torchssvm.datasets import LSPET, RandomViews
from torchssvm.models import PoseNetwork, body_nodes
from torchssvm.models.pose_network import STRIDE

LEARNING_RATE, WEIGHT_DECAY, BATCH = 2e-3, 0.02, 16


class Pretraining(L.LightningModule):
    """Cross-entropies of places and types.

    Args:
        network: What is trained.
        views: How images are varied; None is not at all.
        optimizer: ``parameters -> torch.optim.Optimizer``; None is AdamW, with one rise and fall of its rate.
    """

    def __init__(
        self,
        network: PoseNetwork,
        views: RandomViews | None,
        optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.views = views
        self.optimizer = optimizer

    def training_step(self, batch, batch_idx):
        """The sum of both losses."""
        images, joints = (batch.x, batch.y) if self.views is None else self.views(batch.x, batch.y)
        places, types = self.network.loss(images, body_nodes(grid_places(joints)))
        self.log_dict({"places": places, "types": types}, prog_bar=True, batch_size=len(images))
        return places + types

    def configure_optimizers(self):
        """The one that was given, or AdamW, with one rise and fall of the learning rate."""
        if self.optimizer is not None:
            return self.optimizer(self.parameters())
        optimizer = torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, steps, pct_start=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def grid_places(joints: torch.Tensor) -> torch.Tensor:
    """Joints in pixels -> on the grid, where they may lie outside of it."""
    return joints / STRIDE - 0.5


def pretrained(args: argparse.Namespace, structure: Pose, images: LSPET, rows: range) -> tuple[PoseNetwork, float]:
    """The network trained on some of the images, read from the report's folder if it was trained there before.

    Args:
        args: The flags' values.
        structure: Its grid and its types.
        images: The training images.
        rows: The numbers of those that are trained on.

    Returns:
        The network, and the seconds that its training took, whenever that was.
    """
    network = PoseNetwork(structure, tuple(args.widths))
    settings = json.dumps(
        {
            **{name: getattr(args, name) for name in ("seed", "pretraining", "widths", "precision")},
            **{"rows": [rows.start, rows.stop], "canvas": images.canvas, "structure": repr(structure)},
            **{"images": digest(images.joints), "views": RandomViews()._asdict()},
            **{"rate": LEARNING_RATE, "decay": WEIGHT_DECAY, "batch": BATCH},
        }
    )
    file = args.report / f"network-{rows.start}-{rows.stop}.pt"
    if (held := _read(file)) is not None and held["settings"] == settings:
        network.load_state_dict(held["network"])
        return network.eval().to(args.device), held["seconds"]
    L.seed_everything(args.seed)
    start = time.perf_counter()
    loader = DataLoader(
        Subset(images, rows), batch_size=min(BATCH, len(rows)), shuffle=True, collate_fn=images.collate, drop_last=True
    )
    _fit(args, Pretraining(network, RandomViews()), loader, args.pretraining)
    seconds = time.perf_counter() - start
    with whole_file(file) as opened:
        torch.save({"settings": settings, "network": network.state_dict(), "seconds": seconds}, opened)
    return network.eval().to(args.device), seconds


def trained_longer(
    args: argparse.Namespace,
    network: PoseNetwork,
    images: LSPET,
    rows: range,
    epochs: int,
    optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer],
) -> PoseNetwork:
    """A copy of the network that goes on with cross-entropy: what joint training is measured against.

    Images are as they are, without random views, and every epoch takes them all, as in joint training.

    Args:
        args: The flags' values.
        network: Stays as it is.
        images: The training images.
        rows: The numbers of those that are trained on.
        epochs: How many.
        optimizer: As of :class:`Pretraining`.
    """
    L.seed_everything(args.seed)
    its = copy.deepcopy(network).train()
    loader = DataLoader(Subset(images, rows), batch_size=args.batch_size, shuffle=True, collate_fn=images.collate)
    _fit(args, Pretraining(its, None, optimizer), loader, epochs)
    return its.eval().to(args.device)


def _fit(args: argparse.Namespace, module: Pretraining, loader: DataLoader, epochs: int) -> None:
    trainer = L.Trainer(max_epochs=epochs, precision=args.precision, **trainer_flags(args))
    trainer.fit(module, loader)


def _read(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file raises
        warnings.warn(f"{file} cannot be read ({error}); the network is trained anew", stacklevel=2)
        return None
