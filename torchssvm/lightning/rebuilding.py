"""Recipes in checkpoints: names and plain values, from which heads and structures of this package are rebuilt."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm import structures
from torchssvm import structures as heads
from torchssvm.core.structure import Structure

Recipe = dict[str, Any]
"""``{"class": name, "arguments": {...}}``; arguments are numbers, strings, tensors, lists of these, or recipes."""

_Arguments = Callable[[Any], dict[str, Any]]


def _has(head: nn.Module, parameter: str) -> bool:
    return getattr(head, parameter) is not None


# For every class that may be rebuilt: its arguments that are not attributes of the same name.
_CLASSES: dict[type, _Arguments] = {
    heads.LinearArcs: lambda h: {"in_features": len(h.weight)},
    heads.LinearChain: lambda h: {
        "num_states": h.structure.num_states,
        "bias": _has(h, "bias"),
        "boundary": _has(h, "start_transitions"),
    },
    heads.LinearEdges: lambda h: {"in_features": len(h.weight)},
    heads.LinearGraph: lambda h: {"node_features": len(h.unary), "edge_features": len(h.pairwise)},
    heads.LinearMulticlass: lambda h: {"num_classes": h.structure.num_classes, "bias": _has(h, "bias")},
    heads.LinearMultilabel: lambda h: {
        "num_labels": h.structure.num_labels,
        "bias": _has(h, "bias"),
        "pairwise": _has(h, "pairwise"),
    },
    heads.LinearPose: lambda h: {},
    heads.LinearTree: lambda h: {
        "num_states": h.structure.num_states,
        "parent": h.structure.parent,
        "shared": h.structure.shared,
        "bias": _has(h, "bias"),
    },
    structures.Multiclass: lambda s: {"cost": None if torch.equal(s.cost, 1.0 - torch.eye(s.num_classes)) else s.cost},
    structures.Pose: lambda s: {"grid": (s.height, s.width)},
}
_CLASSES[heads.SparseLinearChain] = _CLASSES[heads.LinearChain]
_CLASSES[heads.SparseLinearMultilabel] = _CLASSES[heads.LinearMultilabel]
for _simple in (
    *(structures.Arborescence, structures.Chain, structures.GraphCut, structures.Matching, structures.Multilabel),
    *(structures.SlackRescaling, structures.Tree),
    *(structures.NonProjective, structures.Projective, structures.MinCut, structures.RoofDual),
    *(structures.BranchAndBound, structures.MessagePassing),
    *(structures.EveryClass, structures.EveryLossLevel, structures.BruteForceSearch, structures.LossScaleSearch),
):
    _CLASSES[_simple] = lambda thing: {}

_NAMES = {cls.__name__: cls for cls in _CLASSES}


def describe(thing: Any) -> Recipe | None:
    """The recipe of a head, a structure or an oracle of this package; None for anything else, subclasses included.

    Args:
        thing: The object to describe; weights are not part of the recipe.
    """
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
    """The object that a recipe describes; a head has zero weights.

    Nothing is imported, and only classes in this module's list are made.

    Args:
        recipe: The result of :func:`describe`.

    Raises:
        ValueError: The recipe is damaged, or names a class that is not in the list.
        TypeError: The class does not accept these arguments.
    """
    if not isinstance(recipe, dict) or not isinstance(recipe.get("arguments"), dict):
        raise ValueError(f"{recipe!r} is not a recipe of a head or a structure")
    name = recipe.get("class")
    if not isinstance(name, str) or name not in _NAMES:
        raise ValueError(f"the checkpoint names the class {name!r}, and it may be one of {list(_NAMES)}")
    made = _NAMES[name](**{k: rebuild(v) if isinstance(v, dict) else v for k, v in recipe["arguments"].items()})
    dtype = recipe.get("dtype")
    return made.to(dtype) if isinstance(made, nn.Module) and isinstance(dtype, torch.dtype) else made


class _Unknown(Exception):
    """The class is not in the list."""


def _describe(thing: Any) -> Recipe:
    if (special := _CLASSES.get(type(thing))) is None:
        raise _Unknown
    arguments = special(thing)
    for name in inspect.signature(type(thing)).parameters:
        if name not in arguments:
            arguments[name] = getattr(thing, name)
    recipe: Recipe = {"class": type(thing).__name__, "arguments": {k: _plain(v) for k, v in arguments.items()}}
    if isinstance(thing, nn.Module):
        recipe["dtype"] = next(thing.parameters()).dtype
    return recipe


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple):
        return type(value)(_plain(part) for part in value)
    if hasattr(value, "item"):  # a NumPy number, which weights_only=True would refuse
        return _plain(value.item())
    return _describe(value)


def _layout(head: nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: (tuple(p.shape), p.dtype) for name, p in head.named_parameters()}
