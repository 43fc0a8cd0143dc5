"""Batches on their way to a device."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory

from torchssvm import Batch
from torchssvm.core.batch import to_device, tree_tensors


class Copies(TorchFunctionMode):
    """Notes whether the host waits for each copy."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "to":
            self.waits.append(not (kwargs or {}).get("non_blocking", False))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_the_host_waits_for_what_comes_to_it(device):
    """It could read the numbers before they are there."""
    batch = Batch(torch.ones(2, 3), {"labels": torch.zeros(2)}, torch.arange(2), torch.tensor([1, 2]))
    with Copies() as copies:
        moved = to_device(batch, device)
    assert copies.waits == [True] * 4
    assert moved.y["labels"].tolist() == [0.0, 0.0]


def test_the_host_goes_on_while_a_device_is_written_to():
    with Copies() as copies:
        moved = to_device(Batch(torch.ones(2, 3), torch.zeros(2), torch.arange(2)), "meta")
    assert copies.waits == [False] * 3
    assert moved.x.device.type == "meta"
    assert moved.lengths is None


def nested() -> Batch:
    x = {"pixels": torch.rand(2, 3), "graph": [torch.arange(4), (torch.ones(1), "a word")]}
    return Batch(x, torch.tensor([0, 1]), torch.arange(2), torch.tensor([3, 1]))


def test_every_tensor_is_pinned(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor + 1)
    batch = nested()
    result = pin_memory(batch)  # as a DataLoader(pin_memory=True) does
    assert isinstance(result, Batch)
    assert len(pinned) == 6
    assert result.x["graph"][0].tolist() == [1, 2, 3, 4]
    assert result.x["graph"][1][1] == "a word"


def test_copies_and_workers_give_the_same_batch():
    batch = nested()
    (from_worker,) = DataLoader([0], num_workers=1, collate_fn=lambda items: nested().replace(x=torch.ones(2)))
    assert from_worker.x.tolist() == [1.0, 1.0]
    for other in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), batch.to("cpu")):
        assert [t.tolist() for t in tree_tensors(other)] == [t.tolist() for t in tree_tensors(batch)]
