"""The weights of a trained model by name: of its features, and of labels that stand beside each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchssvm.core.arguments import check_whole
from torchssvm.structures.chain.head import LinearChain
from torchssvm.structures.graph_cut.head import LinearGraph
from torchssvm.structures.multiclass.head import LinearMulticlass
from torchssvm.structures.multilabel.head import LinearMultilabel
from torchssvm.structures.ranking.head import LinearRanking
from torchssvm.structures.segments.head import LinearSegments
from torchssvm.structures.tree.forest import LinearForest

_BIAS = "(bias)"  # a feature may have the name "bias", as in CRFsuite's tutorial


class Weight(NamedTuple):
    """What a feature, or the label before it, adds to the score of a label."""

    feature: str
    label: str
    weight: float


class WeightTable(list[Weight]):
    """Weights, the largest in size first; it prints a row a line, and ``pandas.DataFrame`` takes it as it is."""

    def __repr__(self) -> str:
        a, b = max((len(row.feature) for row in self), default=0), max((len(row.label) for row in self), default=0)
        lines = (f"{row.feature:{a}} -> {row.label:{b}} {row.weight:10.4g}" for row in self)
        return "\n".join(lines) or "(no weights)"


class NamedWeights:
    """A trained model with tables of its weights."""

    def top_features(self, n: int | None = 20, label: Any = None) -> WeightTable:
        """The ``n`` weights of features that are the largest in size: rows (feature, label, weight).

        ``n=None`` gives all weights but 0, and ``label=None`` all labels. The feature ``(bias)`` is always 1. Weights
        are for the columns of X, or for rows that ``MultilabelSVC`` divides by their length. Segments also have
        ``duration 3``, and with boundaries ``first frame: x0``. Where there are two classes, or graphs with cycles, the
        rows are of the second label: its weights minus the first label's.

        Raises:
            ValueError: There is no such label, or ``n`` is less than 1.
            TypeError: The head has no weights by label.
        """
        model = self._model()
        names, labels, weight, _ = _read(model)
        if isinstance(model.head, LinearGraph | LinearMulticlass) and len(labels) == 2:
            weight, label = weight - weight.flip(1), labels[1] if label is None else label
        if label is not None:
            if str(label) not in labels:
                raise ValueError(f"label={label!r} was not in training: give one of {', '.join(labels[:20])}")
            place = labels.index(str(label))
            labels, weight = [labels[place]], weight[:, [place]]
        return _table([(names, labels, weight)], n)

    def top_transitions(self, n: int | None = 20) -> WeightTable:
        """The ``n`` weights of neighbouring labels that are the largest in size: rows (label before, label, weight).

        ``n=None`` gives all weights but 0; forbidden pairs have 0. A chain begins with ``(start)`` and ends with
        ``(end)``. Sets of labels have a row for each pair, graphs with cycles one for neighbours of different labels,
        and classes none. Where edges have several features, ``a, edge x1`` says which.

        Raises:
            ValueError: ``n`` is less than 1.
            TypeError: The head has no weights by label.
        """
        head, (_, labels, _, pairs) = self._model().head, _read(self._model())
        blocks = [(labels, labels, pairs)]
        if pairs.ndim == 3:
            place = " at " if isinstance(head, LinearChain) else ", edge x"
            blocks = [([f"{name}{place}{p}" for name in labels], labels, each) for p, each in enumerate(pairs)]
        if (start := getattr(head, "start_transitions", None)) is not None:
            blocks += [(["(start)"], labels, start[None]), (labels, ["(end)"], head.end_transitions[:, None])]
        return _table(blocks, n)

    def _model(self) -> Any:
        """What has head, labels, vocabulary and feature_names."""
        return self


def _read(model: Any) -> tuple[list[str], list[str], Tensor, Tensor]:
    """Names of features and constants [R] and of labels [K], weights [R, K], and pairs [K, K] or [P, K, K]."""
    head, weight, pairs = model.head, torch.zeros(0, 0), torch.zeros(0, 0)
    match head:
        case LinearChain():
            weight, pairs = head.by_feature(head.emission), head.transition
        case LinearMulticlass():
            weight = head.weight.T
        case LinearMultilabel():
            weight = head.by_feature(head.unary)
            pairs = pairs if head.pairwise is None else head.interactions().triu()
        case LinearForest():
            weight, pairs = head.node.T, head.edge.squeeze(0)
        case LinearGraph():  # the head's score of a node is half the difference of its labels
            weight = torch.stack([-head.unary, head.unary], 1)
            pairs = pad(-head.pairwise[:, None, None], (1, 0, 0, 1)).squeeze(0)
        case LinearSegments():
            weight, pairs = head.emission.T, head.transition
        case LinearRanking():
            weight = head.weight[:, None]
        case _:
            raise TypeError(f"{type(head).__name__} has no weights by label: read its parameters")
    names = [*(model.feature_names or map("x{}".format, range(len(weight)))), _BIAS][: len(weight)]
    for name, column in (model.vocabulary or {}).items():
        names[column] = name
    if getattr(head, "bias", None) is not None:
        names, weight = [*names, _BIAS], torch.cat([weight, head.bias[None]])
    if isinstance(head, LinearSegments):
        halves = weight.split(head.structure.num_labels, 1)
        names += [f"first frame: {name}" for name in names if len(halves) == 2]
        names += [f"duration {d + 1}" for d in range(len(head.duration))]
        weight = torch.cat([*halves, head.duration])
    labels = ["score"] if isinstance(head, LinearRanking) else [str(k) for k in range(weight.shape[1])]
    return names, model.labels or labels, weight, pairs


def _table(blocks: list[tuple[list[str], list[str], Tensor]], n: int | None) -> WeightTable:
    """The weights of matrices whose rows and columns have names."""
    most, rows = None if n is None else check_whole(n, "n"), []
    for names, labels, matrix in blocks:
        weight = matrix.detach().cpu().double().flatten()
        for place in weight.abs().argsort(descending=True, stable=True)[:most].tolist():
            rows.append(Weight(names[place // len(labels)], labels[place % len(labels)], float(weight[place])))
    return WeightTable(sorted((row for row in rows if row.weight), key=lambda row: -abs(row.weight))[:most])
