"""Multilabel classification: an output is a set of labels, with scores for labels and for pairs of labels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from typing_extensions import override

from torchssvm.core.arguments import check_costs, check_flags, check_int64, check_object, check_whole
from torchssvm.core.decoding import Decoding, OracleResult, shifted
from torchssvm.core.launch import arrays, fits_numba
from torchssvm.core.operators import constant
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.structure import digest
from torchssvm.structures.common import check_potentials, reject_entries
from torchssvm.structures.labelled import Summed, at_least
from torchssvm.structures.multilabel import oracle as kernels
from torchssvm.structures.multilabel.oracle import best_label_sets, shared, symmetric

_MOST_LISTED = 12


class LabelSetOracle(Protocol):
    """A method that finds the label sets with the highest score."""

    def solve(self, unary: Tensor, pairwise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Labels ``[B, K]`` int64, scores and bounds ``[B]`` float64, from ``[B, K]`` and ``[P]`` or ``[B, P]``."""


@dataclass(frozen=True)
class MessagePassing:
    """Message passing alone; the bound converges to the value of the linear program over the local polytope.

    Exact if all pair weights are at least 0, and often otherwise; see
    :func:`torchssvm.structures.multilabel.oracle.best_label_sets`.

    Raises:
        ValueError: ``max_rounds`` is less than 1.

    Example:
        >>> structure = Multilabel(3, decoder=MessagePassing())
        >>> potentials = Potentials({"unary": torch.ones(1, 3), "pairwise": torch.full((1, 3), -0.8)})
        >>> decoding = structure.argmax(potentials)
        >>> decoding.value <= decoding.bound
        tensor([True])
    """

    max_rounds: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_rounds", check_whole(self.max_rounds, "max_rounds"))

    def solve(self, unary: Tensor, pairwise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Labels, scores and bounds."""
        return best_label_sets(unary, pairwise, max_rounds=self.max_rounds)


@dataclass(frozen=True)
class BranchAndBound:
    """Message passing, then branch and bound for the remaining gap; exact unless an example needs more than ``effort``.

    Args:
        max_rounds: Most rounds over all pairs of an example before branching.
        effort: The most pair updates of branch and bound for an example; 200,000 take about 3 ms.

    Raises:
        ValueError: ``max_rounds`` or ``effort`` is less than 1.

    Example:
        >>> structure = Multilabel(3, decoder=BranchAndBound())
        >>> potentials = Potentials({"unary": torch.ones(1, 3), "pairwise": torch.full((1, 3), -0.8)})
        >>> decoding = structure.argmax(potentials)
        >>> decoding.labeling.sum(), decoding.exact
        (tensor(2), True)
    """

    max_rounds: int = 100
    effort: int = 200_000

    def __post_init__(self) -> None:
        for name in ("max_rounds", "effort"):
            object.__setattr__(self, name, check_whole(getattr(self, name), name))

    def solve(self, unary: Tensor, pairwise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Labels, scores and bounds."""
        return best_label_sets(unary, pairwise, max_rounds=self.max_rounds, effort=self.effort)


class Multilabel(Summed):
    """A subset of K labels, with scores for labels and for pairs of labels, as in [Yen et al. 2016].

    Potentials: ``unary`` ``[B, K]``, the score of a label that is on (off scores 0), and ``pairwise`` ``[B, P]``, the
    score of two labels that are both on: the P = K (K - 1) / 2 pairs i < j in the order of
    ``torch.triu_indices(K, K, 1)``, or the listed ``pairs``.
    Decoding is much faster if all examples share one vector expanded to B rows, as the heads return it.
    Labelings and targets: ``[B, K]`` int64, 1 where a label is on, else 0.

    The loss is the Hamming loss, ``sum_k weight_k [y_k != target_k]``, divided by the sum of all weights if
    ``normalize`` (without weights: the share of wrong labels).

    Args:
        num_labels: K, the number of labels.
        pairwise: Whether pairs are scored; otherwise the only potentials are ``unary``.
        weights: ``[K]``, non-negative and not all 0, the cost of each wrong label, which is the margin that it
            asks for; None means 1 for all.
        decoder: ``BranchAndBound()`` or ``MessagePassing()``; None means ``BranchAndBound()``. Both return a bound for
            examples that they do not decode exactly.
        pairs: ``[P, 2]`` int64, the pairs i < j that are scored, in ascending order; None means all. Pairs that make no
            circle are decoded exactly by messages.

    Raises:
        ValueError: ``num_labels`` is less than 1, ``weights`` has another shape, a negative entry or only zeros, or
            ``pairs`` are not distinct ascending pairs of labels.

    Example:
        >>> unary, pairwise = torch.tensor([[1.0, -0.2, -3.0]]), torch.tensor([[0.5, 0.0, 0.0]])
        >>> potentials = Potentials({"unary": unary, "pairwise": pairwise})
        >>> Multilabel(3).argmax(potentials).labeling
        tensor([[1, 1, 0]])
    """

    unit = "label"

    def __init__(
        self,
        num_labels: int,
        *,
        pairwise: bool = True,
        normalize: bool = True,
        weights: Tensor | None = None,
        decoder: LabelSetOracle | None = None,
        pairs: Tensor | None = None,
    ) -> None:
        num_labels = check_whole(num_labels, "num_labels")
        check_flags(pairwise=pairwise, normalize=normalize)
        weights = check_costs(weights, "weights", num_labels)
        if weights is not None and not bool(weights.any()):
            raise ValueError(f"weights={weights.tolist()} must not all be 0: give one that is positive")
        self.num_labels = num_labels
        self.pairwise = pairwise
        self.normalize = normalize
        self.weights = weights
        self.decoder = BranchAndBound() if decoder is None else decoder
        check_object(self.decoder, "decoder", "solve", "MessagePassing()")
        self.pairs = pairs
        self._places = None if pairs is None else _places(pairs, num_labels, pairwise)
        costs = torch.ones(num_labels, dtype=torch.float64) if weights is None else weights
        self._costs = costs / costs.sum() if normalize else costs

    @property
    def num_pairs(self) -> int:
        """P, or 0 without pairs."""
        if self.pairs is not None:
            return len(self.pairs)
        return self.num_labels * (self.num_labels - 1) // 2 if self.pairwise else 0

    def listed_pairs(self) -> Tensor:
        """The pairs that are scored, ``[2, P]`` int64."""
        if self.pairs is not None:
            return self.pairs.T
        return torch.triu_indices(self.num_labels, self.num_labels, 1)

    def all_pairs(self, scores: Tensor) -> Tensor:
        """Scores ``[..., P]`` of the listed pairs among all pairs, ``[..., K (K - 1) / 2]``: 0 for the others."""
        if self._places is None:
            return scores
        whole = scores.new_zeros(*scores.shape[:-1], self.num_labels * (self.num_labels - 1) // 2)
        return whole.index_copy(-1, constant(self._places, scores.device), scores)

    @property
    def costs(self) -> Tensor:
        """The cost of each wrong label, ``[K]`` float64."""
        return self._costs

    @override
    def argmax(self, potentials: Potentials) -> Decoding:
        return self._decode(potentials, potentials["unary"].detach().to(torch.float64))

    @override
    def max_marginals(self, potentials: Potentials) -> Tensor:
        return super().max_marginals(potentials) if self.pairwise else potentials["unary"].detach().to(torch.float64)

    def augmented_argmax(self, potentials: Potentials, target: Tensor) -> Decoding:
        """The decoder's labels with the loss added to ``unary``; the target if approximate labels are worse."""
        delta, constant = self.loss_potentials(target)
        unary = potentials["unary"].detach().to(torch.float64)
        decoding = shifted(self._decode(potentials, unary + delta["unary"]), constant)
        if decoding.bound is None:
            return decoding
        return at_least(decoding, target, self._scores(self._stack(target), potentials).squeeze(1))  # without a loss

    def parts(self, labeling: Tensor) -> dict[str, Tensor]:
        """``y_k``, ``[B, K]``, and ``y_i y_j`` of the pairs, ``[B, P]``."""
        sizes = {"unary": self.num_labels} | ({"pairwise": self.num_pairs} if self.pairwise else {})
        parts = {name: torch.zeros(len(labeling), size, device=labeling.device) for name, size in sizes.items()}
        return self._add(parts, self._stack(labeling), torch.ones(len(labeling), 1, device=labeling.device))

    @override
    def _examine(self, labeling: Tensor, target: Tensor, potentials: Potentials) -> OracleResult:
        score = self.relative_scores(labeling.unsqueeze(1), target, potentials).squeeze(1)
        # Scores of labels that are off do not enter the score, but must be finite too.
        for tensor in (
            (potentials["unary"], shared(potentials["pairwise"])) if self.pairwise else (potentials["unary"],)
        ):
            score = score + 0.0 * tensor.detach().to(torch.float64).sum(-1)
        return OracleResult(labeling, score, self.loss(labeling, target))

    @override
    def mean_difference(self, labelings: Tensor, mass: Tensor, target: Tensor, potentials: Potentials) -> Parts:
        parts, dtype = super().mean_difference(labelings, mass, target, potentials), potentials.dtype
        # The target's labels have a loss: they are subtracted before the sum, as what is left may be small.
        differences = (labelings - target.unsqueeze(1)).to(dtype)
        return {**parts, "unary": (mass.to(dtype).unsqueeze(1) @ differences).squeeze(1)}

    def loss(self, labeling: Tensor, target: Tensor) -> Tensor:
        """Hamming loss, ``[B]`` float64."""
        return ((labeling != target) * constant(self._costs, target.device)).sum(1)

    def loss_potentials(self, target: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The cost of each label, negative if the target has it; the constant is the cost of the target's labels."""
        costs = constant(self._costs, target.device)
        return {"unary": torch.where(target == 1, -costs, costs)}, (costs * target).sum(1)

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        shapes: dict[str, tuple[int | str, ...]] = {"unary": ("B", self.num_labels)}
        if self.pairwise:
            shapes["pairwise"] = "B", self.num_pairs
        check_potentials(potentials, shapes)

    @override
    def check_target(self, target: Tensor, potentials: Potentials) -> Tensor:
        check_int64(target, "target", potentials["unary"].shape, ", 1 where a label is on, else 0")
        reject_entries((target != 0) & (target != 1), target, "target has", "give 1 where a label is on, else 0")
        return target

    def enumerate(self, potentials: Potentials) -> Iterator[Tensor] | None:
        """All sets of up to 12 labels; None for more."""
        if self.num_labels > _MOST_LISTED:
            return None
        numbers = itertools.product((0, 1), repeat=self.num_labels)
        return (torch.tensor([y], device=potentials.device).expand(potentials.batch_size, -1) for y in numbers)

    @override
    def _plain(self) -> nn.Module:
        from torchssvm.structures.multilabel.plain import LabelSetDecoder

        most = self.decoder.max_rounds if isinstance(self.decoder, MessagePassing) else 0
        if self.pairwise and not most:
            raise TypeError(
                f"decoder={self.decoder} cannot be traced by torch: read files by load_head, or give Decoder(head, "
                f"structure=Multilabel({self.num_labels}, decoder=MessagePassing()))"
            )
        return LabelSetDecoder(self.num_labels, self.pairwise, most, self._places)

    def _decode(self, potentials: Potentials, unary: Tensor) -> Decoding:
        if not self.pairwise:
            labels = (unary > 0.0).to(torch.int64)
            return Decoding(labels, unary.clamp(min=0.0).sum(1))
        labels, value, bound = self.decoder.solve(unary, self.all_pairs(shared(potentials["pairwise"].detach())))
        exact = bool((bound <= value).all())
        return Decoding(labels, value, None if exact else bound, exact)

    @override
    def _scores(self, labelings: list[Tensor], potentials: Potentials) -> Tensor:
        labels = labelings[0].to(torch.float64)
        scores = potentials["unary"].detach().to(torch.float64).unsqueeze(1)
        if self.pairwise:
            pairs = self.all_pairs(shared(potentials["pairwise"].detach()).to(torch.float64))
            scores = scores + 0.5 * (labels @ symmetric(pairs, self.num_labels))
        return (labels * scores).sum(2)

    @override
    def _add(self, parts: Parts, labelings: list[Tensor], mass: Tensor) -> Parts:
        (labels,), mass = labelings, mass.to(parts["unary"].dtype)
        on = labels.to(mass.dtype)
        parts["unary"] += (mass.unsqueeze(1) @ on).squeeze(1)
        if not self.pairwise:
            return parts
        labels, mass = labels.contiguous(), mass.contiguous()
        if fits_numba(labels, mass):
            begin, other = kernels.by_first(self.listed_pairs(), self.num_labels)
            kernels.add_pairs(*arrays(labels, mass), begin, other, *arrays(parts["pairwise"]))
        else:
            i, j = self.listed_pairs().to(labels.device)
            parts["pairwise"] += ((on.mT * mass.unsqueeze(1)) @ on)[:, i, j]
        return parts

    @override
    def _fingerprint(self) -> str:
        weights = None if self.weights is None else digest(self.weights)
        pairs = "" if self.pairs is None else f", pairs={digest(self.pairs)}"
        return f"{self.num_labels}, pairwise={self.pairwise}, normalize={self.normalize}, weights={weights}{pairs}"

    def __repr__(self) -> str:
        return f"Multilabel({self._fingerprint()}, decoder={self.decoder})"


def _places(pairs: Tensor, num_labels: int, pairwise: bool) -> Tensor:
    """The places of the pairs ``[P, 2]`` among all, ``[P]`` ascending; ValueError for wrong ones."""
    check_int64(pairs, "pairs", (len(pairs), 2), ", the labels of each pair")
    i, j = pairs.unbind(1)
    places = i * num_labels - i * (i + 1) // 2 + j - i - 1
    ordered = bool(((i >= 0) & (i < j) & (j < num_labels)).all() and (places.diff() > 0).all())
    if not (pairwise and len(pairs) and ordered):
        raise ValueError(f"pairs={pairs.tolist()} must be distinct and ascending, i < j, and need pairwise=True")
    return places
