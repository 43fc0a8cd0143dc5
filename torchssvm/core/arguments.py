"""What arguments must be: numbers, whole numbers, tensors. One check for each kind, with the same words everywhere."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchssvm.core.precision import transformed


def check_whole(value: Any, name: str, least: int = 1, *, most: int | None = None, advice: str = "") -> int:
    """The whole number as a plain int; NumPy's are taken, truth values are not.

    Args:
        value: What was given.
        name: What messages call it.
        least: The smallest that is allowed.
        most: The largest, if there is one.
        advice: What the message ends with.

    Raises:
        ValueError: It is out of range, or a number that is not whole.
        TypeError: It is no number.
    """
    if is_whole(value):
        found = operator.index(value)
        if least <= found and (most is None or found <= most):
            return found
    elif not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} must be a whole number, not a {type(value).__name__}{advice}")
    allowed = f"at least {least}" if most is None else f"{least} to {most}"
    allowed = allowed if least > -(2**63) else "of any sign"
    raise ValueError(f"{name}={value!r} must be a whole number, {allowed}{advice}")


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, Python's or NumPy's; a truth value is none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def as_number(value: Any, name: str) -> float:
    """The number as a plain float, whatever it is; NumPy's are taken, truth values are not.

    Raises:
        TypeError: It is no number.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r} must be a number, not a {type(value).__name__}")
    return float(value)


def check_number(
    value: Any, name: str, least: float = -math.inf, *, above: float = -math.inf, finite: bool = True, advice: str = ""
) -> float:
    """The number as a plain float; NumPy's are taken, truth values are not.

    Args:
        value: What was given.
        name: What messages call it.
        least: The smallest that is allowed.
        above: What it must be more than.
        finite: Whether it must be finite; it is never NaN.
        advice: What the message ends with.

    Raises:
        ValueError: It is out of range.
        TypeError: It is no number.
    """
    found = as_number(value, name)
    if found >= least and (found > above or above == -math.inf) and (not finite or math.isfinite(found)):
        return found
    limits = [f"at least {least:g}"] if least > -math.inf else []
    limits += [f"more than {above:g}" if above else "positive"] if above > -math.inf else []
    limits += ["finite"] if finite else []
    raise ValueError(f"{name}={value} must be {' and '.join(limits) or 'a number'}{advice}")


def check_positive(value: Any, name: str) -> float:
    """The number as a plain float, if it is positive and finite.

    Args:
        value: What was given.
        name: What messages call it.

    Raises:
        ValueError: It is not positive, or not finite.
        TypeError: It is no number.
    """
    if isinstance(value, bool):
        raise ValueError(f"{name}={value} must be positive and finite")
    return check_number(value, name, above=0.0)


def check_limit(value: Any, name: str = "memory_limit") -> int | None:
    """A number of bytes as a plain int, or None where there is no limit of one's own.

    Raises:
        ValueError: It is negative, or not whole.
        TypeError: It is no number.
    """
    return None if value is None else check_whole(value, name, 0, advice=": a number of bytes, or None")


def check_seed(value: Any, name: str = "seed") -> int:
    """The seed of a generator as a plain int.

    Raises:
        ValueError: It is not whole, or takes more than 64 bits.
        TypeError: It is no number.
    """
    if is_whole(value) and not -(2**63) <= value < 2**64:
        raise ValueError(f"{name}={value} must be a whole number of 64 bits")
    return check_whole(value, name, -(2**63))


def check_flags(**given: Any) -> None:
    """Raise TypeError, with its name, for what is neither True nor False: the word ``"no"`` would count as True."""
    for name, value in given.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name}={value!r} must be True or False")


def check_object(value: Any, name: str, method: str, such: str) -> None:
    """Raise TypeError unless the value is an object with this method, and no class.

    Args:
        value: What was given.
        name: What messages call it.
        method: What it must have.
        such: One that would do, for messages.
    """
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise TypeError(f"{name}={value!r} must be an object such as {such}")


def check_dataset(dataset: Any) -> None:
    """Raise TypeError unless the dataset is a map-style one, which has a length."""
    if not hasattr(dataset, "__len__"):
        raise TypeError(f"dataset is a {type(dataset).__name__}, and must be a map-style dataset with a length")


def check_parameters(params: Any, dual: str = "") -> None:
    """Raise TypeError where a whole module, or something else, stands in the place of its parameters."""
    if not isinstance(params, Iterable) or isinstance(params, Tensor | str):
        advice = "pass its parameters: head.parameters()" if hasattr(params, "parameters") else "pass head.parameters()"
        raise TypeError(f"params is a {type(params).__name__}: {advice}{dual}")


def check_tensor(value: Any, name: str, advice: str = "") -> Tensor:
    """The tensor, if it is one that can be computed with: dense, real, and with numbers in it.

    Args:
        value: What was given.
        name: What messages call it.
        advice: What the message ends with where it is no tensor.

    Raises:
        TypeError: It is no tensor, or a sparse, complex or meta tensor.
    """
    if (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and not (value.is_meta or value.dtype.is_complex or value.is_quantized or value.is_nested)
    ):
        return value
    raise TypeError(f"{name} must be a dense, real tensor, and it is {describe(value)}{advice}")


def check_scores(**scores: Tensor) -> None:
    """Raise ValueError, with its name, for a tensor of scores that are whole numbers or truth values."""
    for name, tensor in scores.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be float32 or float64, got {tensor.dtype}: call .float()")


def read_numbers(tensor: Tensor) -> list[int] | None:
    """The numbers of a tensor with one axis; None where ``torch.vmap`` has put it in the place of many."""
    try:
        return tensor.tolist()
    except RuntimeError:
        if transformed():
            return None
        raise


def check_int64(value: Any, name: str, shape: Any, form: str = "") -> Tensor:
    """The tensor, if it is int64 of this shape: targets that are labels, an index, lengths.

    Args:
        value: What was given.
        name: What messages call it.
        shape: The shape that it must have.
        form: What the numbers are, for messages.

    Raises:
        ValueError: It is something else.
    """
    if (
        isinstance(value, Tensor)
        and value.dtype is torch.int64
        and value.shape == shape
        and value.layout is torch.strided
        and not value.is_meta
    ):
        return value
    whole = isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
    advice = ": call .long()" if whole and value.dtype is not torch.int64 else ""
    raise ValueError(f"{name} must be int64 {list(shape)}{form}; got {describe(value)}{advice}")


def as_parents(parent: Any) -> Tensor:
    """The parents of a tree's nodes as int64 ``[N]`` on the CPU; whether they are a tree is another question.

    Raises:
        ValueError: It is no list of whole numbers.
    """
    try:
        tree = torch.as_tensor(parent).detach().cpu()
    except (TypeError, ValueError, RuntimeError, NotImplementedError):  # words, ragged lists, a meta tensor
        tree = torch.empty(0)
    if tree.ndim != 1 or not len(tree) or tree.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"parent must be a list of whole numbers, one for each node, got {parent!r}")
    return tree.to(torch.int64)


def describe(value: Any) -> str:
    """What something is, for the end of a message: the dtype and the shape of a tensor, the kind of anything else."""
    if value is None:
        return "NoneType"
    if not isinstance(value, Tensor):
        convertible = isinstance(value, list) or hasattr(value, "dtype")
        return f"a {type(value).__name__}" + (": make it a tensor by torch.as_tensor(...)" if convertible else "")
    if value.is_nested or value.is_quantized:
        return f"a {'nested' if value.is_nested else 'quantized'} tensor: make it a plain one"
    shown = f"{value.dtype} {list(value.shape)}"
    if value.is_meta:
        return f"{shown} on the meta device, which holds no numbers: load the data on a real one"
    if value.layout is not torch.strided:
        return f"{shown}, sparse ({value.layout}): make it dense by .to_dense()"
    if value.dtype.is_complex:
        return f"{shown}: give real and imaginary parts as features of their own"
    return shown
