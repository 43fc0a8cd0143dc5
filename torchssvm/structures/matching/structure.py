"""Bipartite matchings: an output is a set of edges between two sides, in which no two edges share a node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_flags, check_int64, check_number, check_whole
from torchssvm.core.decoding import Decoding
from torchssvm.core.potentials import Parts, Potentials, as_parts
from torchssvm.core.structure import Structure
from torchssvm.structures.common import check_lengths, check_potentials, check_shape, mask_of, reject_entries
from torchssvm.structures.matching.oracle import best_matching

POSSIBLE = 2
"""Marks an edge of a target that is not in the matching but costs nothing to predict."""


class EdgePotentials(Potentials):
    """Scores of the edges between up to S left and up to T right nodes; both numbers may differ between examples.

    Args:
        tensors: ``[B, S, T]``; values beyond an example's nodes are ignored.
        lengths: ``[B]`` int64, 1 to S, the number of left nodes of each example; None means S for all.
        widths: ``[B]`` int64, 1 to T, the number of right nodes of each example; None means T for all.
        options: ``adjoint``, ``gram_product`` and ``weights``, as :class:`~torchssvm.Potentials` takes them.

    Raises:
        ValueError: The scores are not ``[B, S, T]``, or a size does not fit them.

    Example:
        >>> scores = EdgePotentials(torch.ones(2, 2, 3), widths=torch.tensor([3, 1]))
        >>> Matching().argmax(scores).labeling  # -1 beyond the nodes of the second example
        tensor([[[ 1,  0,  0],
                 [ 0,  1,  0]],
        <BLANKLINE>
                [[ 1, -1, -1],
                 [ 0, -1, -1]]])
    """

    __slots__ = ("widths",)
    carried = ("widths",)

    def __init__(
        self,
        tensors: Tensor | Mapping[str, Tensor],
        lengths: Tensor | None = None,
        widths: Tensor | None = None,
        **options: Any,
    ) -> None:
        scores = check_shape(next(iter(as_parts(tensors, "tensors").values())), "potentials", "B", "S", "T")
        batch, left, right = scores.shape
        if lengths is None and widths is not None:
            lengths = torch.full((batch,), left, device=scores.device)
        if lengths is not None:
            check_lengths(lengths, scores)
        super().__init__(tensors, lengths, **options)
        if lengths is not None:
            self.ragged = dict.fromkeys(self.tensors, 0)
        if widths is not None:
            check_int64(widths, "widths", (batch,), ", the right nodes of each example")
            reject_entries(
                (widths < 1) | (widths > right), widths, "widths has", f"give 1 to {right}, the padded width"
            )
        self.widths = widths


class Matching(Structure):
    """Matchings between S left and T right nodes: each node has at most one edge.

    Potentials: the score of every edge, ``[B, S, T]``. If the number of right nodes differs between examples, use
    :class:`EdgePotentials`, which carry the numbers of left and right nodes.

    Labelings and targets: ``[B, S, T]`` int64, 1 for the edges of the matching, 0 for the others, -1 beyond the nodes
    of an example (values of a target there are ignored). A target may mark other edges as ``POSSIBLE`` (2): predicting
    them costs nothing, like the possible links of word alignments in the alignment error rate.

    The loss is the asymmetric Hamming loss of [Lacoste-Julien et al. 2013, appendix F] and [Taskar et al. 2006],

        ``precision_cost |wrong edges| + recall_cost |missed edges of the target|``.

    The max oracle is exact: the linear program of bipartite matchings has integral solutions. It runs on the CPU or,
    where Triton is installed, on CUDA: see :func:`best_matching`.

    Args:
        precision_cost: Cost of a predicted edge that is neither in the target nor possible; at least 0.
        recall_cost: Cost of a missed edge of the target; at least 0.
        normalize: Divide the loss by the example's number of left nodes.

    Raises:
        ValueError: A cost is negative or not finite, or both are zero.

    Example:
        >>> scores = torch.tensor([[[2.0, 1.5], [1.9, 0.0]]])
        >>> Matching().argmax(Potentials(scores)).labeling
        tensor([[[0, 1],
                 [1, 0]]])
    """

    _not_plain = "the assignment algorithm loops over single nodes"

    _quick_to_decode = True

    def __init__(self, *, precision_cost: float = 1.0, recall_cost: float = 3.0, normalize: bool = True) -> None:
        check_flags(normalize=normalize)
        self.precision_cost = check_number(precision_cost, "precision_cost", 0.0)
        self.recall_cost = check_number(recall_cost, "recall_cost", 0.0)
        if self.precision_cost == self.recall_cost == 0.0:
            raise ValueError("precision_cost and recall_cost are both 0: give one that is positive")
        self.normalize = normalize

    def argmax(self, potentials: Potentials) -> Decoding:
        """The best matching; edges with a score of 0 or less are never used. ``best_matching`` describes other ties."""
        scores = potentials.single
        chosen = best_matching(scores, potentials.lengths, getattr(potentials, "widths", None))
        value = scores.detach().to(torch.float64).masked_fill(~chosen, 0.0).sum((1, 2))
        return Decoding(chosen.to(torch.int64).masked_fill_(~_real(potentials), -1), value)

    @override
    def parts(self, labeling: Tensor) -> Tensor:
        return (labeling == 1).to(torch.get_default_dtype())

    @override
    def relative_scores(self, labelings: Tensor, target: Tensor, potentials: Potentials) -> Tensor:
        scores = potentials.single.to(torch.float64).flatten(1).unsqueeze(2)
        edges = torch.cat([labelings, target.unsqueeze(1)], 1) == 1
        total = (edges.to(torch.float64).flatten(2) @ scores).squeeze(2)
        return total[:, :-1] - total[:, -1:]

    @override
    def mean_difference(self, labelings: Tensor, mass: Tensor, target: Tensor, potentials: Potentials) -> Parts:
        ((name, tensor),) = potentials.tensors.items()
        # Subtracted before they are summed, as what is left may be small.
        differences = (labelings == 1).to(tensor.dtype) - (target == 1).to(tensor.dtype).unsqueeze(1)
        return {name: (mass.to(tensor.dtype).unsqueeze(1) @ differences.flatten(2)).view(tensor.shape)}

    def loss(self, labeling: Tensor, target: Tensor) -> Tensor:
        """Asymmetric Hamming loss, ``[B]`` float64."""
        predicted, true = labeling == 1, target == 1
        wrong = (predicted & (target == 0)).sum((1, 2), dtype=torch.float64)  # a float times integers would be float32
        missed = (true & ~predicted).sum((1, 2), dtype=torch.float64)
        return (self.precision_cost * wrong + self.recall_cost * missed) * self._share(target)

    def loss_potentials(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """``precision_cost`` at wrong edges, ``-recall_cost`` at the target's; the constant: missing all."""
        share, true = self._share(target), (target == 1).to(torch.float64)
        delta = self.precision_cost * (target == 0).to(torch.float64) - self.recall_cost * true
        return delta * share.view(-1, 1, 1), self.recall_cost * true.sum((1, 2)) * share

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        check_potentials(potentials, ("B", "S", "T"))

    def check_target(self, target: Tensor, potentials: Potentials) -> Tensor:
        """Check that ``target`` is a matching of the right shape; write -1 beyond the nodes of each example."""
        check_int64(target, "target", potentials.single.shape, ", as the potentials are")
        real = _real(potentials)
        wrong = ((target < 0) | (target > POSSIBLE)) & real
        allowed = f"give 1 (edge), 0 (none) or {POSSIBLE} (possible), and the head widths and lengths if padded"
        reject_entries(wrong, target, "target has", allowed)
        target = target.masked_fill(~real, -1)
        for axis, side in ((2, "left"), (1, "right")):
            count = (target == 1).sum(axis)
            allowed = f"keep one edge of each {side} node, and mark others as possible ({POSSIBLE})"
            reject_entries(count > 1, count, "target has several edges,", allowed)
        return target

    @override
    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        return {next(iter(potentials.tensors)): _real(potentials)}

    @override
    def enumerate(self, potentials: Potentials) -> Iterator[Tensor]:
        _, left, right = potentials.single.shape
        real = _real(potentials)
        for partners in _all_partners(left, right):
            labeling = self.from_partners(torch.tensor([partners], device=potentials.device), right)
            yield labeling.expand(real.shape).masked_fill(~real, -1)

    @staticmethod
    def from_partners(partners: Tensor, num_right: int) -> Tensor:
        """The labeling ``[..., S, T]`` in which left node s is matched with ``partners[..., s]``.

        Args:
            partners: ``[..., S]`` int64, 0 to T - 1; -1 for an unmatched node.
            num_right: T.

        Raises:
            ValueError: A partner is out of range.
        """
        num_right = check_whole(num_right, "num_right", 0)
        check_int64(partners, "partners", getattr(partners, "shape", None))
        wrong = (partners < -1) | (partners >= num_right)
        reject_entries(wrong, partners, "partners has", f"give -1 to {num_right - 1}")
        return (partners.unsqueeze(-1) == torch.arange(num_right, device=partners.device)).to(torch.int64)

    @staticmethod
    def partners(labeling: Tensor) -> Tensor:
        """The partner of each left node in a labeling ``[..., S, T]``: ``[..., S]`` int64, -1 for an unmatched node."""
        matched, place = (labeling == 1).to(torch.int8).max(-1)
        return place.masked_fill(matched == 0, -1)

    def _share(self, target: Tensor) -> Tensor:
        """The factor that normalises each example's loss, ``[B]`` float64."""
        left = (target >= 0).any(2).sum(1).to(torch.float64).clamp(min=1.0)
        return 1.0 / left if self.normalize else torch.ones_like(left)


def _real(potentials: Potentials) -> Tensor:
    """The edges between an example's nodes, ``[B, S, T]`` bool."""
    rows = mask_of(potentials.lengths, potentials.single)
    columns = check_lengths(getattr(potentials, "widths", None), potentials.single.mT)
    return rows.unsqueeze(2) & columns.unsqueeze(1)


def _all_partners(left: int, right: int, taken: tuple[int, ...] = ()) -> Iterator[list[int]]:
    if not left:
        yield []
        return
    for partner in range(-1, right):
        if partner not in taken:
            for others in _all_partners(left - 1, right, taken if partner < 0 else (*taken, partner)):
                yield [partner, *others]
