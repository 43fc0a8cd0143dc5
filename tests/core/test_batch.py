"""Batches on their way to a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from torchssvm import Batch
from torchssvm.core.batch import to_device


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
