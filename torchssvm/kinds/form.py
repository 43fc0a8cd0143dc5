"""The compiled form of a head of one's own, declared by its weights and a kind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.potentials import SINGLE, Potentials, as_potentials
from torchssvm.core.structure import Labeling, reject_rows
from torchssvm.kinds.adapter import Examples, HeadAdapter, Model, Weights


class Form(HeadAdapter):
    """What the compiled loop needs of a linear head on dense features, whose targets are one number for each label.

    Features are ``[B, F]``, one row for each example, or ``[B, N, F]``, a row for each label; with lengths, an example
    of length T has the first T rows and labels. The potentials of a row are ``x weight + bias``; those of pairs, if
    any, are weights, the same for all examples. Labelings and targets are int64 ``[B, N]``, 0 to ``labels - 1``, and -1
    beyond the length.

    Args:
        head: The head, whose structure is ``head.structure``. Its parameters are the tensors below, or views of them.
        kind: A named tuple of numbers and arrays that all examples share. Its class has versions of ``score``,
            ``decode`` and ``add_labeling`` of :mod:`torchssvm.kinds.block`.
        weight: ``[F, K]``.
        bias: ``[K]``, or None.
        pairs: ``[rows, width]``, or None.
        emission: Name of the potentials of rows; of a head that returns one tensor, the default.
        transition: Name of the potentials of pairs.
        labels: The number of values of a label.
        cost: What a wrong label costs.
        room: Makes the arrays that ``decode`` finds as ``scratch.room``, for each thread its own.

    Raises:
        TypeError: A tensor is not a whole parameter of the head, or a view of one; or ``room`` is no function.
    """

    notes = True

    def __init__(
        self,
        head: Any,
        kind: Any,
        weight: Tensor,
        *,
        bias: Tensor | None = None,
        pairs: Tensor | None = None,
        emission: str = SINGLE,
        transition: str = "transition",
        labels: int = 2,
        cost: float = 1.0,
        room: Callable[[], Any] | None = None,
    ) -> None:
        self.head, self.structure, self._kind, self.emission = head, head.structure, kind, emission
        self.pairs = None if pairs is None else transition
        self.has_bias, self._labels, self._cost, self._room = bias is not None, labels, cost, room
        if room is not None and not callable(room):
            raise TypeError(f"room is a {type(room).__name__}: give a function that makes it, for each thread one")
        self._num_features, self._num_states = weight.shape
        self._pair_shape = (0, self._num_states) if pairs is None else tuple(pairs.shape)
        self._views = [None if w is None else _view_of(head, w) for w in (weight, pairs, bias)]
        if sorted(view[0] for view in self._views if view) != sorted(name for name, _ in head.named_parameters()):
            raise TypeError(
                f"weight, bias and pairs must be all the parameters of {type(head).__name__}(...), once each"
            )
        self.ragged = self._by_row = False
        self._shapes: dict[str, tuple[int, ...]] = {}

    @property
    def num_states(self) -> int:
        """K."""
        return self._num_states

    @property
    def width(self) -> int:
        """K."""
        return self._num_states

    @property
    def pair_rows(self) -> int:
        """Those of ``pairs``."""
        return self._pair_shape[0]

    @property
    def pair_width(self) -> int:
        """That of ``pairs``."""
        return self._pair_shape[1]

    def width_of(self, rows: int) -> int:
        """K: rows are not padded."""
        return self._num_states

    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """Labels within the lengths.

        Raises:
            ValueError: The target is not int64 ``[B, N]``, a label is out of range, or -1 is not at the end.
        """
        if not isinstance(target, Tensor) or target.dtype != torch.int64 or target.ndim != 2:
            found = f"{target.dtype} {list(target.shape)}" if isinstance(target, Tensor) else type(target).__name__
            raise ValueError(f"target is {found}, and a compiled Form takes int64 [B, N], one number for each label")
        real = target >= 0
        sizes = real.sum(1)
        if bool(((target < -1) | (target >= self._labels)).any()):
            wrong = int(target[(target < -1) | (target >= self._labels)][0])
            raise ValueError(f"target has the label {wrong}: Form(labels={self._labels}) takes 0 to {self._labels - 1}")
        if bool((real != (torch.arange(target.shape[1]) < sizes.unsqueeze(1))).any()):
            raise ValueError("target has -1 before a label: it marks what is beyond an example's length")
        labels = target[real]
        return labels, torch.full((len(labels),), self._cost, dtype=torch.float64), sizes

    def own(self, x: Any, target: Labeling, potentials: Potentials) -> dict[str, tuple[Tensor, Tensor]]:
        """Nothing beside labels and features; the shapes of the first batch are noted and compared.

        Raises:
            ValueError: The potentials are not ``x weight + bias`` and ``pairs``, or of another shape than before; or a
                target has more or fewer labels than a labeling.
        """
        ragged, shapes = potentials.lengths is not None, {n: tuple(t.shape[1:]) for n, t in potentials.tensors.items()}
        if not self._shapes:
            self.ragged, self._by_row, self._shapes = ragged, x.ndim == 3, shapes
            self._compare(x, potentials)
            self._size = self.structure.decode(potentials.select(torch.tensor([0]))).shape[1]  # if nothing is ragged
        if ragged != self.ragged or (not ragged and shapes != self._shapes):
            raise ValueError(
                f"potentials are {potentials}, not {self._shapes}: sizes that differ need lengths, in every batch"
            )
        reject_rows(
            (target >= 0).sum(1)
            != (potentials.lengths if ragged else self._size),  # kernels take a target's size as given
            "target has another number of labels than a labeling in {rows}: "
            + ("-1 must mark what is beyond the lengths" if ragged else f"it must have {self._size}, none of them -1"),
        )
        return {}

    def _compare(self, x: Tensor, potentials: Potentials) -> None:
        """Compare the head at random weights with what this form says that it computes."""
        head = copy.deepcopy(self.head)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in head.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
            weight, pairs, bias = self._held(head)
            assert weight is not None
            lengths = () if potentials.lengths is None else (potentials.lengths,)
            found = as_potentials(head(x, *lengths)).tensors
            wanted = {self.emission: x.to(weight.dtype) @ weight + (0.0 if bias is None else bias)}
            if pairs is not None:
                wanted[str(self.pairs)] = pairs.expand(len(x), *pairs.shape)
        for name, tensor in wanted.items():
            own = found.get(name)
            if own is not None and own.numel() == tensor.numel():
                if name == self.emission and lengths:
                    real = torch.arange(x.shape[1]) < lengths[0].unsqueeze(1)
                    own, tensor = own[real], tensor[real]
                if torch.allclose(own.reshape(tensor.shape), tensor, rtol=1e-3, atol=1e-3 * float(tensor.abs().max())):
                    continue
            raise ValueError(
                f"head={type(head).__name__}(...) does not return x weight + bias as {self.emission!r}"
                + ("" if pairs is None else f" and the pairs as {self.pairs!r}")
                + ", as its Form says: constants, scaled features and other shapes have no compiled form"
            )

    def features(self, x: Any, target: Labeling) -> Tensor:
        """Rows within the lengths.

        Raises:
            ValueError: ``x`` has another shape.
        """
        shapes = {(len(target), self._num_features), (*target.shape, self._num_features)}
        if not isinstance(x, Tensor) or tuple(x.shape) not in shapes or not x.is_floating_point():
            found = f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"x is {found}, and a Form takes floats [B, F] or [B, N, F], F = {self._num_features}")
        return x if x.ndim == 2 else x[target >= 0]

    def lists(self, sizes: Tensor, own: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
        """One row for each label, or for each example."""
        return sizes if self._by_row else torch.ones_like(sizes)

    def kind(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Any:
        """As it was given."""
        return self._kind

    def room_of(self, examples: Examples) -> Any:
        """As it was given."""
        return self._room

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """As the potentials are."""
        one = torch.ones_like(lengths)
        rows = (lengths, (self.num_states,)) if self.ragged else (one, self._shapes[self.emission])
        return {self.emission: rows} | ({} if self.pairs is None else {self.pairs: (one, self._shapes[self.pairs])})

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """The smallest and the largest value of a label."""
        return 0, torch.full_like(lengths, self._labels - 1)

    def _held(self, head: Any, like: Callable[[Tensor], Tensor] = Tensor.detach) -> list[Tensor | None]:
        """Weight, pairs and bias as views of the parameters of ``head``, or of what ``like`` makes of these."""
        made = {name: like(p) for name, p in head.named_parameters()}
        return [None if view is None else made[view[0]].as_strided(*view[1:]) for view in self._views]

    def weights(self) -> Weights:
        """As they were given."""
        weight, pairs, bias = self._held(self.head)
        assert weight is not None
        return weight, pairs, bias, None, None

    def trained(self, model: Model) -> list[Any]:
        """By parameter."""
        arrays = [torch.from_numpy(array) for array in (model.emission, model.transition, model.bias)]
        made: list[Tensor] = []

        def keep(p: Tensor) -> Tensor:
            made.append(torch.empty(p.shape, dtype=arrays[0].dtype))
            return made[-1]

        for view, array in zip(self._held(self.head, keep), arrays, strict=True):
            if view is not None:
                view.copy_(array)
        return [tensor.numpy() for tensor in made]


def _view_of(head: Any, tensor: Tensor) -> tuple[str, tuple[int, ...], tuple[int, ...], int]:
    """The parameter that a tensor is a view of: its name, and the size, stride and offset of the view."""
    for name, p in head.named_parameters():
        same = p.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        if same and p.is_contiguous() and p.numel() == tensor.numel() and p.storage_offset() == 0:
            return name, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    raise TypeError(
        f"a tensor {list(tensor.shape)} is no whole parameter of {type(head).__name__}(...), or view of one"
    )
