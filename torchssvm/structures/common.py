"""Shared by heads and structures: zero weights, weighted labels, and checks of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from torchssvm.core.arguments import check_int64, check_length_form, check_tensor, read_numbers, row_name
from torchssvm.core.operators import apart, upload
from torchssvm.core.potentials import SINGLE, Parts, Potentials, own_weights
from torchssvm.core.sparse_features import respond
from torchssvm.core.structure import Structure

Kind = TypeVar("Kind", bound=Structure)


def check_structure(structure: Kind | None, such: str, *settings: str) -> Kind | None:
    """The ``structure`` argument of a head, if it has the attributes ``settings`` that the head reads; None stays None.

    ``such`` is a suitable structure, for the error message.
    """
    if structure is not None:
        missing = [name for name in settings if not hasattr(structure, name)]
        if not isinstance(structure, Structure) or missing:
            lacks = f", with {' and '.join(missing)}" if isinstance(structure, Structure) else ""
            raise TypeError(f"structure={structure!r} must be one such as {such}{lacks}")
    return structure


def fitting(
    structure: Kind | None, make: Callable[[], Kind], such: str, also: Sequence[str] = (), **settings: Any
) -> Kind:
    """The ``structure`` argument of a head, checked for these settings; ``make()`` for None."""
    if check_structure(structure, such, *settings, *also) is None:
        return make()
    wanted = {name: _plain(value) for name, value in settings.items()}
    if {name: _plain(getattr(structure, name)) for name in settings} != wanted:
        raise ValueError(f"structure={structure} does not fit {', '.join(f'{n}={v}' for n, v in wanted.items())}")
    return structure  # type: ignore[return-value]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


class Around(Structure):
    """A structure around another one, whose outputs it shares."""

    structure: Structure

    def _inner(self, output: Any) -> Any:
        """A labeling or target as the wrapped structure takes it."""
        return output

    @override
    def argmax(self, potentials: Potentials) -> Any:
        return self.structure.argmax(potentials)

    @override
    def parts(self, labeling: Any) -> Any:
        return self.structure.parts(self._inner(labeling))

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        self.structure._check_potentials(potentials)

    @override
    def max_marginals(self, potentials: Potentials) -> Tensor:
        return self.structure.max_marginals(potentials)

    @override
    def resize(self, labelings: Any, target: Any) -> Any:
        return self.structure.resize(labelings, self._inner(target))

    @override
    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        return self.structure.places(potentials)

    @override
    def signed(self, name: str) -> bool:
        return self.structure.signed(name)

    @override
    def enumerate(self, potentials: Potentials) -> Iterator[Any] | None:
        return self.structure.enumerate(potentials)


class WeightedLabels(NamedTuple):
    """A target of a chain or graph with a weight for each token or node.

    Attributes:
        labels: ``[B, N]`` int64.
        weights: ``[B, N]``, non-negative; the cost of a wrong label at each token or node.

    Example:
        >>> target = WeightedLabels(labels=torch.tensor([[0, 1]]), weights=torch.tensor([[3.0, 1.0]]))
        >>> Chain(2, normalize=False).loss(torch.tensor([[1, 1]]), target)
        tensor([3.], dtype=torch.float64)
    """

    labels: Tensor
    weights: Tensor


Shape = Sequence[int | str]


def check_shape(value: Any, name: str, *sizes: int | str, bound: dict[str, int] | None = None) -> Tensor:
    """``value``, if it is a dense, real tensor of this shape.

    A size is a number or a letter, which is the same number wherever it stands; ``"N+1"`` is one more. H, K, N and W
    are at least 1. ``bound`` holds the letters' numbers from tensor to tensor.

    Raises:
        TypeError: ``value`` is not a dense, real tensor.
        ValueError: Its shape is another.
    """
    return _match(check_tensor(value, name), name, sizes, {} if bound is None else bound)


def _match(tensor: Tensor, name: str, sizes: Shape, bound: dict[str, int]) -> Tensor:
    fits = tensor.ndim == len(sizes)
    for size, wanted in zip(tensor.shape, sizes, strict=False):
        if isinstance(wanted, str):
            more = int(wanted[1:]) if len(wanted) > 1 else 0
            number = bound.setdefault(wanted[0], size - more)
            fits, wanted = fits and (number > 0 or wanted[0] not in "HKNW"), number + more
        fits = fits and size == wanted
    if not fits:
        raise ValueError(f"{name} must be [{', '.join(map(str, sizes))}], got {list(tensor.shape)}")
    return tensor


def check_fields(x: Any, kind: Any) -> Any:
    """``x``, a tuple of the fields of ``kind``, as this named tuple; else TypeError."""
    if not isinstance(x, tuple) or len(x) != len(kind._fields):
        raise TypeError(f"x must be {kind.__name__}({', '.join(kind._fields)}), got a {type(x).__name__}")
    return kind(*x)


def check_operands(**scores: tuple[Tensor, Shape]) -> None:
    """Raise ValueError unless each of an operator's scores is floating and has its shape: see :func:`check_shape`.

    Compiled kernels trust the shapes and would read outside the arrays.
    """
    bound: dict[str, int] = {}
    for name, (tensor, shape) in scores.items():
        if not check_shape(tensor, name, *shape, bound=bound).is_floating_point():
            raise ValueError(f"{name} must be float32 or float64, got {tensor.dtype}: call .float()")


def check_potentials(potentials: Potentials, shapes: Shape | Mapping[str, Shape]) -> list[Tensor]:
    """The potentials' tensors, if they have these shapes, by name or of the only one, and N covers the lengths.

    Kernels do not look whether an index lies within an array: this does.
    """
    if not isinstance(shapes, Mapping):
        shapes = {next(iter(potentials.tensors)): shapes}
    if potentials.tensors.keys() != shapes.keys():
        given = "one tensor" if [*potentials.tensors] == [SINGLE] else f"{[*potentials.tensors]}"
        raise ValueError(f"potentials must be {[*shapes]} by name, not {given}: pass what the head returns")
    bound: dict[str, int] = {}
    tensors = [
        _match(potentials.tensors[name], f"potentials[{name!r}]", shape, bound) for name, shape in shapes.items()
    ]
    if potentials.max_length is not None and potentials.max_length > bound.get("N", potentials.max_length):
        raise ValueError(f"lengths of the potentials are up to {potentials.max_length}, beyond N = {bound['N']}")
    return tensors


def check_kind(potentials: Potentials, kind: type[Potentials]) -> None:
    """Raise ValueError for potentials of another class, which lack the graph of each example."""
    if not isinstance(potentials, kind):
        given = "one tensor" if [*potentials.tensors] == [SINGLE] else f"{type(potentials).__name__}"
        raise ValueError(f"potentials must be {kind.__name__}, not {given}: pass what the head returns")


def reject_entries(wrong: Tensor, values: Tensor, has: str, allowed: str) -> None:
    """Raise ValueError for the first entry of ``values`` ``[B, ...]`` that is ``wrong``.

    ``has`` begins the message, such as "target has label"; ``allowed`` ends it.
    """
    if bool(wrong.any()):
        row, *place = wrong.nonzero()[0].tolist()
        at = f"at position {place[0] if len(place) == 1 else place} of" if place else "in"
        raise ValueError(f"{has} {values[wrong][0].tolist()} {at} {row_name(row)}: {allowed}")


def check_no_lengths(lengths: None) -> None:
    """Raise ValueError where a batch has lengths, for heads whose outputs have none."""
    if lengths is not None:
        raise ValueError("lengths must be None, as these potentials have one size: make the Batch without lengths")


def check_lengths(lengths: Tensor | None, like: Tensor) -> Tensor:
    """:func:`mask_of` lengths that :func:`check_range` has checked."""
    if lengths is not None:
        check_range(lengths, *like.shape[:2])
    return mask_of(lengths, like)


def mask_of(lengths: Tensor | None, like: Tensor) -> Tensor:
    """The mask of real positions of ``like`` ``[B, N, ...]``: ``[B, N]`` bool."""
    if lengths is None:
        return torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
    return torch.arange(like.shape[1], device=like.device) < lengths.unsqueeze(1)


def own_lengths(lengths: Tensor | None, batch: int, longest: int) -> Tensor | None:
    """A copy of the lengths, which no other thread changes, checked by :func:`check_range`."""
    if lengths is not None:
        check_range(lengths := apart(lengths), batch, longest)
    return lengths


def read_span(lengths: Tensor | None, batch: int, longest: int, device: torch.device) -> tuple[Tensor, tuple[int, int]]:
    """The lengths, on the CPU in memory of their own, the smallest and the largest; errors as :func:`check_range`."""
    if lengths is None:
        return upload(torch.full((batch,), longest), device), (longest, longest)
    return (lengths := apart(lengths)), check_range(lengths, batch, longest)


def check_range(lengths: Any, batch: int, longest: int) -> tuple[int, int]:
    """The smallest and the largest length; ValueError unless they are int64 ``[B]``, 1 to N."""
    if (numbers := read_numbers(check_length_form(lengths, batch))) is None:
        return 1, longest  # under torch.vmap, the first call of the head has checked them
    low, high = min(numbers, default=1), max(numbers, default=1)
    if low < 1 or high > longest:
        raise ValueError(f"lengths must lie between 1 and the padded length {longest}, got {low} to {high}")
    return low, high


def check_edges(edges: Tensor, links: int, nodes: Sequence[int], lengths: Tensor | None) -> Tensor:
    """A copy of the edges ``[B, E, 2]`` int64, each two nodes of the example or (-1, -1).

    Args:
        links: E.
        nodes: B and N.
        lengths: ``[B]`` int64, 1 to N; None means N for all.
    """
    batch, longest = nodes[:2]
    edges = apart(check_int64(edges, "edges", (batch, links, 2), ", the two ends of every edge"))
    limit = longest if lengths is None else lengths.view(-1, 1)
    first, second = edges.unbind(2)
    joined = (first >= 0) & (second >= 0) & (first < limit) & (second < limit) & (first != second)
    wrong = ~(joined | ((first == -1) & (second == -1)))
    reject_entries(
        wrong, edges, "edges has", "give two different nodes of the example, or -1 and -1 where there is none"
    )
    return edges


def check_labels(target: Tensor, num_states: int, where: Tensor | None = None) -> None:
    """Raise ValueError if a label (among those that the mask ``where`` selects) is not in 0 .. num_states - 1.

    ``target`` and ``where`` are ``[B]`` or ``[B, N]``, int64 and bool.
    """
    wrong = (target < 0) | (target >= num_states)
    if where is not None:
        wrong &= where
    if bool(wrong.any()):
        negative = target.ndim > 1 and bool((target[wrong] < 0).any())
        advice = "; -1 marks padding alone, so give the head lengths; HiddenStates take -100" if negative else ""
        reject_entries(wrong, target, "target has label", f"labels are 0 to {num_states - 1}{advice}")


class Head(nn.Module):
    """A head whose weights, all its parameters, are zero at the start."""

    @staticmethod
    def by_feature(weight: Any) -> Any:
        """Weights of features, transposed to ``[F, K]``, a row for each feature, or back: a tensor or an array."""
        return weight.T

    def constructor_arguments(self) -> dict[str, Any]:
        """Constructor arguments, to rebuild an equal head: attributes of the head, or of its structure.

        A flag for weights, such as ``bias``, is whether there are any.
        """
        arguments = {}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self if hasattr(self, name) else self.structure, name)
            flag = isinstance(parameter.default, bool) and not isinstance(value, bool)
            arguments[name] = value is not None if flag else value
        return arguments

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set all weights to zero, as after ``to_empty`` of a head that was made on the meta device."""
        for weights in self._parameters.values():
            if weights is not None:
                weights.zero_()

    def _products(self, features: Parts) -> dict[str, Any]:
        """Options of :class:`~torchssvm.Potentials` that are, by name, features times one vector of weights each."""
        known = {name: tensor.detach().flatten(1, -2) for name, tensor in features.items()}

        def adjoint(parts: Parts) -> list[Tensor]:
            return [(parts[name].flatten(1).unsqueeze(1) @ rows).squeeze(1) for name, rows in known.items()]

        def gram_product(parts: Parts) -> Parts:
            pairs = zip(known.items(), adjoint(parts), strict=True)
            return {name: (rows @ change.unsqueeze(2)).view(parts[name].shape) for (name, rows), change in pairs}

        trained = any(tensor.requires_grad for tensor in features.values())
        weights = None if trained else own_weights(self)
        return {"adjoint": adjoint, "gram_product": gram_product, "weights": weights}


def weight(start: Tensor) -> nn.Parameter:
    """``start``, zeros, as a parameter; one on the meta device is zero again where it gets memory."""
    return _ZeroInMemory(start) if start.is_meta else nn.Parameter(start)


def padded(pairs: Tensor, like: Tensor) -> Tensor:
    """The gradient of weights from a batch's pairs: zero at positions or nodes that the batch does not have."""
    if pairs.shape[1:] == like.shape:
        return pairs
    gradient = pairs.new_zeros(len(pairs), *like.shape)
    gradient[:, : pairs.shape[1]] = pairs
    return gradient


class _ZeroInMemory(nn.Parameter):
    """A parameter on the meta device whose ``torch.empty_like`` on a real device holds zeros.

    ``to_empty`` and transformers' ``from_pretrained`` call that; the latter calls no ``reset_parameters``.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return (torch.zeros_like if func is torch.empty_like else func)(*args, **(kwargs or {}))


class LinearHead(Head):
    """A head with a matrix of weights for its features, ``[out, in]`` as in ``nn.Linear``.

    Its version in ``state_dict`` is 2. Heads on lists of features, and torchssvm 0.1, store ``[in, out]`` as version
    1. Loading refuses the other version: a square matrix would be transposed silently.
    """

    _version = 2

    def _with_pairs(self, x: Tensor, name: str, pairs: str) -> dict[str, Any]:
        """Options of :class:`~torchssvm.Potentials` ``name`` ``W x + bias`` and ``pairs``, which are weights."""
        features, table, bias = x.detach(), getattr(self, pairs), self.bias

        def adjoint(parts: Parts) -> list[Tensor]:
            v = parts[name]
            gradients = [v.transpose(1, 2) @ features, padded(parts[pairs], table)]
            return gradients if bias is None else [*gradients, v.sum(1)]

        def gram_product(parts: Parts) -> Parts:
            v = parts[name]
            change = respond(features, v)
            return {name: change if bias is None else change + v.sum(1, keepdim=True), pairs: parts[pairs]}

        return {"adjoint": adjoint, "gram_product": gram_product}

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        version = local_metadata.get("version", self._version)  # a plain dict, made by hand, has none
        if version == self._version:
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
            return
        errors: list[str] = rest[-1]
        errors.append(
            f"version {version} of the state is not {self._version} of {type(self).__name__}, which stores weights "
            f"{'[out, in]' if self._version == 2 else '[in, out]'}: load them, transposed, from a plain dict"
        )
