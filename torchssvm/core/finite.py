"""Whether scores can be decoded: NaN and +inf decode to ordinary outputs; -inf forbids what has it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from torchssvm.core.launch import once
from torchssvm.core.naming import row_names
from torchssvm.core.potentials import Parts, Potentials


def check_scores_finite(potentials: Potentials, places: Callable[[Potentials], Parts]) -> None:
    """Raise ValueError if a score that an output can have is NaN or +inf; padding is not looked at.

    One reduction, and one wait for a device, where all is well. Fake tensors hold no numbers to look at.

    Args:
        potentials: The batch.
        places: ``structure.places``, where the potentials can matter.
    """
    tensors = {name: once(tensor) for name, tensor in potentials.tensors.items() if tensor.numel()}
    if any(isinstance(tensor, FakeTensor) for tensor in tensors.values()):
        return
    highest = [tensor.amax() for tensor in tensors.values()]
    if len(highest) > 1 and not highest[0].is_cpu:
        highest = [torch.stack(highest).amax()]
    if all(number.item() < torch.inf for number in highest):
        return  # NaN is the largest number of all to amax, and is not below inf
    there = places(potentials)
    rows = sorted({row for name in tensors for row in _wrong_rows(name, potentials, there.get(name))})
    if rows:
        raise ValueError(
            f"the potentials of {row_names(rows)} are not finite, they hold NaN or inf: check features and weights "
            "(-inf alone may stand for what is forbidden)"
        )


def _wrong_rows(name: str, potentials: Potentials, there: Tensor | None) -> list[int]:
    tensor = potentials.tensors[name]
    wrong = ~(tensor < torch.inf)
    if there is not None:
        wrong = wrong & there
    elif name in potentials.ragged and potentials.lengths is not None:
        rows = potentials.lengths + potentials.ragged[name]
        real = torch.arange(tensor.shape[1], device=tensor.device) < rows.unsqueeze(1)
        wrong = wrong & real.view(*real.shape, *[1] * (tensor.ndim - 2))
    return wrong.flatten(1).any(1).nonzero().flatten().tolist()
