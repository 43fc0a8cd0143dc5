"""What the heads with a matrix of weights for their features have in common: which way round they hold it."""

from __future__ import annotations

from typing import Any

from torch import nn


class LinearHead(nn.Module):
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
