"""A head with the decoding of its structure as one module of plain torch operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torchssvm.core.operators import plain_operators
from torchssvm.core.potentials import Potentials, as_potentials, check_scores_finite
from torchssvm.core.sparse_features import FeatureLists, SparseFeatures
from torchssvm.core.structure import Structure
from torchssvm.deployment.checks import check_fit
from torchssvm.structures.common import check_range

if (_register := getattr(_pytree, "_register_namedtuple", None)) is not None:  # else exported programs are not saved
    _register(SparseFeatures, serialized_type_name="torchssvm.SparseFeatures")


class Decoder(nn.Module):
    """Features to outputs: a trained head and the decoding of its structure, in plain torch operators.

    ``Decoder(head)(x, lengths)`` gives what ``head.structure.decode(head(x, lengths))`` gives, without gradients, for
    chains, classes, trees, and sets of labels by messages. ``torch.export``, ``torch.compile(fullgraph=True)``,
    AOTInductor and ``torch.onnx.export`` take it, with any batch size, and for chains any length. Run at once, without
    a compiler, it computes the same operators. A structure of your own is decoded by its own ``argmax`` and
    ``decode``, which are then traced as they stand, also where a subclass of a structure of this package has them.

    Head and features are held, not copied, and put into evaluation mode.

    Args:
        head: Gives potentials; or a trained ``StructuredSVM``, from which head, structure and features are taken.
        structure: How outputs are decoded; None is the head's own.
        features: A module below the head, which gets ``x``; None is none.

    Attributes:
        head: The head.
        features: The module below it, or None.
        structure: The structure.
        labels: The names of the outputs, if :func:`load_model` has found them in the file; else None.
        vocabulary: The columns of the features by name, likewise.

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
        self.rule = structure.plain_decoder()
        self.eval()

    def forward(self, x: Any, lengths: Tensor | None = None) -> Any:
        """The best outputs, as the structure decodes them.

        Args:
            x: What the features, or else the head, take.
            lengths: ``[B]`` int64, 1 to N, where the head takes lengths; None means that nothing is padded. They are
                checked here, and not in an exported or compiled graph.

        Scores are checked here too. An exported or compiled graph makes ordinary labels of NaN, without a sign of it:
        look at ``x`` before, where it may hold such numbers.

        Returns:
            The labelings, int64: ``[B, N]`` of chains and trees, -1 beyond the length; ``[B]`` of classes; ``[B, K]``
            of sets of labels.

        Raises:
            ValueError: A shape or a length does not fit, or a score is NaN or +inf.
        """
        with torch.no_grad():
            if torch.compiler.is_compiling():
                potentials = self._potentials(x, lengths)
            else:
                with plain_operators():
                    potentials = self._potentials(x, lengths)
                if lengths is not None and getattr(self.rule, "ragged", False):
                    first = next(iter(potentials.tensors.values()))
                    check_range(lengths, first.shape[0], first.shape[1])
                if self.rule is not None:
                    check_scores_finite(potentials, self.structure.places)
            if self.rule is None:
                return self.structure.decode(potentials)
            return self.rule(potentials.tensors, lengths)

    def _potentials(self, x: Any, lengths: Tensor | None) -> Potentials:
        if self.features is not None:
            x = self.features(x)
        return as_potentials(self.head(x) if lengths is None else self.head(x, lengths)).detach()


def parts_of(
    head: nn.Module, structure: Structure | None, features: nn.Module | None
) -> tuple[nn.Module, Structure, nn.Module | None]:
    """Head, structure and features, taken from a ``StructuredSVM`` where ``head`` is one.

    TypeError if the head is no module, or there is no structure; ValueError if it does not fit the head.
    """
    if not isinstance(head, nn.Module):
        raise TypeError(f"head must be a module such as LinearChain, not a {type(head).__name__}")
    model, inner = head, getattr(head, "head", None)
    if isinstance(inner, nn.Module):  # a StructuredSVM: no import of Lightning
        head, structure = inner, structure or getattr(model, "structure", None)
        features = features if features is not None else getattr(model, "features", None)
    structure = structure or getattr(head, "structure", None)
    if not isinstance(structure, Structure):
        raise TypeError(f"{type(head).__name__} has no structure: give structure=, which says how outputs are decoded")
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
    for given in [sentences] if not hasattr(sentences, "__len__") else sentences:
        if not hasattr(given, "__len__"):
            raise TypeError(f"sentences must be lists of tokens, one list for every sentence; got {given!r}")
    lengths = [len(sentence) for sentence in sentences]
    if not lengths or min(lengths) < 1:
        raise ValueError(f"sentences must hold at least one sentence, each with a token; their lengths are {lengths}")
    lists = FeatureLists(sentences, vocabulary)
    return lists.batch(torch.arange(len(lengths))), lists.lengths
