"""The compiled form of a user's head, declared by its weights and a kind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_int64, describe
from torchssvm.core.decoding import Labeling
from torchssvm.core.potentials import SINGLE, Potentials, as_potentials
from torchssvm.core.structure import reject_rows
from torchssvm.kinds.adapter import Extra, HeadAdapter, Reading, Shapes
from torchssvm.kinds.examples import Examples
from torchssvm.kinds.weights import HeadWeights, Model, Tensors


class Form(HeadAdapter):
    """The compiled form of a linear head on dense features, whose targets are one number for each label.

    Features are ``[B, F]``, one row for each example, or ``[B, N, F]``, one for each label; with lengths, an example
    of length T has the first T rows and labels. The potentials of a row are ``x weight + bias``; the potentials of
    pairs, if any, are weights that all examples share. Labelings and targets are int64 ``[B, N]``, 0 to ``labels - 1``,
    and -1 beyond the length.

    Args:
        head: The head, whose structure is ``head.structure``. Its parameters are the tensors below, or views of them.
        kind: A named tuple of numbers and arrays that all examples share. Its class has versions of
            ``list_parts`` and ``decode`` of :mod:`torchssvm.kinds.block`.
        weight: ``[F, K]``.
        bias: ``[K]``, or None.
        pairs: ``[rows, width]``, or None.
        emission: Name of the potentials of rows; of a head that returns one tensor, the default.
        transition: Name of the potentials of pairs.
        labels: The number of values of a label.
        cost: The cost of a wrong label.
        room: A function that makes ``scratch.room`` for ``decode``, once for each thread.

    Raises:
        TypeError: The tensors are not all the parameters of the head, or views of these, once each.
    """

    notes = True
    weights: FormWeights

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
        super().__init__(head, FormWeights(head, weight, pairs, bias))
        self.emission, self.pairs, self.ragged = emission, None if pairs is None else transition, False
        self._kind, self._labels, self._cost, self._room, self._by_row = kind, labels, cost, room, False
        self._shapes: dict[str, tuple[int, ...]] = {}

    def read(self, x: Any, target: Labeling, potentials: Potentials) -> Reading:
        """The rows and labels within the lengths.

        Raises:
            ValueError: ``x``, a label or the number of labels is not valid; or the potentials are not
                ``x weight + bias`` and ``pairs``, or have another shape than before.
        """
        two_axes = isinstance(target, Tensor) and target.ndim == 2
        check_int64(target, "target", target.shape if two_axes else ("B", "N"))
        real = target >= 0
        sizes = real.sum(1)
        in_order = real == (torch.arange(target.shape[1]) < sizes.unsqueeze(1))
        reject_rows(
            ((target < -1) | (target >= self._labels) | ~in_order).any(1),
            "target has labels outside of Form(labels=" + str(self._labels) + "), or -1 before a label, in {rows}",
        )
        num_features = len(self.weights.emission)
        shapes = {(len(target), num_features), (*target.shape, num_features)}
        if not isinstance(x, Tensor) or tuple(x.shape) not in shapes or not x.is_floating_point():
            raise ValueError(f"x must be floats [B, F] or [B, N, F], F = {num_features}, not {describe(x)}")
        self._note(x, potentials)
        advice = (
            "-1 must mark places beyond the lengths" if self.ragged else f"it must have {self._size}, none of them -1"
        )
        reject_rows(  # kernels trust the size of a target
            sizes != (potentials.lengths if self.ragged else self._size),
            "target has another number of labels than a labeling in {rows}: " + advice,
        )
        labels = target[real]
        return Reading(
            labels,
            torch.full((len(labels),), self._cost, dtype=torch.float64),
            sizes,
            x[real] if x.ndim == 3 else x,
            rows=sizes if self._by_row else torch.ones_like(sizes),
        )

    def _note(self, x: Tensor, potentials: Potentials) -> None:
        """Note the shapes of the first batch, and compare the head; ValueError if a later one has others."""
        ragged, shapes = potentials.lengths is not None, {n: tuple(t.shape[1:]) for n, t in potentials.tensors.items()}
        if not self._shapes:
            self.ragged, self._by_row, self._shapes = ragged, x.ndim == 3, shapes
            self._compare(x, potentials)
            self._size = self.structure.decode(potentials.select(torch.tensor([0]))).shape[1]  # if nothing is ragged
        if ragged != self.ragged or (not ragged and shapes != self._shapes):
            raise ValueError(
                f"potentials are {potentials}, not {self._shapes}: examples of different sizes need lengths"
            )

    def _compare(self, x: Tensor, potentials: Potentials) -> None:
        """Compare the head at random weights with ``x weight + bias`` and ``pairs``."""
        head = copy.deepcopy(self.head)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for p in head.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
            weight, pairs, bias = self.weights.views(head)
            assert weight is not None
            lengths = () if potentials.lengths is None else (potentials.lengths,)
            returned = as_potentials(head(x, *lengths)).tensors
            wanted = {self.emission: x.to(weight.dtype) @ weight + (0.0 if bias is None else bias)}
            if pairs is not None:
                wanted[str(self.pairs)] = pairs.expand(len(x), *pairs.shape)
        for name, tensor in wanted.items():
            given = returned.get(name)
            if given is not None and given.numel() == tensor.numel():
                if name == self.emission and lengths:
                    real = torch.arange(x.shape[1]) < lengths[0].unsqueeze(1)
                    given, tensor = given[real], tensor[real]
                if torch.allclose(
                    given.reshape(tensor.shape), tensor, rtol=1e-3, atol=1e-3 * float(tensor.abs().max())
                ):
                    continue
            raise ValueError(
                f"head={type(head).__name__}(...) does not return x weight + bias as {self.emission!r}"
                + ("" if pairs is None else f" and the pairs as {self.pairs!r}")
                + ": return both unscaled"
            )

    @override
    def kind(self, examples: Examples, extra: Extra) -> Any:
        return self._kind

    @override
    def room_of(self, examples: Examples) -> Any:
        return self._room

    @override
    def part_shapes(self, lengths: Tensor) -> Shapes:
        one = torch.ones_like(lengths)
        rows = (lengths, (self.num_states,)) if self.ragged else (one, self._shapes[self.emission])
        return {self.emission: rows} | ({} if self.pairs is None else {self.pairs: (one, self._shapes[self.pairs])})

    @override
    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        return 0, torch.full_like(lengths, self._labels - 1)


class FormWeights(HeadWeights):
    """Weights that are views of the head's parameters: emissions ``[F, K]``, rows of pairs, and a bias ``[K]``."""

    def __init__(self, head: Any, emission: Tensor, pairs: Tensor | None, bias: Tensor | None) -> None:
        super().__init__(head)
        self._views = [None if w is None else _view_of(head, w) for w in (emission, pairs, bias)]
        if sorted(view[0] for view in self._views if view) != sorted(name for name, _ in head.named_parameters()):
            raise TypeError(
                f"weight, bias and pairs must be all the parameters of {type(head).__name__}(...), once each"
            )

    @property
    @override
    def emission(self) -> Tensor:
        return self.tensors()[0]

    @property
    @override
    def pairs(self) -> Tensor | None:
        return self.tensors()[1]

    @property
    @override
    def width(self) -> int:
        return self.num_states  # rows are not padded

    @override
    def tensors(self) -> Tensors:
        weight, pairs, bias = self.views(self.head)
        assert weight is not None
        return weight, pairs, bias, None, None

    def views(self, head: Any, like: Callable[[Tensor], Tensor] = Tensor.detach) -> list[Tensor | None]:
        """Emissions, pairs and bias as views of ``like(parameter)`` for the parameters of a head like this one."""
        made = {name: like(p) for name, p in head.named_parameters()}
        return [None if view is None else made[view[0]].as_strided(*view[1:]) for view in self._views]

    @override
    def trained(self, model: Model) -> list[Any]:
        arrays = [torch.from_numpy(array) for array in (model.emission, model.transition, model.bias)]
        made: list[Tensor] = []

        def keep(p: Tensor) -> Tensor:
            made.append(torch.empty(p.shape, dtype=arrays[0].dtype))
            return made[-1]

        for view, array in zip(self.views(self.head, keep), arrays, strict=True):
            if view is not None:
                view.copy_(array)
        return [tensor.numpy() for tensor in made]


def _view_of(head: Any, tensor: Tensor) -> tuple[str, tuple[int, ...], tuple[int, ...], int]:
    """The name of the parameter that a tensor is a view of, "" for none; size, stride and offset of the view."""
    for name, p in head.named_parameters():
        same = p.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        if same and p.is_contiguous() and p.numel() == tensor.numel() and p.storage_offset() == 0:
            return name, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    return "", (), (), 0
