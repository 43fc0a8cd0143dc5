"""Recipes of heads in checkpoints: names and plain values, from which only classes of this package are rebuilt."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from torchssvm import structures
from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import OracleResult, Structure
from torchssvm.deployment.unit_rows import UnitRows

Recipe = dict[str, Any]
"""``{"class": name, "arguments": {...}}``; arguments are numbers, strings, tensors, lists of these, or recipes."""

_DATA = (tuple, Potentials, OracleResult, Dataset)  # what goes into a structure, and what comes out

_exported = [getattr(structures, name) for name in structures.__all__ if name != "TorchStruct"]  # it is made of a class
_CLASSES: dict[str, type] = {
    thing.__name__: thing
    for thing in (*_exported, UnitRows)
    if isinstance(thing, type) and not issubclass(thing, _DATA) and not inspect.isabstract(thing)
}
"""What may be made again: the classes that ``torchssvm.structures`` exports, but those of data."""


def describe(thing: Any) -> Recipe | None:
    """The recipe of a head, a structure or an oracle of this package; None of anything else, such as a subclass."""
    try:
        recipe = _describe(thing)
        same = rebuild(recipe)
    except (_Unknown, AttributeError, RuntimeError, TypeError, ValueError):  # attributes were changed by hand
        return None
    if isinstance(thing, nn.Module) and _layout(thing) != _layout(same):
        return None
    ours, theirs = (getattr(one, "structure", one) for one in (thing, same))
    return recipe if not isinstance(ours, Structure) or ours.same_as(theirs) else None


def rebuild(recipe: Any) -> Any:
    """The object that a recipe of :func:`describe` describes; a head has zeros for its weights.

    Nothing is imported, and only structures, heads and oracles that ``torchssvm.structures`` exports are made.

    Raises:
        ValueError: The recipe is damaged, or names another class.
        TypeError: The class does not take these arguments.
    """
    if not isinstance(recipe, dict) or not isinstance(recipe.get("arguments"), dict):
        raise ValueError(f"{recipe!r} is no recipe of a head or a structure")
    name = recipe.get("class")
    if not isinstance(name, str) or name not in _CLASSES:
        raise ValueError(f"the checkpoint names the class {name!r}, and it may be one of {list(_CLASSES)}")
    made = _CLASSES[name](**{k: rebuild(v) if isinstance(v, dict) else v for k, v in recipe["arguments"].items()})
    dtype = recipe.get("dtype")
    return made.to(dtype) if isinstance(made, nn.Module) and isinstance(dtype, torch.dtype) else made


class _Unknown(Exception):
    """The object is not of a class that is made again."""


def _describe(thing: Any) -> Recipe:
    if _CLASSES.get(type(thing).__name__) is not type(thing):
        raise _Unknown
    arguments = thing.constructor_arguments() if hasattr(thing, "constructor_arguments") else {}
    for name in inspect.signature(type(thing)).parameters:
        if name not in arguments:
            arguments[name] = getattr(thing, name)
    recipe: Recipe = {"class": type(thing).__name__, "arguments": {k: _plain(v) for k, v in arguments.items()}}
    if (weight := next(thing.parameters(), None) if isinstance(thing, nn.Module) else None) is not None:
        recipe["dtype"] = weight.dtype
    return recipe


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple):
        return type(value)(_plain(part) for part in value)
    if hasattr(value, "item"):  # a number of numpy, which only unsafe loading would read
        return _plain(value.item())
    return _describe(value)


def _layout(head: nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: (tuple(p.shape), p.dtype) for name, p in head.named_parameters()}
