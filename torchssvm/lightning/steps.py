"""The errors that are logged for a batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import Structure, as_decoding
from torchssvm.solvers.evaluation import count_errors


class Mean(NamedTuple):
    """A mean over a batch, and the number of values in it."""

    value: Tensor
    weight: int


@torch.no_grad()
def errors(structure: Structure, potentials: Potentials, target: Any) -> dict[str, Mean]:
    """The mean task loss of decoding; for labelings of one integer a position also the shares of wrong tokens and
    of examples with a wrong token.
    """
    target = structure.check_target(target, potentials)
    labeling = as_decoding(structure.argmax(potentials)).labeling
    size = potentials.batch_size
    found = {"loss": Mean(structure.task_loss(labeling, target).mean(dtype=torch.float64).float(), size)}
    counts = count_errors(labeling, target)
    if counts is not None:
        wrong, tokens = counts
        total = max(int(tokens.sum()), 1)
        found["token_error"] = Mean(wrong.sum() / total, total)
        found["example_error"] = Mean((wrong > 0).float().mean(), size)
    return found
