"""torch's random state in checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.states import check_entries, damaged


def check_random_state(value: Any, where: str) -> None:
    """Raise ValueError, naming ``where``, if the value is not the state of a CPU generator."""
    try:
        torch.Generator().set_state(value.cpu())
    except (AttributeError, TypeError, RuntimeError) as error:
        raise damaged(where) from error


class RandomState:
    """torch's random state on the CPU and all CUDA devices: the current one, or one from ``state_dict``."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        if state is not None:
            check_entries(state, {"cpu": Tensor, "cuda": list}, "random state")
            check_random_state(state["cpu"], "random state")
            self.cpu: Tensor = state["cpu"]
            self.cuda: list[Tensor] = state["cuda"]
        else:
            self.cpu = torch.get_rng_state()
            self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self) -> None:
        """Set torch's random state to this one; states of missing CUDA devices are skipped."""
        torch.set_rng_state(self.cpu.cpu())
        if torch.cuda.is_available():
            for device, state in zip(range(torch.cuda.device_count()), self.cuda, strict=False):
                torch.cuda.set_rng_state(state.cpu(), device)

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors."""
        return {"cpu": self.cpu, "cuda": self.cuda}
