"""Checkpoints of a Lightning ``Trainer`` that a killed process cannot lose."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from torchssvm.core.caller import warn
from torchssvm.core.files import damage, previous, whole_file


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes local checkpoints whole or not at all: ``Trainer(plugins=[SafeCheckpointIO()])``.

    Lightning itself writes to the system's folder for temporary files, and moves the file from there. Where that folder
    is on another file system than the checkpoints, moving is copying: a process that is killed meanwhile leaves half a
    file under the checkpoint's name, and loses the one before it where both have one name, such as ``last.ckpt``. Here
    the file is written beside its place, brought to the disk and renamed, and a file that is overwritten is kept with
    ``.previous`` added: it is loaded, with a warning, where the other is missing or damaged. Paths with a protocol,
    such as ``s3://``, are left to Lightning.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write the checkpoint.

        Raises:
            OSError: See :func:`torchssvm.core.files.whole_file`.
            TypeError: ``storage_options`` are given.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        with whole_file(path, keep_previous=True) as file:
            torch.save(checkpoint, file)

    def load_checkpoint(self, path: str | Path, *args: Any, **options: Any) -> dict[str, Any]:
        """Read the checkpoint, or the one before it where it is missing or damaged.

        Raises:
            FileNotFoundError: There is neither.
        """
        found = path if "://" in str(path) else _whole(Path(os.path.realpath(path)))
        return super().load_checkpoint(found, *args, **options)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Remove the checkpoint, and the one kept before it."""
        super().remove_checkpoint(path)
        if "://" not in str(path):
            previous(Path(path)).unlink(missing_ok=True)


def _whole(path: Path) -> Path:
    """The file, or the one before it if that is whole and the file is not."""
    before = previous(path)
    if path.is_dir() or _is_whole(path) or not _is_whole(before):
        return path
    state = "damaged" if path.exists() else "missing"
    warn(f"{path} is {state}: loaded the checkpoint before it, {before}")
    return before


def _is_whole(path: Path) -> bool:
    return path.is_file() and damage(path) is None
