"""The envelope gradient: how the optimum of a solved head changes with the features below it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchssvm.core.batch import Batch
from torchssvm.core.potentials import Potentials
from torchssvm.dual.labelings import StoredLabelings
from torchssvm.dual.mean_parts import StoredParts
from torchssvm.dual.state import DualState


def envelope(dual: DualState, potentials: Potentials, batch: Batch) -> Tensor:
    """The batch's share of ``(1/n) sum_i [mean loss_i + <mu_i - p(y_i), theta_i>]``, with the dual's mean parts mu_i.

    The optimum of the head's problem depends on the features through theta alone. At an optimal w and alpha its
    gradient in the features is that of this sum with w and mu_i held fixed (Danskin's theorem), and the sum is the mean
    hinge. Nothing is decoded. Where the head is nearly solved, value and gradient are nearly right.

    It holds for the features that the head was solved on only. With blocks that stay as they are while the features
    move, the dual bounds nothing that is worth descending: it falls without end as the features grow. So take one step
    of the features, with the gradient of all examples, and solve the head again.

    Args:
        dual: The dual of the solved head, whose storage keeps mean parts or labelings.
        potentials: The head's potentials of the batch; the head's weights should require no gradient.
        batch: Targets and indices.

    Returns:
        A scalar of the potentials' dtype.

    Raises:
        ValueError: A target does not fit, or an example has another shape than its block.
    """
    target = dual.structure.check_target(batch.y, potentials)
    stored: Any = dual.storage.gather(batch.index, potentials.detach(), target)
    assert isinstance(stored, StoredParts | StoredLabelings)
    value = dual.loss[batch.index].sum()
    for name, tensor in potentials.tensors.items():
        value = value - (stored.psi[name] * tensor).sum() / dual.num_examples
    return value.to(potentials.dtype)
