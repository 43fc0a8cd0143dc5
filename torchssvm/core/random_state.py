"""torch's random state, as a checkpoint keeps it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchssvm.core.schema import Each, Entry, check, damaged

_BYTES = Entry(torch.uint8, (None,))


def check_random_state(value: Any, where: str) -> None:
    """Raise ValueError, naming ``where``, if the value is no state of a generator on the CPU."""
    _BYTES.check(value, where, {})
    try:
        torch.Generator().set_state(value.cpu())
    except (TypeError, RuntimeError) as error:
        raise damaged(f"{where} is no random state: {error}") from error


class RandomState:
    """torch's random state on the CPU and on every CUDA device, as it is now, or as ``state_dict`` gave it.

    Raises:
        ValueError: The state is damaged.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        if state is not None:
            check(state, {"cpu": check_random_state, "cuda": Each(list, _BYTES)}, "random state")
            self.cpu: Tensor = state["cpu"]
            self.cuda: list[Tensor] = state["cuda"]
        else:
            self.cpu = torch.get_rng_state()
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
