"""torch's random state, as a checkpoint keeps it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.schema import require


class RandomState:
    """torch's random state on the CPU and on every CUDA device, as it is now."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.cpu: Tensor = torch.get_rng_state() if state is None else require(state, "cpu", Tensor, "random state")
        if state is not None:
            self.cuda: list[Tensor] = require(state, "cuda", list, "random state")
        else:
            self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self) -> None:
        """Set it again; the state of CUDA devices that are not here is left out."""
        torch.set_rng_state(self.cpu.cpu())
        if torch.cuda.is_available():
            for device, state in zip(range(torch.cuda.device_count()), self.cuda, strict=False):
                torch.cuda.set_rng_state(state.cpu(), device)

    def state_dict(self) -> dict[str, Any]:
        """As tensors."""
        return {"cpu": self.cpu, "cuda": self.cuda}
