"""What heads and structures share: weights that are zero at the start, weighted labels, and checks of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import NO_LABEL, check_int64, check_length_form, describe, read_numbers, row_name
from torchssvm.core.operators import apart, plain
from torchssvm.core.potentials import Parts, Potentials, own_weights
from torchssvm.core.structure import Structure

Kind = TypeVar("Kind", bound=Structure)


def check_structure(structure: Kind | None, such: str, *settings: str) -> Kind | None:
    """The ``structure`` argument of a head, if it has the attributes ``settings`` that the head reads; None stays None.

    ``such`` is a suitable structure, for the error message.
    """
    if structure is not None:
        missing = [name for name in settings if not hasattr(structure, name)]
        if not isinstance(structure, Structure) or missing:
            why = f": it has no {' and no '.join(missing)}" if isinstance(structure, Structure) else ""
            raise TypeError(f"structure={structure!r} must be one such as {such}{why}")
    return structure


def fitting(
    structure: Kind | None, make: Callable[[], Kind], such: str, also: Sequence[str] = (), **settings: Any
) -> Kind:
    """The ``structure`` argument of a head, which must have these settings, or what ``make`` makes where it is None."""
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

    def _own(self, output: Any) -> Any:
        """What the other structure takes of a labeling or target."""
        return output

    def argmax(self, potentials: Potentials) -> Any:
        """The best output of the other structure."""
        return self.structure.argmax(potentials)

    def parts(self, labeling: Any) -> Any:
        """As in the other structure, of a labeling or target."""
        return self.structure.parts(self._own(labeling))

    def max_marginals(self, potentials: Potentials) -> Tensor:
        """Those of the other structure."""
        return self.structure.max_marginals(potentials)

    def resize(self, labelings: Any, target: Any) -> Any:
        """As in the other structure."""
        return self.structure.resize(labelings, self._own(target))

    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        """As in the other structure."""
        return self.structure.places(potentials)

    def enumerate(self, potentials: Potentials) -> Iterator[Any] | None:
        """The outputs that the other structure lists."""
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


def check_lengths(lengths: Tensor | None, batch: int, longest: int, device: torch.device) -> Tensor:
    """The mask of real positions, ``[B, N]`` bool."""
    if lengths is None:
        return torch.ones(batch, longest, dtype=torch.bool, device=device)
    check_range(lengths, batch, longest)
    return torch.arange(longest, device=device) < lengths.unsqueeze(1)


def own_lengths(lengths: Tensor | None, batch: int, longest: int) -> Tensor | None:
    """The lengths, checked by :func:`check_range`, in memory of their own, so that no other thread changes them."""
    if lengths is not None:
        check_range(lengths := apart(lengths), batch, longest)
    return lengths


def check_range(lengths: Tensor, batch: int, longest: int) -> tuple[int, int]:
    """The smallest and the largest length."""
    if not isinstance(lengths, Tensor):
        raise TypeError(f"lengths must be an int64 tensor [{batch}], not {describe(lengths)}")
    # A traced graph that reads a size for a message is for this size only.
    such = "" if plain() else f", one for each example of a batch of {batch} padded to {longest}"
    check_length_form(lengths, batch, such)
    if (numbers := read_numbers(lengths)) is None:  # under torch.vmap the first call of the head has checked them
        return 1, longest
    low, high = min(numbers, default=1), max(numbers, default=1)
    if low < 1 or high > longest:
        raise ValueError(f"lengths must lie between 1 and the padded length {longest}, got {low} to {high}")
    return low, high


def check_edges(edges: Tensor, links: int, nodes: Sequence[int], lengths: Tensor | None) -> Tensor:
    """The ends of the edges, in memory of their own.

    ``edges`` are ``[B, E, 2]`` int64, two nodes of the example, or (-1, -1); ``links`` is E, ``nodes`` B and N, and
    ``lengths`` ``[B]`` int64, 1 to N; None means N for all.
    """
    batch, longest = nodes[:2]
    edges = apart(check_int64(edges, "edges", (batch, links, 2), ", the two ends of every edge"))
    limit = longest if lengths is None else lengths.view(-1, 1)
    first, second = edges.unbind(2)
    joined = (first >= 0) & (second >= 0) & (first < limit) & (second < limit) & (first != second)
    wrong = ~(joined | ((first == -1) & (second == -1)))
    if bool(wrong.any()):
        row, place = wrong.nonzero()[0].tolist()
        size = longest if lengths is None else int(lengths[row])
        raise ValueError(
            f"edges has {edges[row, place].tolist()} at place {place} in {row_name(row)}: an edge joins two "
            f"different nodes, 0 to {size - 1}; -1 and -1 where there is none"
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
        row, *position = wrong.nonzero()[0].tolist()
        at = f"at position {position[0]} of " if position else "in "
        label = int(target[wrong][0])
        raise ValueError(
            f"target has label {label} {at}{row_name(row)}; labels are 0 to {num_states - 1}"
            + ("" if label >= 0 else NO_LABEL if position else ": leave examples without a class out")
        )


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
        found = {}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self if hasattr(self, name) else self.structure, name)
            flag = isinstance(parameter.default, bool) and not isinstance(value, bool)
            found[name] = value is not None if flag else value
        return found

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set all weights to zero, as after ``to_empty`` of a head that was made on the meta device."""
        for weights in self._parameters.values():
            if weights is not None:
                weights.zero_()

    def _products(self, features: Parts) -> dict[str, Any]:
        """What :class:`~torchssvm.Potentials` takes, where each are features times a vector of weights of their own."""
        known = {name: tensor.detach().flatten(1, -2) for name, tensor in features.items()}

        def adjoint(parts: Parts) -> list[Tensor]:
            return [(parts[name].flatten(1).unsqueeze(1) @ held).squeeze(1) for name, held in known.items()]

        def gram_product(parts: Parts) -> Parts:
            pairs = zip(known.items(), adjoint(parts), strict=True)
            return {name: (held @ change.unsqueeze(2)).view(parts[name].shape) for (name, held), change in pairs}

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
    found = pairs.new_zeros(len(pairs), *like.shape)
    found[:, : pairs.shape[1]] = pairs
    return found


class _ZeroInMemory(nn.Parameter):
    """A parameter on the meta device: whoever makes an empty one like it, on a real device, gets zeros.

    ``to_empty`` and ``from_pretrained`` of transformers do so, and the latter knows of no ``reset_parameters``.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return (torch.zeros_like if func is torch.empty_like else func)(*args, **(kwargs or {}))


class LinearHead(Head):
    """A head with a matrix of weights for its features, ``[out, in]`` as in ``nn.Linear``.

    ``state_dict`` says so by torch's version of a module, and a state that holds the matrix transposed is refused, even
    where the matrix is square: those of torchssvm 0.1, and those of heads on lists of features, which hold
    ``[in, out]`` and keep version 1.
    """

    _version = 2

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        version = local_metadata.get("version", self._version)  # a plain dict, made by hand, has none
        if version == self._version:
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )
            return
        ways = {1: "[in, out], as torchssvm 0.1 and heads on lists of features do", 2: "[out, in], as dense heads do"}
        error_msgs.append(
            f"the state has version {version}, and {type(self).__name__} reads version {self._version}: the state "
            f"holds the weights of features as {ways.get(version, 'this version does not know')}, so they would be "
            "transposed. Transpose them in a plain dict of the state"
        )
