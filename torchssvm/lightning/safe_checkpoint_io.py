"""Checkpoints of a Lightning ``Trainer`` that survive a killed process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from typing_extensions import override

from torchssvm.core.files import previous, whole_file, whole_or_previous


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes local checkpoints whole or not at all: ``Trainer(plugins=[SafeCheckpointIO()])``.

    Lightning itself writes to the system's temporary folder and moves the file from there. If that folder is on another
    file system, moving is copying: a process that is killed meanwhile leaves half a file under the checkpoint's name,
    and the former file of the same name, such as ``last.ckpt``, is lost. Here the file is written to the same folder,
    flushed to the disk and renamed. A file that is overwritten is kept with ``.previous`` added to its name, and is
    loaded, with a warning, if the newer one is missing or damaged. Lightning handles paths with a protocol, such as
    ``s3://``.

    Example:
        >>> trainer = L.Trainer(max_epochs=2, plugins=[SafeCheckpointIO()], **quiet)
        >>> trainer.fit(StructuredSVM(LinearMulticlass(4, 3), lam=0.1), loader)
        >>> trainer.save_checkpoint("last.ckpt")
        >>> StructuredSVM.load_from_checkpoint("last.ckpt").lam
        0.1
    """

    @override
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

    @override
    def load_checkpoint(self, path: str | Path, *args: Any, **options: Any) -> dict[str, Any]:
        """Read the checkpoint, or the previous one if it is missing or damaged.

        Raises:
            FileNotFoundError: Both are missing.
        """
        whole = path if "://" in str(path) else _whole(Path(os.path.realpath(path)))
        return super().load_checkpoint(whole, *args, **options)

    @override
    def remove_checkpoint(self, path: str | Path) -> None:
        super().remove_checkpoint(path)
        if "://" not in str(path):
            previous(Path(path)).unlink(missing_ok=True)


def _whole(path: Path) -> Path:
    """The file, or the previous one if only that is whole; if neither is, Lightning reports the damage."""
    with suppress(OSError, ValueError):
        return path if path.is_dir() else whole_or_previous(path)
    return path
