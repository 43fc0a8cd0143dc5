"""Checkpoints of a Lightning Trainer that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

L = pytest.importorskip("lightning")

from cases.lightning_chains import trainer as quiet  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from torchssvm import LinearChain  # noqa: E402
from torchssvm.datasets import OCRData  # noqa: E402
from torchssvm.lightning import SafeCheckpointIO, StructuredSVM  # noqa: E402


def test_overwritten_files_are_kept_and_fallen_back_on(tmp_path):
    io, file = SafeCheckpointIO(), tmp_path / "deep" / "last.ckpt"
    for step in range(3):
        io.save_checkpoint({"step": step}, file)
    assert sorted(results.name for results in file.parent.iterdir()) == ["last.ckpt", "last.ckpt.previous"]
    assert io.load_checkpoint(file, weights_only=True) == {"step": 2}
    file.write_bytes(file.read_bytes()[:300])
    with pytest.warns(UserWarning, match=r"last\.ckpt is damaged.*: loaded the checkpoint before it"):
        assert io.load_checkpoint(str(file), weights_only=True) == {"step": 1}
    file.unlink()
    with pytest.warns(UserWarning, match=r"there is no checkpoint .*last\.ckpt: loaded the checkpoint before it"):
        assert io.load_checkpoint(file) == {"step": 1}
    io.save_checkpoint({"step": 3}, file)
    io.remove_checkpoint(file)
    assert list(file.parent.iterdir()) == []
    with pytest.raises(FileNotFoundError, match=r"last\.ckpt"):
        io.load_checkpoint(file)
    with pytest.raises(TypeError, match="storage_options"):
        io.save_checkpoint({"step": 3}, file, storage_options={"a": 1})


def test_paths_with_a_protocol_are_left_to_lightning():
    io = SafeCheckpointIO()
    io.save_checkpoint({"step": 1}, "memory://folder/last.ckpt")
    assert io.load_checkpoint("memory://folder/last.ckpt", weights_only=True) == {"step": 1}
    io.remove_checkpoint("memory://folder/last.ckpt")
    assert not Path("memory:").exists()


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_under_a_trainer(tmp_path):
    def trainer(epochs: int) -> L.Trainer:
        saving = ModelCheckpoint(tmp_path, filename="one", every_n_epochs=1, enable_version_counter=False)
        return quiet(saving, max_epochs=epochs, plugins=[SafeCheckpointIO()])

    data = OCRData(size="small", batch_size=64)
    trainer(2).fit(StructuredSVM(LinearChain(128, 26), lam=0.1), datamodule=data)
    file = tmp_path / "one.ckpt"
    assert torch.load(file, weights_only=True)["epoch"] == 1
    assert torch.load(tmp_path / "one.ckpt.previous", weights_only=True)["epoch"] == 0
    file.write_bytes(b"")
    resumed = trainer(3)
    with pytest.warns(UserWarning, match="loaded the checkpoint before it"):
        resumed.fit(StructuredSVM(LinearChain(128, 26), lam=0.1), datamodule=data, ckpt_path=file, weights_only=True)
    assert resumed.current_epoch == 3
