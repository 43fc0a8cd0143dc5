"""Checks of arguments, and the names of rows in errors."""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
import threading
from collections.abc import Iterable, Iterator, Mapping, MappingView, Sequence, Set
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.operators import on_host, plain, transformed

Kind = TypeVar("Kind")


def check_whole(value: Any, name: str, least: int = 1, *, most: int | None = None, advice: str = "") -> int:
    """``value`` as an int from ``least`` to ``most``; bools are refused, and ``advice`` ends the error."""
    if is_whole(value) and least <= value and (most is None or value <= most):
        return operator.index(value)
    allowed = f"at least {least}" if most is None else f"{least} to {most}"
    kind = ValueError if isinstance(value, numbers.Real) else TypeError
    raise kind(f"{name}={value!r} must be a whole number, {allowed}{advice}")


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer, Python's or NumPy's, and not a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def as_number(value: Any, name: str) -> float:
    """``value`` as a float, infinite or NaN included; TypeError for bools and all that are not numbers."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} must be a number, not a {type(value).__name__}")
    return float(value)


def check_number(
    value: Any, name: str, least: float = -math.inf, *, above: float = -math.inf, finite: bool = True, advice: str = ""
) -> float:
    """``value`` as a float, at least ``least`` and more than ``above``; never NaN, nor infinite if ``finite``."""
    number = as_number(value, name)
    if number >= least and (number > above or above == -math.inf) and (not finite or math.isfinite(number)):
        return number
    limits = [f"at least {least:g}"] if least > -math.inf else []
    limits += [f"more than {above:g}" if above else "positive"] if above > -math.inf else []
    limits += ["finite"] if finite else []
    raise ValueError(f"{name}={value} must be {' and '.join(limits) or 'a number'}{advice}")


def check_type(value: Any, kind: Any, name: str, such: str) -> Any:
    """``value``, if it is a ``kind``; else TypeError, which says that it must be ``such``."""
    if not isinstance(value, kind):
        raise TypeError(f"{name}={reprlib.repr(value)} must be {such}, not a {type(value).__name__}")
    return value


def check_several(value: Any, name: str, form: str = "a list of numbers") -> None:
    """Raise TypeError where a list is asked for, and ``value`` is a number, a text, or none."""
    if isinstance(value, str | numbers.Number) or not isinstance(value, Iterable):
        raise TypeError(f"{name}={value!r} must be {form}, not a {type(value).__name__}")


def check_readable(value: Any, name: str) -> None:
    """Raise ValueError for masked arrays, whose mask NumPy ignores, and where :func:`check_ordered` does."""
    several = isinstance(value, list | tuple)
    for place, array in enumerate(value if several else [value]):
        if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
            whole = f"{name}[{place}]" if several else name
            raise ValueError(f"{whole} has masked values: fill them with numbers, or leave these examples out")
    check_ordered(value, name)


def check_ordered(value: Any, name: str) -> None:
    """Raise ValueError for sets and dictionaries, without order."""
    if isinstance(value, Set | Mapping | MappingView) and not hasattr(value, "shape"):  # SciPy has a dictionary of keys
        raise ValueError(f"{name} is a {type(value).__name__}: give a list, since its order counts")


def places_of(labels: Sequence[Any]) -> dict[Any, int]:
    """The state of each label, its place in ``labels``; ValueError if one comes twice, or they have no order."""
    check_readable(labels, "labels")
    places = {label: place for place, label in enumerate(labels)}
    if len(places) < len(labels):
        raise ValueError(f"labels={list(labels)} has a label twice: each is one state")
    return places


def check_positive(value: Any, name: str) -> float:
    """``value`` as a float; ValueError if it is not positive and finite, TypeError if it is not a number."""
    return check_number(value, name, above=0.0)


def check_share(value: Any, name: str) -> None:
    """Raise ValueError or TypeError unless ``value`` lies between 0 and 1, both excluded."""
    if not 0.0 < as_number(value, name) < 1.0:
        raise ValueError(f"{name}={value} must lie between 0 and 1, as a share such as 0.01")


def check_limit(value: Any, name: str = "memory_limit") -> int | None:
    """A number of bytes as an int; None, for no explicit limit, stays None."""
    return None if value is None else check_whole(value, name, 0, advice=": a number of bytes, or None")


def check_seed(value: Any, name: str = "seed") -> int:
    """The seed of a random generator as an int of at most 64 bits."""
    return check_whole(value, name, -(2**63), most=2**64 - 1)


def check_choice(value: Any, name: str, *allowed: Any) -> None:
    """Raise ValueError for an argument that is none of the ``allowed`` values."""
    if value not in allowed:
        *others, last = map(repr, allowed)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, not {value!r}")


def check_flags(**given: Any) -> None:
    """Raise TypeError for an argument that is neither True nor False."""
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name}={value!r} must be True or False")


def check_object(value: Any, name: str, method: str, such: str) -> None:
    """Raise TypeError, naming ``such`` a value, unless ``value`` is an object, not a class, with this method."""
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise TypeError(f"{name}={value!r} must be an object such as {such}")


def or_default(value: Kind | None, kind: type[Kind], name: str) -> Kind:
    """``value``, or ``kind()`` for None; TypeError for another kind."""
    return kind() if value is None else check_type(value, kind, name, f"a torchssvm.{kind.__name__}(...), or None")


def check_dataset(dataset: Any, name: str = "dataset") -> None:
    """Raise TypeError if the dataset has no length, which map-style datasets have."""
    if not hasattr(dataset, "__len__"):
        raise TypeError(f"{name} must be a map-style dataset with a length, not a {type(dataset).__name__}")


def check_parameters(params: Any, dual: str = "") -> None:
    """Raise TypeError if ``params`` is not an iterable of parameters, for example if it is a whole module."""
    if not isinstance(params, Iterable) or isinstance(params, Tensor | str):
        raise TypeError(f"params is a {type(params).__name__}: pass head.parameters(){dual}")


def check_tensor(value: Any, name: str, advice: str = "") -> Tensor:
    """``value``, if it is a dense, real tensor that holds numbers; else TypeError, which ends with ``advice``."""
    if (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not (value.is_meta or value.dtype.is_complex or value.is_quantized or value.is_nested)
    ):
        return value
    raise TypeError(f"{name} must be a dense, real tensor, not {describe(value)}{advice}")


def check_costs(value: Tensor | None, name: str, count: int) -> Tensor | None:
    """The cost of each label, ``[count]``, finite and non-negative, as float64; None stays None."""
    if value is None:
        return None
    costs = check_tensor(value, name).to(torch.float64)
    if costs.shape != (count,) or not bool(((costs >= 0.0) & costs.isfinite()).all()):
        raise ValueError(f"{name} must hold {count} finite, non-negative numbers, one a label; got {costs.tolist()}")
    return costs


def read_numbers(tensor: Tensor) -> list[int] | None:
    """The numbers of a tensor with one axis; None in a traced graph or under ``torch.vmap``."""
    if plain():
        return None
    try:
        return on_host(tensor).tolist()
    except RuntimeError:
        if transformed():
            return None
        raise


NO_LABEL = (
    ": negative labels are padding. Pass lengths to the head; drop unlabelled tokens by "
    "torchssvm.select_tokens(y >= 0, x, y), or train -100 by torchssvm.latent or HiddenStates"
)
"""The end of an error about a label such as -100."""

OLD_NUMBERS = "items of a Subset or ConcatDataset keep their old numbers: give in_order(dataset)"
"""The end of an error about an index."""


def check_length_form(lengths: Any, batch: int, form: str = ", one for each example") -> Tensor:
    """``lengths``, if they are int64 ``[batch]``; else ValueError, which knows masks."""
    if isinstance(lengths, Tensor) and (lengths.dtype == torch.bool or (lengths.ndim == 2 and lengths.shape[1] > 1)):
        raise ValueError(
            f"lengths must be int64 [{batch}] and got a mask, {describe(lengths)}: give mask.sum(1), or "
            "x, y, lengths = torchssvm.select_tokens(mask, x, y)"
        )
    return check_int64(lengths, "lengths", (batch,), form)


def check_int64(value: Any, name: str, shape: Any, form: str = "") -> Tensor:
    """``value``, if it is a dense int64 tensor of this shape; else ValueError, in which ``form`` follows the shape."""
    if (
        isinstance(value, Tensor)
        and value.dtype is torch.int64
        and value.shape == shape
        and value.layout is torch.strided
        and not value.is_meta
    ):
        return value
    real = isinstance(value, Tensor) and not value.is_complex()
    whole = real and not value.is_floating_point()
    fits = real and value.dtype is not torch.int64 and value.shape == shape and not value.is_meta
    advice = f": convert {name} by .long()" if fits and bool((value == value.long()).all()) else ""
    if name == "target" and whole and value.dtype is torch.bool and value.ndim == len(shape) + 1:
        advice = ": sets of labels are targets of torchssvm.HiddenStates(structure)"
    raise ValueError(f"{name} must be int64 {list(shape)}{form}; got {describe(value)}{advice}")


def as_parents(parent: Any) -> Tensor:
    """A list of whole numbers as int64 ``[N]`` on the CPU; whether they are a tree is checked elsewhere."""
    check_readable(parent, "parent")
    try:
        tree = torch.as_tensor(parent).detach().cpu()
    except (TypeError, ValueError, RuntimeError, NotImplementedError):  # strings, ragged lists, a meta tensor
        tree = torch.empty(0)
    if tree.ndim != 1 or not len(tree) or tree.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"parent must be a list of whole numbers, one for each node, got {parent!r}")
    return tree.to(torch.int64)


def describe(value: Any) -> str:
    """A tensor's dtype and shape, or the type of any other value, with advice, for the end of an error."""
    if not isinstance(value, Tensor):
        convertible = isinstance(value, list) or hasattr(value, "dtype")
        return f"a {type(value).__name__}" + (": make it a tensor by torch.as_tensor(...)" if convertible else "")
    if value.is_nested or value.is_quantized:
        return f"a {'nested' if value.is_nested else 'quantized'} tensor: make it a plain one"
    shown = f"{value.dtype} {list(value.shape)}"
    if value.is_meta:
        return f"{shown} on the meta device: load the data on a real one"
    if value.layout is not torch.strided:
        return f"{shown}, sparse ({value.layout}): make it dense by .to_dense()"
    if value.dtype.is_complex:
        return f"{shown}: give real and imaginary parts as features of their own"
    return shown


class _Here(threading.local):
    index: Tensor | None = None


_here = _Here()


@contextmanager
def naming(index: Tensor | None) -> Iterator[None]:
    """Name row b of a batch as example ``index[b]`` in errors, unless the index is None."""
    before, _here.index = _here.index, index
    try:
        yield
    finally:
        _here.index = before


def name_rows(index: Tensor) -> None:
    """Name row b as example ``index[b]`` in errors, until the innermost :class:`naming` ends."""
    _here.index = index


def row_name(row: int) -> str:
    """``example 17`` where the index of the batch is known, else ``row 3 of the batch``."""
    numbers = _numbers([row])
    return f"row {row} of the batch" if numbers is None else f"example {numbers[0]}"


def number_of(row: int) -> int:
    """The number of the example at ``row``, where the index is known, else ``row``."""
    numbers = _numbers([row])
    return row if numbers is None else numbers[0]


def row_names(rows: Sequence[int]) -> str:
    """``examples [17, 4]``, or ``rows [3, 5]``: the first eight, and how many more there are."""
    first = list(rows[:8])
    numbers = _numbers(first)
    more = f" and {len(rows) - 8} more" if len(rows) > 8 else ""
    return f"rows {first}{more}" if numbers is None else f"examples {numbers}{more}"


def _numbers(rows: Sequence[int]) -> list[int] | None:
    index = _here.index
    if not isinstance(index, Tensor) or index.ndim != 1 or max(rows, default=0) >= len(index):
        return None
    return [int(index[row]) for row in rows]


@contextmanager
def needs(message: str, *packages: str) -> Iterator[None]:
    """Replace the ImportError of a missing one of ``packages`` by ``message``; other import errors pass through."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in packages:
            raise
        raise ImportError(message) from error
