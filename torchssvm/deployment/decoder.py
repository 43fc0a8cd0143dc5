"""A head with the decoding of its structure as one module, in plain torch operators where torch traces it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torchssvm.core.arguments import check_several, places_of
from torchssvm.core.operators import plain
from torchssvm.core.potentials import Potentials, as_potentials
from torchssvm.core.sparse_features import FeatureLists, SparseFeatures
from torchssvm.core.structure import Structure
from torchssvm.deployment.weight_tables import NamedWeights
from torchssvm.structures.arborescence.head import LinearArcs
from torchssvm.structures.chain.head import SparseLinearChain
from torchssvm.structures.common import check_range
from torchssvm.structures.graph_cut.structure import GraphCut
from torchssvm.structures.multilabel.head import SparseLinearMultilabel
from torchssvm.structures.slack_rescaling.structure import SlackRescaling

if (_register := getattr(_pytree, "_register_namedtuple", None)) is not None:  # else exported programs are not saved
    _register(SparseFeatures, serialized_type_name="torchssvm.SparseFeatures")


class Decoder(nn.Module, NamedWeights):
    """Features to outputs: a trained head and the decoding of its structure, for chains, classes, trees and others.

    Run at once, ``Decoder(head)(x, lengths)`` is ``head.structure.decode(head(x, lengths))`` without gradients.
    ``torch.export``, ``torch.compile(fullgraph=True)``, AOTInductor and ``torch.onnx.export`` trace the same decoding
    in plain torch operators, with any batch size, and for chains any length. A structure of yours is decoded by its
    ``argmax`` and ``decode``, which are then traced, also where a subclass of a structure of this package has them.

    Head and features are not copied, and are put into evaluation mode.

    Args:
        head: Gives potentials; or a trained ``StructuredSVM``, from which head, structure and features are taken.
        structure: How outputs are decoded; None is the head's structure.
        features: A module below the head, which gets ``x``; None is none.

    Attributes:
        head: The head.
        features: The module below it, or None.
        structure: The structure.
        labels: The names of the outputs, if :func:`load_model` read them; else None.
        vocabulary: The columns of the features by name, likewise.
        feature_names: The names of the columns of ``x``, in their order, likewise.

    Raises:
        TypeError: There is no structure, or torch cannot trace how it is decoded.
        ValueError: The structure does not fit the head: it is of another kind, or of other sizes.

    Example:
        >>> decoder = Decoder(LinearChain(in_features=4, num_states=3))
        >>> decoder(tokens[:2], torch.tensor([5, 3])).shape
        torch.Size([2, 5])
        >>> graph = torch.export.export(Decoder(LinearMulticlass(4, 3)), (points,))
        >>> graph.module()(points).shape
        torch.Size([30])
    """

    def __init__(self, head: nn.Module, structure: Structure | None = None, features: nn.Module | None = None) -> None:
        super().__init__()
        head, structure, features = parts_of(head, structure, features)
        self.head, self.features, self.structure = head, features, structure
        self.labels: list[str] | None = None
        self.vocabulary: dict[str, int] | None = None
        self.feature_names: list[str] | None = None
        self.rule = structure.plain_decoder()
        self.eval()

    def forward(self, x: Any, lengths: Tensor | None = None) -> Any:
        """The best outputs, as the structure decodes them.

        Args:
            x: What the features, or else the head, take.
            lengths: ``[B]`` int64, 1 to N, where the head takes lengths; None means that nothing is padded. They are
                checked here, and not in an exported or compiled graph.

        Scores are checked here too. An exported or compiled graph turns NaN into labels silently: check ``x`` before.

        Returns:
            The labelings, int64: ``[B, N]`` of chains and trees, -1 beyond the length; ``[B]`` of classes; ``[B, K]``
            of sets of labels. Segments are codes: ``structure.frames`` and ``structure.spans`` read them.

        Raises:
            ValueError: A shape or a length does not fit, or a score is NaN or +inf.
        """
        refuse_table(x)
        with torch.no_grad():
            if self.features is not None:
                x = self.features(x)
            potentials = as_potentials(self.head(x) if lengths is None else self.head(x, lengths)).detach()
            if self.rule is not None and plain():
                return self.rule(potentials.tensors, lengths)
            if lengths is not None and potentials.lengths is None and getattr(self.rule, "ragged", False):
                check_range(lengths, *next(iter(potentials.tensors.values())).shape[:2])
                potentials = Potentials(potentials.tensors, lengths)  # of a head that leaves them out
            return self.structure.decode(potentials)


def refuse_table(x: Any) -> None:
    """Raise TypeError for a table, whose columns may have another order than in training."""
    if hasattr(x, "to_numpy"):
        raise TypeError(
            f"x is a {type(x).__name__}: give torch.tensor(x[model.feature_names].to_numpy()), which takes columns by "
            "name"
        )


def parts_of(
    head: nn.Module, structure: Structure | None, features: nn.Module | None
) -> tuple[nn.Module, Structure, nn.Module | None]:
    """Head, structure and features, taken from a ``StructuredSVM`` where ``head`` is one.

    TypeError if the head is no module or has no structure; ValueError if the structure does not fit the head.
    """
    model, inner = head, getattr(head, "head", None)
    if isinstance(inner, nn.Module):  # a StructuredSVM: no import of Lightning
        head, structure = inner, structure or getattr(model, "structure", None)
        features = features if features is not None else getattr(model, "features", None)
    structure = structure or getattr(head, "structure", None)
    if not isinstance(head, nn.Module) or not isinstance(structure, Structure):
        raise TypeError(f"head={type(head).__name__} must be a module with a structure, such as LinearChain")
    check_fit(head, structure)
    return head, structure, features


def batch_of_names(sentences: Sequence[Sequence[Any]], vocabulary: Mapping[str, int]) -> tuple[SparseFeatures, Tensor]:
    """A batch for :class:`~torchssvm.SparseLinearChain` from the features of tokens by name.

    Args:
        sentences: For every sentence, for every token, its features: a list of names, each of the value 1, or
            ``{name: text, number, True or False}``, where a text becomes the feature ``name=text``. Features without a
            column are left out.
        vocabulary: The column of every feature by its name.

    Returns:
        Columns ``[B, N, P]`` int64, -1 in the padding, with values float32 ``[B, N, P]`` if one of them is not 1;
        and the lengths ``[B]`` int64.

    Raises:
        ValueError: There is no sentence, a sentence has no token, or a number is not finite.
        TypeError: A token is something else, or ``sentences`` and ``vocabulary`` are.

    Example:
        >>> sentences = [[{"word": "the", "first": True}, {"word": "cat"}]]
        >>> x, lengths = batch_of_names(sentences, {"first": 0, "word=the": 1, "word=cat": 2})
        >>> x.columns.tolist(), lengths.tolist()
        ([[[1, 0], [2, -1]]], [2])
    """
    if not isinstance(vocabulary, Mapping):
        raise TypeError(f"vocabulary={vocabulary!r} must map names of features to columns, as load_model gives it")
    check_several(sentences, "sentences", "lists of tokens")
    lengths = [len(sentence) for sentence in sentences]
    if not lengths or min(lengths) < 1:
        raise ValueError(f"sentences have the lengths {lengths}: give at least one sentence, each with a token")
    lists = FeatureLists(sentences, vocabulary)
    return lists.batch(np.arange(len(lengths))), lists.lengths


_SIZES = ("num_states", "num_classes", "num_labels", "pairwise", "shared", "parent", "shapes")


def check_fit(head: nn.Module, structure: Structure) -> None:
    """Raise ValueError if ``structure`` reads other potentials than the head gives.

    Structures and heads of other packages are not checked.
    """
    of_head = getattr(head, "structure", None)
    if structure is of_head or not isinstance(of_head, Structure):
        return
    made, given = (one.structure if isinstance(one, SlackRescaling) else one for one in (of_head, structure))
    kinds = _kind(made), _kind(given)
    if None not in kinds and (kinds[0] is not kinds[1] or _sizes(made) != _sizes(given)):
        raise ValueError(f"structure={structure} does not fit head={type(head).__name__} of {of_head}: leave it out")


def _kind(structure: Structure) -> type | None:
    """The class of this package that a structure is of, or is derived from."""
    return next((cls for cls in type(structure).__mro__ if cls.__module__.startswith("torchssvm.structures.")), None)


def _sizes(structure: Structure) -> list[Any]:
    sizes = (getattr(structure, name, None) for name in _SIZES)
    return [size.tolist() if isinstance(size, Tensor) else size for size in sizes]


def check_labels(labels: Any, structure: Structure) -> list[str]:
    """The names of the outputs of a structure of this package, a different one for each."""
    names = check_texts(labels, "labels")
    structure = structure.structure if isinstance(structure, SlackRescaling) else structure
    kind = type(structure).__name__
    sizes = (getattr(structure, name, None) for name in ("num_states", "num_classes", "num_labels"))
    count = 2 if isinstance(structure, GraphCut) else next((size for size in sizes if size is not None), None)
    if len(names) != count:
        raise ValueError(f"labels has {len(names)} names, and {kind} has {count or 'no'} states, classes or labels")
    return list(places_of(names))


def check_texts(value: Any, name: str) -> list[str]:
    """``value`` as a list; TypeError if it is no list of strings."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(text, str) for text in value):
        raise TypeError(f"{name}={value!r} must be a list of strings")
    return list(value)


def check_vocabulary(vocabulary: Any, head: nn.Module) -> dict[str, int]:
    """The columns of the features by name, each a column of the head."""
    if not isinstance(vocabulary, Mapping) or not all(
        isinstance(name, str) and type(column) is int for name, column in vocabulary.items()
    ):
        raise TypeError("vocabulary must be a mapping of names of features (strings) to columns (int)")
    if not isinstance(head, SparseLinearChain | SparseLinearMultilabel | LinearArcs):
        raise TypeError(f"vocabulary is for heads that take lists, and head is a {type(head).__name__}: leave it out")
    size = len(head.weight) if isinstance(head, LinearArcs) else head.in_features
    for name, column in vocabulary.items():
        if not 0 <= column < size:
            raise ValueError(f"vocabulary holds the column {column} for {name!r}: columns are 0 to {size - 1}")
    return dict(vocabulary)
