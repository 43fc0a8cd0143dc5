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
    highest = [once(tensor).amax() for tensor in potentials.tensors.values() if tensor.numel()]
    if not highest or isinstance(highest[0], FakeTensor):
        return
    if len(highest) > 1 and not highest[0].is_cpu:
        highest = [torch.stack(highest).amax()]
    for number in highest:
        if not number.item() < torch.inf:  # NaN is the largest number of all to amax, and is not below inf
            break
    else:
        return
    there = places(potentials)
    wrong = (_wrong_rows(name, potentials, there.get(name)) for name, t in potentials.tensors.items() if t.numel())
    rows = sorted({row for several in wrong for row in several})
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
