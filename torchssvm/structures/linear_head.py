"""What heads have in common: weights that are zero at the start, and which way round they hold a matrix of them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.potentials import Parts, own_weights


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
