"""Trained models in one safe file: weights as safetensors, all else as JSON in its header and in a tensor of bytes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.extras import needs
from torchssvm.core.files import whole_file
from torchssvm.core.structure import Structure
from torchssvm.deployment.decoder import Decoder, parts_of
from torchssvm.deployment.recipes import Recipe, describe, rebuild

_FORMAT = 1
_KEY = "torchssvm"  # of the header's metadata
_WEIGHT, _ARGUMENT, _VOCABULARY = "weight.", "argument.", "vocabulary"  # names of tensors, or their beginnings
_EXTRA = "reading and writing models needs the package safetensors: pip install 'torchssvm[deploy]'"


class SavedModel(NamedTuple):
    """What a file of :func:`save_model` holds.

    Attributes:
        head: The head, with its trained weights.
        structure: How its potentials are decoded.
        labels: The names of the outputs, or None.
        vocabulary: The columns of the features by name, or None.

    Example:
        >>> save_model("classes.safetensors", LinearMulticlass(4, 3), labels=["red", "green", "blue"])
        >>> saved = load_head("classes.safetensors")
        >>> saved.labels[saved.structure.decode(saved.head(points[:1]))]
        'red'
    """

    head: nn.Module
    structure: Structure
    labels: list[str] | None
    vocabulary: dict[str, int] | None


def save_model(
    path: str | os.PathLike[str],
    head: nn.Module,
    structure: Structure | None = None,
    *,
    labels: Sequence[str] | None = None,
    vocabulary: Mapping[str, int] | None = None,
) -> None:
    """Write a trained head and its structure to one safetensors file, whole or not at all.

    The file holds no code and no training data: numbers, names, and the arguments with which the classes of this
    package are made again. A head or structure of your own, and features below the head, are not written: save their
    ``state_dict()``.

    Args:
        path: The file. A missing folder is made, an existing file is replaced at the end.
        head: A head of this package, or a ``StructuredSVM`` without features.
        structure: Where it is not the head's own.
        labels: The names of the states, classes or labels, in the order of their numbers.
        vocabulary: The column of every feature by its name, for heads that take :class:`~torchssvm.SparseFeatures`.

    Raises:
        TypeError: Head or structure is of a class that is not made again, or there are features; labels are no
            strings, or the vocabulary is no mapping of strings to whole numbers.
        ValueError: A column of the vocabulary is negative, or there are more or fewer labels than the structure has.
        ImportError: ``safetensors`` is missing.
        OSError: See :func:`torchssvm.core.files.whole_file`.

    Example:
        >>> save_model("tagger.safetensors", LinearChain(4, 3), labels=["DET", "NOUN", "VERB"])
    """
    with needs(_EXTRA, "safetensors"):
        from safetensors.torch import save
    head, structure, features = parts_of(head, structure, None)
    if features is not None:
        raise TypeError(
            f"features={type(features).__name__} below the head are not saved here: save features.state_dict() beside "
            "the file, and give Decoder(head, features=...) both after loading"
        )
    own = getattr(head, "structure", None)
    tensors = {_WEIGHT + name: value.detach().cpu().contiguous() for name, value in head.state_dict().items()}
    content = {
        "format": _FORMAT,
        "head": _to_json(_recipe(head, "head"), tensors),
        "structure": None if structure is own else _to_json(_recipe(structure, "structure"), tensors),
        "labels": None if labels is None else _check_labels(labels, structure),
    }
    if vocabulary is not None:  # a header has at most 100 MB
        names = json.dumps(_check_vocabulary(vocabulary), ensure_ascii=False).encode()
        tensors[_VOCABULARY] = torch.frombuffer(bytearray(names), dtype=torch.uint8)
    data = save(tensors, {_KEY: json.dumps(content, ensure_ascii=False)})
    with whole_file(path) as file:
        file.write(data)


def load_head(path: str | os.PathLike[str]) -> SavedModel:
    """Head, structure, labels and vocabulary from a file of :func:`save_model`.

    For structures that :class:`Decoder` does not take: ``structure.decode(head(x, lengths))`` predicts. Nothing in the
    file is run; only heads and structures of this package are made.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged or of another kind, of another format, or names an unknown class.
        ImportError: ``safetensors`` is missing.

    Example:
        >>> save_model("tagger.safetensors", LinearChain(4, 3))
        >>> load_head("tagger.safetensors").structure
        Chain(...)
    """
    with needs(_EXTRA, "safetensors"):
        from safetensors import SafetensorError, safe_open
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            metadata = file.metadata() or {}  # the file is no mapping: it has keys()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged, or not a file of save_model: {error}") from error
    if _KEY not in metadata:
        raise ValueError(f"{path} is a safetensors file, but not one of save_model: its header has no {_KEY!r}")
    try:
        content = json.loads(metadata[_KEY])
        version = content["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged: its header cannot be read: {error!r}") from error
    if version != _FORMAT:
        raise ValueError(f"{path} has format {version}, and this version of torchssvm reads format {_FORMAT}")
    try:
        head = rebuild(_from_json(content["head"], tensors))
        other = content["structure"]
        structure = head.structure if other is None else rebuild(_from_json(other, tensors))
        # A plain dict of the state has no version by which LinearHead tells how a matrix lies; the class says so.
        state = {name.removeprefix(_WEIGHT): value for name, value in tensors.items() if name.startswith(_WEIGHT)}
        head.load_state_dict(state, assign=True)
        head.requires_grad_(False)
        labels = None if content["labels"] is None else _check_labels(content["labels"], structure)
        names = tensors.get(_VOCABULARY)
        vocabulary = None if names is None else _check_vocabulary(json.loads(names.numpy().tobytes()))
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from error
    return SavedModel(head.eval(), structure, labels, vocabulary)


def load_model(path: str | os.PathLike[str]) -> Decoder:
    """The :class:`Decoder` of a model that :func:`save_model` wrote, with ``labels`` and ``vocabulary``.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged or of another kind, of another format, or names an unknown class.
        TypeError: The structure is not decoded in plain torch operators; :func:`load_head` reads the file.
        ImportError: ``safetensors`` is missing.

    Example:
        >>> save_model("tagger.safetensors", LinearChain(4, 3), labels=["DET", "NOUN", "VERB"])
        >>> tagger = load_model("tagger.safetensors")
        >>> tagger.labels
        ['DET', 'NOUN', 'VERB']
        >>> tagger(tokens[:2], torch.tensor([5, 3])).shape
        torch.Size([2, 5])
    """
    found = load_head(path)
    decoder = Decoder(found.head, found.structure)
    decoder.labels, decoder.vocabulary = found.labels, found.vocabulary
    return decoder


def _recipe(thing: Any, argument: str) -> Recipe:
    found = describe(thing)
    if found is None:
        raise TypeError(
            f"{argument}={type(thing).__name__} cannot be made again from a file, which makes classes of torchssvm "
            "alone: save its state_dict(), and make the object by your own code before you load it"
        )
    return found


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
    """The recipe again."""
    if isinstance(value, dict) and value.keys() == {"tensor"}:
        return tensors[value["tensor"]]
    if isinstance(value, dict):
        found = {key: _from_json(part, tensors) for key, part in value.items()}
        if "dtype" in found:
            found["dtype"] = {"float32": torch.float32, "float64": torch.float64}[found["dtype"]]
        return found
    return [_from_json(part, tensors) for part in value] if isinstance(value, list) else value


def _check_labels(labels: Any, structure: Structure) -> list[str]:
    if isinstance(labels, str) or not isinstance(labels, Sequence) or not all(isinstance(one, str) for one in labels):
        raise TypeError(f"labels must be a list of strings, one for each state, class or label; got {labels!r}")
    sizes = (getattr(structure, name, None) for name in ("num_states", "num_classes", "num_labels"))
    count = next((size for size in sizes if size is not None), None)
    if count is not None and len(labels) != count:
        raise ValueError(f"labels has {len(labels)} names, and {type(structure).__name__} has {count} of them to name")
    return list(labels)


def _check_vocabulary(vocabulary: Any) -> dict[str, int]:
    if not isinstance(vocabulary, Mapping) or not all(
        isinstance(name, str) and type(column) is int for name, column in vocabulary.items()
    ):
        raise TypeError("vocabulary must be a mapping of names of features (strings) to columns (int)")
    if min(vocabulary.values(), default=0) < 0:
        raise ValueError(f"vocabulary holds the column {min(vocabulary.values())}: columns are 0 to in_features - 1")
    return dict(vocabulary)
