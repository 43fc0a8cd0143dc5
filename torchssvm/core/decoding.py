"""What oracles return: outputs with their scores, losses and bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from torchssvm.core.batch import tree_map, tree_tensors
from torchssvm.core.potentials import Parts


@dataclass(eq=False)
class OracleResult:
    """One output of every example of a batch, with its score and its loss.

    Attributes:
        labeling: The outputs s_i.
        score: ``<p(s_i) - p(y_i), theta_i>``, ``[B]`` float64.
        loss: ``L_i(s_i)``, ``[B]`` float64.
        hinge: ``L_i(s_i) + <p(s_i) - p(y_i), theta_i>``, ``[B]`` float64: the structured hinge H_i of an exact oracle.
        upper: ``[B]`` float64, an upper bound of H_i; None where ``hinge`` is one.
        exact: Whether ``hinge`` is H_i.
        relaxed: Whether the outputs may lie outside of the hull of outputs.
        decoded: ``[B]`` bool, whether the max oracle was called; None if it was called for all.
        column: ``[B]`` int64, the column of ``Stored.atoms`` with this labeling, 0 if there is none; None if unknown.
        read: ``hinge`` and ``bound`` on the CPU, if the max oracle has read them; else None.
        made: The parts ``p(s_i) - p(y_i)``, if they were made to score the outputs; else None.
        make: Makes these parts; None if they are not available.
    """

    labeling: Any
    score: Tensor
    loss: Tensor
    made: Parts | None = None
    upper: Tensor | None = None
    exact: bool = True
    relaxed: bool = False
    decoded: Tensor | None = None
    column: Tensor | None = None
    read: tuple[Tensor, Tensor] | None = None
    make: Callable[[], Parts] | None = None

    @cached_property
    def hinge(self) -> Tensor:
        """Score plus loss."""
        return self.score + self.loss

    @property
    def bound(self) -> Tensor:
        """``upper``, or ``hinge`` where that is None."""
        return self.hinge if self.upper is None else self.upper

    @property
    def parts(self) -> Parts:
        """The parts ``p(s_i) - p(y_i)``, made when they are first asked for."""
        if self.made is None:
            assert self.make is not None, "these outputs came without a way to make their parts"
            self.made = self.make()
        return self.made


Labeling = Any
"""An output for each example of a batch: usually an int64 tensor ``[B, ...]``, or a tuple of tensors."""


class Decoding(NamedTuple):
    """What a max oracle returns.

    Attributes:
        labeling: One output for each example.
        value: ``[B]``, the scores under the decoded potentials; -inf if potentials of -inf forbid every output. If it
            is None, the scores are computed from the parts.
        bound: ``[B]``, the upper bounds of the scores: no output scores higher. If it is None, ``value`` is the
            maximum.
        exact: Whether the labeling has the highest score. An approximate oracle says False and gives ``bound``.
        relaxed: Whether labelings may lie outside of the hull of outputs, such as a fractional vertex of a linear
            program. The dual and certificates then belong to the relaxation.

    Example:
        >>> decoding = Multiclass(3).argmax(Potentials(torch.tensor([[0.0, 2.0, 1.0]])))
        >>> decoding.labeling, decoding.value, decoding.exact
        (tensor([1]), tensor([2.]), True)
    """

    labeling: Labeling
    value: Tensor | None = None
    bound: Tensor | None = None
    exact: bool = True
    relaxed: bool = False


def as_decoding(output: Decoding | Labeling) -> Decoding:
    """Wrap a bare labeling as an exact decoding."""
    return output if isinstance(output, Decoding) else Decoding(output)


def shifted(decoding: Decoding, amount: Tensor) -> Decoding:
    """The decoding with ``amount`` ``[B]`` added to its value and its bound."""
    value, bound = (None if each is None else each + amount for each in (decoding.value, decoding.bound))
    return decoding._replace(value=value, bound=bound)


def each_labeling(labelings: Labeling) -> Iterator[Labeling]:
    """The labelings ``[B, ...]`` of ``[B, C, ...]``, one after another."""
    for column in range(tree_tensors(labelings)[0].shape[1]):
        yield tree_map(lambda tensor, column=column: tensor[:, column], labelings)
