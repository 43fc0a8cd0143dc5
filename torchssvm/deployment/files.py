"""Trained models in one safe file: weights as safetensors, all else as JSON in its header and in a tensor of bytes."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from torchssvm import structures
from torchssvm.core.arguments import check_number, needs
from torchssvm.core.decoding import OracleResult
from torchssvm.core.files import whole_file
from torchssvm.core.marginals import Marginals, marginals_at
from torchssvm.core.potentials import Potentials, as_potentials
from torchssvm.core.sparse_features import SparseFeatures
from torchssvm.core.states import seal
from torchssvm.core.structure import Structure
from torchssvm.deployment.decoder import (
    Decoder,
    check_labels,
    check_texts,
    check_vocabulary,
    parts_of,
    refuse_table,
)
from torchssvm.deployment.weight_tables import NamedWeights


class UnitRows(nn.Module):
    """Divides each row by its Euclidean length: ``[B, F]``, or :class:`~torchssvm.SparseFeatures` ``[B, P]``.

    Rows of zeros stay. Lists name a column once, as in a scipy sparse matrix.

    Args:
        shift: ``[F]``, subtracted from the columns first; None is 0.
        scale: ``[F]``, multiplies them after that; None is 1.

    Example:
        >>> UnitRows()(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    shift: Tensor | None
    scale: Tensor | None

    def __init__(self, shift: Tensor | None = None, scale: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("shift", shift, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, x: Any) -> Any:
        """The rows, scaled."""
        if isinstance(x, SparseFeatures):
            real = x.columns >= 0
            columns, values = x.columns, real.float() if x.values is None else x.values * real
            if self.shift is not None:  # columns that are not listed are 0, less the shift
                shift = self.shift.to(values.dtype)
                values = values - shift[columns.clamp(min=0)] * real
                others = shift.nonzero().squeeze(1).expand(len(columns), -1)
                seen = torch.zeros(len(columns), len(shift) + 1, dtype=torch.bool, device=columns.device)
                listed = seen.scatter(1, columns.where(real, len(shift)), True).gather(1, others)
                columns = torch.cat([columns, others.where(~listed, -1)], 1)
                values = torch.cat([values, -shift[others] * ~listed], 1)
            if self.scale is not None:
                values = values * self.scale.to(values.dtype)[columns.clamp(min=0)]
            return SparseFeatures(columns, _scaled(values))
        x = x if self.shift is None else x - self.shift.to(x.dtype)
        return _scaled(x if self.scale is None else x * self.scale.to(x.dtype))


Recipe = dict[str, Any]
"""``{"class": name, "arguments": {...}}``; arguments are numbers, strings, tensors, lists of these, or recipes."""

_DATA = (tuple, Potentials, OracleResult, Dataset)  # what goes into a structure, and what comes out

_exported = [getattr(structures, name) for name in structures.__all__ if name != "TorchStruct"]  # it is made of a class
_CLASSES: dict[str, type] = {
    thing.__name__: thing
    for thing in (*_exported, UnitRows)
    if isinstance(thing, type) and not issubclass(thing, _DATA) and not inspect.isabstract(thing)
}
"""The classes that may be made again: the exports of ``torchssvm.structures`` without the classes of data."""


def describe(thing: Any) -> Recipe | None:
    """The recipe of a head, a structure or an oracle of this package; None of anything else, such as a subclass."""
    try:
        recipe = _describe(thing)
        same = rebuild(recipe)
    except (AttributeError, RuntimeError, TypeError, ValueError):  # attributes were changed by hand
        return None
    if isinstance(thing, nn.Module) and _layout(thing) != _layout(same):
        return None
    ours, theirs = (getattr(one, "structure", one) for one in (thing, same))
    return recipe if not isinstance(ours, Structure) or ours.same_as(theirs) else None


def rebuild(recipe: Any) -> Any:
    """The object that a recipe of :func:`describe` describes; a head has zeros for its weights.

    Nothing is imported, and only structures, heads and oracles that ``torchssvm.structures`` exports are made.
    """
    name, arguments = (recipe.get("class"), recipe.get("arguments")) if isinstance(recipe, dict) else (None, None)
    if not isinstance(name, str) or name not in _CLASSES or not isinstance(arguments, dict):
        raise ValueError(f"{recipe!r} is no recipe of a head or a structure: its class may be {list(_CLASSES)}")
    made = _CLASSES[name](**{k: rebuild(v) if isinstance(v, dict) else v for k, v in arguments.items()})
    dtype = recipe.get("dtype")
    return made.to(dtype) if isinstance(made, nn.Module) and isinstance(dtype, torch.dtype) else made


def _describe(thing: Any) -> Recipe:
    if _CLASSES.get(type(thing).__name__) is not type(thing):
        raise TypeError(f"{type(thing).__name__} is no class of this package")
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
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if hasattr(value, "item"):  # a number of numpy, which only unsafe loading would read
        return _plain(value.item())
    return _describe(value)


def _layout(head: nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: (tuple(p.shape), p.dtype) for name, p in head.named_parameters()}


def _scaled(rows: Tensor) -> Tensor:
    if rows.is_floating_point() and rows.shape[-1]:  # squares of tiny or huge numbers vanish or overflow
        largest, least = rows.abs().amax(-1, keepdim=True), torch.finfo(rows.dtype).tiny ** 0.4
        rows = rows / largest.where((largest > 0.0) & ((largest < least) | (largest > 1.0 / least)), 1.0)
    length = rows.square().sum(-1, keepdim=True).sqrt()
    return rows / length.where(length > 0.0, 1.0)


_FORMAT = 2  # format 1 had no seal
_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_KEY = "torchssvm"  # of the header's metadata
_WEIGHT, _ARGUMENT, _VOCABULARY = "weight.", "argument.", "vocabulary"  # names of tensors, or their beginnings
_EXTRA = "reading and writing models needs the package safetensors: pip install 'torchssvm[deploy]'"


class _Saved(NamedTuple):
    head: nn.Module
    structure: Structure
    labels: list[str] | None
    vocabulary: dict[str, int] | None
    features: nn.Module | None = None
    temperature: float | None = None
    feature_names: list[str] | None = None


class SavedModel(_Saved, NamedWeights):
    """What a file of :func:`save_model` holds.

    Attributes:
        head: The head, with its trained weights.
        structure: How its potentials are decoded.
        labels: The names of the outputs, or None.
        vocabulary: The columns of the features by name, or None.
        features: What scales features before the head gets them, or None.
        temperature: By which scores are divided for probabilities, or None.
        feature_names: The names of the columns of ``x``, in their order, or None.

    Example:
        >>> save_model("classes.safetensors", LinearMulticlass(4, 3), labels=["red", "green", "blue"])
        >>> saved = load_head("classes.safetensors")
        >>> saved.labels[saved.decode(points[:1])]
        'red'
    """

    def decode(self, *inputs: Any) -> Any:
        """The best outputs of features, and of lengths where the head takes them."""
        return self.structure.decode(self._potentials(*inputs))

    def marginals(self, *inputs: Any) -> Marginals:
        """Probabilities of the parts of outputs, ``parts["emission"]`` of a chain ``[B, N, K]``, from the same inputs.

        Raises:
            NotImplementedError: The structure has no marginals.
            ValueError: The file has no temperature.
        """
        if self.temperature is None and type(self.structure).marginals is not Structure.marginals:
            raise ValueError(
                "the file has no temperature: calibrate the estimator and save it again, or save_model(temperature=...)"
            )
        return marginals_at(self.structure, self._potentials(*inputs), self.temperature or 1.0)

    @torch.no_grad()
    def _potentials(self, x: Any, *lengths: Any) -> Potentials:
        refuse_table(x)
        return as_potentials(self.head(x if self.features is None else self.features(x), *lengths))


def save_model(
    path: str | os.PathLike[str],
    head: nn.Module,
    structure: Structure | None = None,
    *,
    labels: Sequence[str] | None = None,
    vocabulary: Mapping[str, int] | None = None,
    features: nn.Module | None = None,
    temperature: float | None = None,
    feature_names: Sequence[str] | None = None,
) -> None:
    """Write a trained head and its structure to one safetensors file, whole or not at all.

    The file holds no code and no training data: numbers, names, and the arguments with which the classes of this
    package are made again. A head or structure of yours, and features below the head, are not written: save their
    ``state_dict()``.

    Args:
        path: The file. A missing folder is made, an existing file is replaced at the end.
        head: A head of this package, or a ``StructuredSVM`` without features.
        structure: The structure; None is the head's.
        labels: The names of the states, classes or labels, in the order of their numbers.
        vocabulary: The column of every feature by its name, for heads that take :class:`~torchssvm.SparseFeatures`.
        features: :class:`UnitRows`, which scales features before the head gets them.
        temperature: By which scores are divided for probabilities; positive.
        feature_names: The names of the columns of ``x``, in their order.

    Raises:
        TypeError: Head or structure is of a class that is not made again, or there are features; labels are no
            strings; or the vocabulary is no mapping of strings to whole numbers, or the head takes no lists.
        ValueError: The structure does not fit the head; there are more or fewer labels than the structure has, or two
            of the same name; a column of the vocabulary is not one of the head's; UTF-8 cannot encode a name; or the
            weights hold no numbers (``meta``), or others than real ones.
        ImportError: ``safetensors`` is missing.
        OSError: See :func:`torchssvm.core.files.whole_file`.

    Example:
        >>> save_model("tagger.safetensors", LinearChain(4, 3), labels=["DET", "NOUN", "VERB"])
    """
    with needs(_EXTRA, "safetensors"):
        from safetensors.torch import save
    head, structure, features = parts_of(head, structure, features)
    tensors = {_WEIGHT + name: value.detach().cpu().contiguous() for name, value in head.state_dict().items()}
    apart = structure is not getattr(head, "structure", None)
    content = {
        "format": _FORMAT,
        "head": _to_json(_recipe(head, "head"), tensors),
        "structure": _to_json(_recipe(structure, "structure"), tensors) if apart else None,
        **({} if features is None else {"features": _to_json(_recipe(features, "features"), tensors)}),
        "labels": None if labels is None else check_labels(labels, structure),
        **({} if temperature is None else {"temperature": check_number(temperature, "temperature", above=0.0)}),
        **({} if feature_names is None else {"feature_names": check_texts(feature_names, "feature_names")}),
    }
    if vocabulary is not None:  # a header has at most 100 MB
        names = json.dumps(check_vocabulary(vocabulary, head), ensure_ascii=False).encode()
        tensors[_VOCABULARY] = torch.frombuffer(bytearray(names), dtype=torch.uint8)
    content["seal"] = seal([content, tensors])
    data = save(tensors, {_KEY: json.dumps(content, ensure_ascii=False)})
    with whole_file(path) as file:
        file.write(data)


def load_head(path: str | os.PathLike[str]) -> SavedModel:
    """Head, structure, labels and vocabulary from a file of :func:`save_model`.

    For structures that :class:`Decoder` does not take: ``load_head(path).decode(x, lengths)`` predicts. No code of the
    file is run; only heads and structures of this package are made.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, or of another kind or version.

    Example:
        >>> save_model("tagger.safetensors", LinearChain(4, 3))
        >>> load_head("tagger.safetensors").structure
        Chain(...)
    """
    with needs(_EXTRA, "safetensors"):
        from safetensors import safe_open
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            # Copies: tensors of the file are mapped, and change, or end the process, when it is written to in place.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  # no mapping
            content = json.loads((file.metadata() or {})[_KEY])
        version, checksum = content["format"], content.pop("seal", None)
        if version not in (1, _FORMAT) or (version > 1 and checksum != seal([content, tensors])):
            raise ValueError(f"its format is {version} and must be 1 or {_FORMAT}, or the file has changed")
        return _made(content, tensors)
    except OSError:
        raise
    except Exception as error:  # a damaged header can raise anything, and a class of another version
        raise ValueError(f"{path} is damaged, or no file of save_model of this version: {error}") from error


def _made(content: dict[str, Any], tensors: dict[str, Tensor]) -> SavedModel:
    made: dict[str, Any] = {
        name: None if content.get(name) is None else rebuild(_from_json(content[name], tensors))
        for name in ("head", "structure", "features")
    }
    head = made["head"]
    # A plain dict has no version by which LinearHead tells how a matrix is stored; the class says so.
    state = {name.removeprefix(_WEIGHT): value for name, value in tensors.items() if name.startswith(_WEIGHT)}
    head.load_state_dict(state, assign=True)
    head.requires_grad_(False)
    names = tensors.get(_VOCABULARY)
    return SavedModel(
        head.eval(),
        made["structure"] or head.structure,
        content["labels"],
        None if names is None else json.loads(names.numpy().tobytes()),
        made["features"],
        content.get("temperature"),
        content.get("feature_names"),
    )


def load_model(path: str | os.PathLike[str]) -> Decoder:
    """The :class:`Decoder` of a model that :func:`save_model` wrote, with ``labels``, ``vocabulary`` and
    ``feature_names``.

    Raises:
        TypeError: The structure is not decoded in plain torch operators; :func:`load_head` reads the file. Other errors
            are as in :func:`load_head`.

    Example:
        >>> save_model("tagger.safetensors", LinearChain(4, 3), labels=["DET", "NOUN", "VERB"])
        >>> tagger = load_model("tagger.safetensors")
        >>> tagger.labels
        ['DET', 'NOUN', 'VERB']
        >>> tagger(tokens[:2], torch.tensor([5, 3])).shape
        torch.Size([2, 5])
    """
    saved = load_head(path)
    decoder = Decoder(saved.head, saved.structure, saved.features)
    decoder.labels, decoder.vocabulary, decoder.feature_names = saved.labels, saved.vocabulary, saved.feature_names
    return decoder


def _recipe(thing: Any, argument: str) -> Recipe:
    recipe = describe(thing)
    if recipe is None:
        raise TypeError(f"{argument}={type(thing).__name__} cannot be made again from a file: save its state_dict()")
    return recipe


def _to_json(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A recipe as JSON; its tensors go to ``tensors``, and their names take their place."""
    if isinstance(value, Tensor):
        name = f"{_ARGUMENT}{len(tensors)}"
        tensors[name] = value.contiguous().clone()  # one storage each, as safetensors asks
        return {"tensor": name}
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, dict):
        return {key: _to_json(part, tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(part, tensors) for part in value]
    return value


def _from_json(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict) and value.keys() == {"tensor"}:
        return tensors[value["tensor"]]
    if isinstance(value, dict):
        recipe = {key: _from_json(part, tensors) for key, part in value.items()}
        return {**recipe, "dtype": _DTYPES[recipe["dtype"]]} if "dtype" in recipe else recipe
    return [_from_json(part, tensors) for part in value] if isinstance(value, list) else value
