"""A torch-struct distribution as a structure for max-margin training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_flags, check_number, check_tensor
from torchssvm.core.marginals import Marginals
from torchssvm.core.naming import row_name
from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import Decoding, Structure
from torchssvm.structures.torch_struct.distribution import PaddedDistribution, per_row

LossPotentials = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps a target ``[B, *event]`` to ``(delta, constant)``, ``[B, *event]`` and ``[B]``."""


class TorchStruct(Structure):
    """A torch-struct distribution as a structure: ``TorchStruct(torch_struct.LinearChainCRF)``.

    Potentials: one float32 or float64 tensor ``[B, *event]`` of finite log-potentials in the distribution's
    layout, and ``lengths`` in tokens. Potentials in the padding are ignored. Labelings and targets are the
    distribution's events: indicators of the parts, ``[B, *event]``, zero in the padding. (torch-struct's
    ``to_event`` and some of its ``to_parts`` ignore the lengths and write into the padding.) Parts and lengths:

    * ``LinearChainCRF`` ``[B, N-1, C, C]``: position n, state at n+1, state at n. Lengths 2 to N.
    * ``SemiMarkovCRF`` ``[B, N-1, K, C, C]``: position n, duration k from 1 to K-1 (index 0 is unused),
      state at n+k, state at n. Lengths 2 to N.
    * ``DependencyCRF`` ``[B, N, N]`` or ``[B, N, N, L]``: head, child, label of a projective tree's arc; the
      root's arcs are on the diagonal. Lengths 1 to N.
    * ``TreeCRF`` ``[B, N, N, NT]``: first token, last token (inclusive), nonterminal of a binary tree's span,
      single tokens included. Lengths 1 to N.

    The loss counts the parts of y that the target lacks, ``L(y) = weight * sum_p y_p [target_p = 0]``, unless
    ``loss_potentials`` is given.

    Args:
        distribution: A class of torch-struct, or a class with the same interface: called with
            ``(log_potentials, lengths=...)``, with an ``argmax`` that is an indicator ``[B, *event]``.
        loss_potentials: Replaces the default loss: maps a target ``[B, *event]`` to ``delta`` ``[B, *event]`` and
            ``constant`` ``[B]``; the loss is ``<y, delta> + constant``, which must be non-negative, and zero at
            the target. Values that are zero up to rounding count as zero.
        weight: Cost of a part that the target lacks; not with ``loss_potentials``.
        normalize: Divide the default loss by the number of the target's parts; not with ``loss_potentials``.
        verify_targets: Whether ``check_target`` decodes to verify that targets are outputs.
        padded_axes: For other classes: the axes of ``[B, *event]`` that are padded, e.g. ``(1, 2)``.
        length_offset: For other classes: the size of these axes minus the length.
        **arguments: Passed to ``distribution``, e.g. ``multiroot=False``.

    Raises:
        TypeError: ``distribution`` is not a class with ``argmax``, or does not take ``arguments``.
        ValueError: torch-struct cannot decode with ``distribution``, its padding is unknown, or an argument of
            the loss is wrong.

    Example:
        >>> import torch_struct
        >>> chain = TorchStruct(torch_struct.LinearChainCRF)
        >>> potentials = Potentials(torch.randn(2, 4, 3, 3), torch.tensor([5, 4]))  # up to five tokens, three states
        >>> chain.argmax(potentials).labeling.sum((1, 2, 3))  # one part for each pair of neighbours
        tensor([4., 3.])
    """

    not_plain = "torch-struct decodes by gradients"

    padding = 0

    def __init__(
        self,
        distribution: type[Any],
        *,
        loss_potentials: LossPotentials | None = None,
        weight: float = 1.0,
        normalize: bool = False,
        verify_targets: bool = False,
        padded_axes: Sequence[int] | None = None,
        length_offset: int | None = None,
        **arguments: Any,
    ) -> None:
        weight = check_number(weight, "weight", 0.0)
        check_flags(normalize=normalize, verify_targets=verify_targets)
        if loss_potentials is not None and (weight != 1.0 or normalize):
            raise ValueError("loss_potentials replaces the loss: weight and normalize would have no effect")
        self._padded = PaddedDistribution(distribution, arguments, padded_axes, length_offset)
        self.distribution = distribution
        self.arguments = arguments
        self.custom_loss = loss_potentials
        self.weight = weight
        self.normalize = normalize
        self.verify_targets = verify_targets

    def argmax(self, potentials: Potentials) -> Decoding:
        """The highest-scoring event of every example, ``[B, *event]`` in the dtype of the potentials.

        Ties are always broken in the same way.

        Raises:
            ValueError: Shape, dtype or lengths do not fit the distribution, or a number is not finite.
            RuntimeError: The distribution returned something that is not an indicator.
        """
        return Decoding(self._padded.argmax(potentials.single, potentials.lengths))

    def marginals(self, potentials: Potentials) -> Marginals:
        """The distribution's own marginals ``[B, *event]`` and log-partition.

        Raises:
            ValueError: As ``argmax``; or the potentials are so large that an output could score as much as
                torch-struct's penalties of impossible parts.
            TypeError: The distribution has no marginals.
        """
        (name,) = potentials.tensors
        mean, log_partition = self._padded.marginals(potentials.single, potentials.lengths)
        return Marginals({name: mean}, log_partition)

    def parts(self, labeling: Tensor) -> Tensor:
        """The events themselves, ``[B, *event]``; integers and bools are cast to the default floating dtype."""
        return labeling if labeling.is_floating_point() else labeling.to(torch.get_default_dtype())

    def loss(self, labeling: Tensor, target: Tensor) -> Tensor:
        """``<labeling, delta> + constant`` of ``loss_potentials(target)``: ``[B]`` float64."""
        delta, constant = self.loss_potentials(target)
        costs = (labeling.to(torch.float64) * delta).flatten(1)
        loss = costs.sum(1) + constant
        if self.custom_loss is None:
            return loss
        # At the target delta and constant cancel, but rounding could leave a small loss.
        rounding = 100 * torch.finfo(delta.dtype).eps * (costs.abs().sum(1) + constant.abs())
        return loss.masked_fill(loss.abs() <= rounding, 0.0)

    def loss_potentials(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """``weight`` where the target has no part (``[B, *event]`` float64) and 0, or the given ``loss_potentials``.

        Raises:
            ValueError: The user's function did not return two tensors ``[B, *event]`` and ``[B]``.
        """
        if self.custom_loss is None:
            delta = (target == 0).to(torch.float64) * self.weight
            if self.normalize:
                counts = target.flatten(1).sum(1, dtype=torch.float64).clamp(min=1.0)
                delta = delta / per_row(counts, delta)
            return delta, delta.new_zeros(len(delta))
        found = self.custom_loss(target)
        if not (isinstance(found, tuple) and len(found) == 2 and all(isinstance(t, Tensor) for t in found)):
            raise ValueError(f"loss_potentials(target) must return the tensors (delta, constant), got {type(found)}")
        delta, constant = found
        if delta.shape != target.shape or constant.shape != target.shape[:1]:
            raise ValueError(
                f"loss_potentials(target) must return delta {list(target.shape)} and constant "
                f"{list(target.shape[:1])}, got {list(delta.shape)} and {list(constant.shape)}"
            )
        return delta, constant

    def check_target(self, target: Tensor, potentials: Potentials) -> Tensor:
        """Check a target's shape, numbers, padding and lengths; cast it to the dtype of the potentials.

        Raises:
            TypeError: ``target`` is not a tensor.
            ValueError: It is not shaped like the potentials; a number is not 0 or 1 (for other classes: not a
                count); a part lies in the padding; an example has no part; a length is out of
                range; or, with ``verify_targets``, a target is not an output.
        """
        check_tensor(target, "target", " (it should hold events, shaped like the potentials)")
        scores = potentials.single
        extents = self._padded.extents(scores, potentials.lengths)
        if target.shape != scores.shape:
            raise ValueError(
                f"target has shape {list(target.shape)}; an event of {self} is shaped like its potentials, "
                f"{list(scores.shape)}"
            )
        if not target.is_floating_point():
            target = target.to(torch.int64)  # bool has no arithmetic
        known = bool(self._padded.convention.layout)
        most = 1 if known else torch.finfo(scores.dtype).max
        wrong = ~((target >= 0) & (target <= most) & (target == target.round()))
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0, 0])
            raise ValueError(
                f"target must hold {'zeros and ones' if known else 'counts'}, "
                f"got {target[wrong][0].item()} in {row_name(row)}"
            )
        outside = (target != 0) & ~self._padded.real(target, extents)
        if bool(outside.any()):
            row, *event = outside.nonzero()[0].tolist()
            raise ValueError(
                f"target has a part at {event} in {row_name(row)}, which is padding: "
                f"lengths[{row}] is {int(extents[row]) - self._padded.convention.offset}"
            )
        if known and bool((empty := ~target.flatten(1).any(1)).any()):
            raise ValueError(f"target has no part at all in {row_name(int(empty.nonzero()[0, 0]))}")
        target = target.to(scores.dtype)
        if self.verify_targets and not bool((valid := self.is_output(target, potentials.lengths)).all()):
            raise ValueError(
                f"target is not an output of {self} in {row_name(int((~valid).nonzero()[0, 0]))}: "
                f"no event of the distribution has exactly these parts"
            )
        return target

    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        """All but the padding."""
        (name,), scores = potentials.tensors, potentials.single
        return {name: self._padded.real(scores, self._padded.extents(scores, potentials.lengths))}

    def is_output(self, labeling: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Whether each event is an output of the distribution: ``[B]`` bool, at the cost of one ``argmax``.

        An output is the only maximiser of the potentials that are 1 at its parts and -1 elsewhere.

        Args:
            labeling: ``[B, *event]``, zeros and ones.
            lengths: ``[B]`` int64, or None.
        """
        events = self.parts(labeling)
        found = self.argmax(Potentials(2 * events - 1, lengths)).labeling
        return (found == events).flatten(1).all(1)

    def __repr__(self) -> str:
        return repr(self._padded)
