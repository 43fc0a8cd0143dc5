"""A head in the compiled loop: its weights, its examples and its labelings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.core.batch import Batch, apply_head, device_of, tree_tensors
from torchssvm.core.decoding import Labeling
from torchssvm.core.linearity import is_check
from torchssvm.core.potentials import Potentials
from torchssvm.core.sparse_features import Lists, SparseFeatures, lists_of_rows, lists_within
from torchssvm.core.structure import Structure
from torchssvm.kinds.examples import Examples, fill_inner
from torchssvm.kinds.hidden import Hidden
from torchssvm.kinds.weights import HeadWeights, VectorWeights

Ragged = tuple[Tensor, Tensor]
"""Two tensors for entries of examples: how many each example of a batch has, ``[B]``, or where each example's begin,
``[n + 1]``; and the entries of all, one example after another."""
Extra = dict[str, Ragged]
Shapes = dict[str, tuple[Tensor, tuple[int, ...]]]


class Reading(NamedTuple):
    """The examples of a batch, without padding."""

    labels: Tensor  # [labels] int64
    cost: Tensor  # [labels], the cost of a wrong label, or a factor of it
    sizes: Tensor  # [B] int64, numbers of labels
    features: Tensor | Lists  # [rows, F], or lists
    rows: Tensor | None = None  # [B] int64, numbers of rows of features; None: one for each label
    lengths: Tensor | None = None  # [B] int64, lengths of the examples in the potentials; None: ``sizes``
    extra: Extra | None = None  # further entries for :meth:`HeadAdapter.kind`


class HeadAdapter:
    """A head in the compiled loop. A kind must set :attr:`emission` and :meth:`kind`; the rest has defaults.

    The defaults are for sequences: an example has a row of features for each label.
    """

    structure: Structure
    weights: HeadWeights

    emission: str
    """Name of the potentials that features make."""

    pairs: str | None = None
    """Name of the potentials of neighbouring labels; None where there are none."""

    limits: np.ndarray = np.zeros(0, np.int64)
    """The limits of an approximate oracle, int64; they may change while the loop trains."""

    ragged = True
    """Whether potentials have lengths."""

    products = True
    """Whether inner products of an example's rows are stored."""

    ragged_labels = False
    """Whether longer examples have more labels."""

    exact_labelings = False
    """Whether stored labelings are cut to the sizes of :meth:`longest_labeling`."""

    carries = False
    """Whether a batch's potentials carry data that targets lack, such as sizes of the other side."""

    notes = False
    """Whether it keeps facts about the batches it has read, such as their largest size."""

    def __init__(self, head: Any, weights: HeadWeights | None = None, limits: Sequence[int] = ()) -> None:
        self.head, self.structure = head, head.structure
        self.weights = HeadWeights(head) if weights is None else weights
        self.limits = np.array(limits, np.int64)

    @property
    def num_states(self) -> int:
        """K, the numbers of a row of emissions."""
        return self.weights.num_states

    def inputs(self, x: Any) -> Any:
        """The features in ``batch.x``."""
        return x

    def apply(self, batch: Batch) -> Any:
        """Potentials of a batch."""
        return apply_head(self.head, batch)

    def read(self, x: Any, target: Labeling, potentials: Potentials) -> Reading:
        """The examples of a batch."""
        labels = tree_tensors(target)[0]
        real, cost, x = labels >= 0, self.structure.costs(target), self.inputs(x)  # type: ignore[attr-defined]
        if isinstance(x, SparseFeatures):
            x = lists_within(x, real, self.head.in_features, self.weights.emission.dtype)
        else:
            x = x[real]
        return Reading(labels[real], cost[real], real.sum(1), x)

    def complete(self, examples: Examples, extra: Extra) -> Examples:
        """Add inner products of the features of all examples, and the kind; ``extra`` has all entries of readings."""
        if self.products:
            room = np.zeros(int(examples.column.max(initial=-1)) + 1)
            fill_inner(Hidden(examples).arguments, self.weights.has_bias, room)
        return examples._replace(kind=self.kind(examples, extra))

    def kind(self, examples: Examples, extra: Extra) -> Any:
        """The named tuple of the kind; arguments as of :meth:`complete`, which calls it."""
        raise NotImplementedError

    def room_of(self, examples: Examples) -> Callable[[], Any] | None:
        """A function that makes ``Scratch.room``."""
        return None

    def part_shapes(self, lengths: Tensor) -> Shapes:
        """By potential, the rows of every example in its buffer of mean parts, ``[n]``, and the sizes of a row.

        The first are the emissions, and the second the pairs, if any.
        """
        shapes: Shapes = {self.emission: (lengths, (self.num_states,))}
        if self.pairs is not None:
            assert self.weights.pairs is not None
            shapes[self.pairs] = torch.ones_like(lengths), tuple(self.weights.pairs.shape)
        return shapes

    def whole(self) -> HeadAdapter | None:
        """The adapter whose kind solves whole blocks of mean parts; None if there is none."""
        return None

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """The smallest label, and the largest of examples of these lengths."""
        return 0, torch.full_like(lengths, self.num_states - 1)

    def longest_labeling(self, longest: int) -> Labeling:
        """A batch of one labeling of the largest length and label: a sequence by default."""
        return torch.full((1, longest), int(self.label_limits(torch.tensor([longest]))[1]))

    def as_sequences(self, labelings: Tensor) -> Tensor:
        """Stored labelings as ``[n, C, N]``, sharing their memory; the default is for sequences."""
        return labelings

    def finish(self, labelings: list[Tensor], examples: Tensor, slots: Tensor) -> None:
        """Fill in other tensors of stored labelings than their labels, in these slots, ``[*]`` int64 each."""


def rows_of_examples(weights: HeadWeights, x: Any) -> Tensor | Lists:
    """Features of a row for each example, as :class:`Reading` has them."""
    if isinstance(x, SparseFeatures):
        return lists_of_rows(x, weights.head.in_features, weights.emission.dtype)
    return x


def check_sizes(ragged: bool, sizes: tuple[int, ...], ragged_before: bool, sizes_before: tuple[int, ...]) -> None:
    """Raise ValueError unless all batches have lengths, or none has and all have the same sizes."""
    if ragged != ragged_before or (not ragged and sizes != sizes_before):
        raise ValueError(
            f"sizes are {list(sizes)}, and {list(sizes_before)} in earlier batches: examples of different sizes need "
            "lengths, in every batch"
        )


class NotCompiledError(TypeError):
    """A head or rule has no compiled form; ``reason`` is a clause."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; use BlockGap and BCFW")
        self.reason = reason


def find_adapter(head: nn.Module, *, anywhere: bool = False) -> HeadAdapter:
    """The adapter that ``head.compiled_form()`` makes.

    TypeError if the head has no compiled loop, or is not on the CPU; ``anywhere`` allows other devices.
    """
    bases = type(head).__mro__
    form, forward = (
        next((base for base in bases if name in vars(base)), None) for name in ("compiled_form", "forward")
    )
    overridden = form is not None and forward is not None and bases.index(forward) < bases.index(form)
    adapter = None if form is None or overridden else head.compiled_form()  # type: ignore[operator]
    if adapter is None:
        why = f" with head.structure={head.structure}" if hasattr(head, "structure") else ""
        why = " whose subclass overrides forward without compiled_form" if overridden else why
        raise NotCompiledError(f"head is {type(head).__name__}(...){why}, which has no compiled loop")
    if head._forward_pre_hooks or not all(is_check(hook) for hook in head._forward_hooks.values()):
        raise NotCompiledError("head has forward hooks, which the compiled loop does not run")
    device = device_of(head)
    if device.type != "cpu" and not anywhere:
        raise TypeError(
            f"head is on {device}, and the compiled loop runs on the CPU: call head.to('cpu'), or train with BlockGap "
            "and BCFW"
        )
    return adapter


class VectorAdapter(HeadAdapter):
    """A head whose scores are ``x . weight``. Batches have lengths, or none has.

    Inner products of an example's rows would be as many as pairs of scores: sums over the features take less.
    """

    products, notes = False, True
    _known = False

    def __init__(self, head: Any) -> None:
        super().__init__(head, VectorWeights(head))

    def note(self, potentials: Potentials, sizes: tuple[int, ...]) -> None:
        """Note whether potentials have lengths, and their largest sizes; ValueError if earlier batches differ."""
        ragged = potentials.lengths is not None
        if not self._known:
            self._known, self.ragged, self.sizes = True, ragged, sizes
        check_sizes(ragged, sizes, self.ragged, self.sizes)
        self.sizes = tuple(map(max, sizes, self.sizes))
