"""The features of a token, by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np


def named_values(token: Any) -> Iterator[tuple[str, float]]:
    """The features of a token, by name: a text becomes ``name=text`` with the value 1, True is 1, and 0 is left out.

    Args:
        token: ``{name: bool, text or number}``, or a list of names, each of the value 1.

    Raises:
        TypeError: It is something else.
        ValueError: A number is not finite.
    """
    if isinstance(token, Mapping):
        for name, value in token.items():
            if not isinstance(name, str):
                raise TypeError(f"a token has a feature named {name!r}: names are texts")
            if isinstance(value, str):
                yield f"{name}={value}", 1.0
            elif isinstance(value, Real | np.bool_):
                number = float(value)
                if not math.isfinite(number):
                    raise ValueError(f"a token has the feature {name!r} = {value}, which is not finite")
                if number:
                    yield name, number
            else:
                raise TypeError(
                    f"a token has the feature {name!r} = {value!r}: values are texts, numbers, True or False"
                )
    elif isinstance(token, list | tuple | set | frozenset) and all(isinstance(name, str) for name in token):
        yield from ((name, 1.0) for name in token)
    else:
        raise TypeError(
            f"a token is a {type(token).__name__}: give {{name: text, number, True or False}}, or a list of "
            "names; or one array [N, F] for each sequence"
        )
