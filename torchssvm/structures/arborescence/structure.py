"""Arborescences: an output assigns a head to each token of a sentence, as dependency trees do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_flags, check_int64, check_object, check_whole
from torchssvm.core.decoding import Decoding
from torchssvm.core.marginals import Marginals, marginals_by_gradient
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.row_sparse import add_at
from torchssvm.core.structure import reject_rows
from torchssvm.structures.arborescence.log_partition import inside, matrix_tree
from torchssvm.structures.arborescence.oracle import eisner, max_arborescence
from torchssvm.structures.common import check_labels, check_potentials, mask_of, reject_entries
from torchssvm.structures.labelled import Labelled, Summed
from torchssvm.structures.sampling import NO_OUTPUT, draw


class Arborescences(Protocol):
    """A set of spanning arborescences, and the method that finds the best of them."""

    def argmax(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """``[B, N, N+1]`` and ``[B]`` -> heads ``[B, N]`` and their score ``[B]``."""

    def log_partition(self, scores: Tensor, lengths: Tensor | None) -> Tensor:
        """``[B, N, N+1]`` float64 -> ``log Z`` ``[B]``, with a gradient; only marginals need it."""

    def allow(self, heads: Tensor) -> Tensor:
        """Whether each arborescence, heads ``[B, N]`` with -1 in the padding, is an output: ``[B]`` bool."""

    @property
    def rule(self) -> str:
        """The condition on outputs, for error messages."""


@dataclass(frozen=True)
class Projective:
    """Arborescences without crossing arcs, the root left of all tokens; decoded by Eisner's algorithm, O(T^3).

    Attributes:
        single_root: Whether exactly one token has the root as head; otherwise at least one.

    Example:
        >>> crossing = torch.full((1, 4, 5), -1.0)
        >>> crossing[0, [0, 1, 2, 3], [3, 4, 0, 3]] = 1.0
        >>> Arborescence(among=Projective()).argmax(Potentials(crossing)).labeling
        tensor([[3, 3, 0, 3]])
    """

    single_root: bool = False

    def argmax(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Eisner's algorithm; see :func:`torchssvm.structures.arborescence.oracle`."""
        return eisner(scores, lengths, self.single_root)

    def log_partition(self, scores: Tensor, lengths: Tensor | None) -> Tensor:
        """The inside algorithm; see :func:`torchssvm.structures.arborescence.log_partition`."""
        return inside(scores, lengths, self.single_root)

    def allow(self, heads: Tensor) -> Tensor:
        """Whether no arcs cross and ``single_root`` holds."""
        return is_projective(heads) & _root_fits(heads, self.single_root)

    @property
    def rule(self) -> str:
        """No crossing arcs."""
        single = ", and that one token has head 0" if self.single_root else ""
        return f"no arcs cross, the root's included{single}"


@dataclass(frozen=True)
class NonProjective:
    """All spanning arborescences; decoded by the algorithm of Chu, Liu and Edmonds, O(T^2), on the CPU.

    Attributes:
        single_root: Whether exactly one token has the root as head; otherwise at least one.

    Example:
        >>> crossing = torch.full((1, 4, 5), -1.0)
        >>> crossing[0, [0, 1, 2, 3], [3, 4, 0, 3]] = 1.0
        >>> Arborescence(among=NonProjective()).argmax(Potentials(crossing)).labeling
        tensor([[3, 4, 0, 3]])
    """

    single_root: bool = False

    def argmax(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Chu-Liu-Edmonds; see :func:`torchssvm.structures.arborescence.oracle`."""
        return max_arborescence(scores, lengths, self.single_root)

    def log_partition(self, scores: Tensor, lengths: Tensor | None) -> Tensor:
        """The matrix-tree theorem; see :func:`torchssvm.structures.arborescence.log_partition`."""
        return matrix_tree(scores, lengths, self.single_root)

    def allow(self, heads: Tensor) -> Tensor:
        """Whether ``single_root`` holds."""
        return _root_fits(heads, self.single_root)

    @property
    def rule(self) -> str:
        """One child of the root, if ``single_root``."""
        return "one token has head 0" if self.single_root else "they are connected"


class Arborescence(Labelled, Summed):
    """A head for each token of a sentence, a tree below an artificial root; and a label for each arc, if asked for.

    Potentials: one tensor ``[B, N, N+1]``; at ``[b, t-1, h]`` the score of the arc from head h to token t. Tokens are
    numbered from 1, and head 0 is the root. Ignored are arcs of a token to itself, rows from an example's length T on,
    and columns beyond T. Labelings and targets: the heads, ``[B, N]`` int64, 0 to T, and -1 beyond the length (values
    of a target there are ignored).

    With ``num_labels`` L, potentials are ``[B, N, N+1, L]``, and labelings and targets have ``head * L + label`` in
    place of the head: :meth:`join` makes them, and :meth:`split` gives heads and labels. The best label of each arc
    does not depend on the rest of the tree, so the decoders stay the same, and exact.

    The loss is the share of tokens with a wrong head (with ``normalize=False``, their number). A right head with a
    wrong label counts as ``label_cost`` of a wrong head.

    McDonald, Crammer and Pereira (2005), "Online large-margin training of dependency parsers"; McDonald et al. (2005),
    "Non-projective dependency parsing using spanning tree algorithms".

    Args:
        among: The set of outputs: ``Projective()`` or ``NonProjective()``; None means ``NonProjective()``.
        normalize: Whether the loss is divided by the number of tokens.
        num_labels: L, the number of labels of an arc; None for arcs without labels.
        label_cost: From 0 to 1; None is 0.5.

    Raises:
        ValueError: ``num_labels`` is less than 1; or ``label_cost`` is not from 0 to 1, or given without labels.

    Example:
        >>> scores = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]])  # token 1 below the root, token 2 below token 1
        >>> Arborescence().argmax(Potentials(scores)).labeling
        tensor([[0, 1]])
        >>> trees = Arborescence(num_labels=3)
        >>> target = trees.join(heads=torch.tensor([[0, 1]]), labels=torch.tensor([[2, 0]]))
        >>> trees.split(target)
        (tensor([[0, 1]]), tensor([[2, 0]]))
    """

    _not_plain = "spanning trees are decoded by loops over single tokens"

    def __init__(
        self,
        among: Arborescences | None = None,
        *,
        normalize: bool = True,
        num_labels: int | None = None,
        label_cost: float | None = None,
    ) -> None:
        check_flags(normalize=normalize)
        self.among = NonProjective() if among is None else among
        check_object(self.among, "among", "argmax", "Projective()")
        self.normalize = normalize
        self.num_labels = None if num_labels is None else check_whole(num_labels, "num_labels")
        if num_labels is None and label_cost is not None:
            raise ValueError(f"label_cost={label_cost} is for arcs with labels: give num_labels, or leave it out")
        if label_cost is not None and not 0.0 <= label_cost <= 1.0:
            raise ValueError(f"label_cost={label_cost} must be from 0 to 1, the cost of a wrong head")
        self.label_cost = None if num_labels is None else 0.5 if label_cost is None else float(label_cost)

    def join(self, heads: Tensor, labels: Tensor) -> Tensor:
        """Targets of heads, -1 in the padding, and labels, 0 to L - 1: int64, all of one shape.

        Raises:
            ValueError: A label is not in 0 to L - 1.
        """
        check_labels(labels, self._each, heads >= 0)
        return torch.where(heads >= 0, heads * self._each + labels, -1)

    def split(self, labeling: Tensor) -> tuple[Tensor, Tensor]:
        """The heads and the labels of labelings, -1 in the padding; without ``num_labels``, labels are 0."""
        return self._heads(labeling), torch.where(labeling >= 0, labeling % self._each, -1)

    @property
    def _each(self) -> int:
        return self.num_labels or 1

    def _heads(self, labeling: Tensor) -> Tensor:
        return labeling if self.num_labels is None else labeling.div(self.num_labels, rounding_mode="floor")

    def _like(self, flat: Tensor) -> Tensor:
        """``[B, N, (N+1) L]`` in the shape of the potentials."""
        return flat if self.num_labels is None else flat.unflatten(2, (-1, self.num_labels))

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        labels = () if self.num_labels is None else (self.num_labels,)
        check_potentials(potentials, ("B", "N", "N+1", *labels))

    @override
    def argmax(self, potentials: Potentials) -> Decoding:
        scores = potentials.single
        if self.num_labels is None:
            return Decoding(*self.among.argmax(scores, potentials.lengths))
        heads, value = self.among.argmax(scores.amax(3), potentials.lengths)
        at_head = scores.take_along_dim(heads.clamp(min=0)[:, :, None, None], 2).squeeze(2)
        return Decoding(torch.where(heads >= 0, heads * self.num_labels + at_head.argmax(2), -1), value)

    @override
    def marginals(self, potentials: Potentials) -> Marginals:
        if not self._has_marginals:
            return super().marginals(potentials)

        def log_partition(given: Potentials) -> Tensor:
            scores = given.single if self.num_labels is None else given.single.logsumexp(3)
            return self.among.log_partition(scores, given.lengths)

        return marginals_by_gradient(potentials, log_partition)

    @property
    def _has_marginals(self) -> bool:
        return hasattr(self.among, "log_partition")

    @override
    def _sample(self, potentials: Potentials, n: int, generator: torch.Generator | None) -> Tensor:
        """Token after token, by the marginals of its arcs, given the arcs of earlier tokens."""
        reject_rows(self.marginals(potentials).log_partition == -torch.inf, NO_OUTPUT)
        rows = potentials.select(torch.arange(potentials.batch_size, device=potentials.device).repeat_interleave(n))
        (name,), scores = rows.tensors, rows.single.double().flatten(2)
        real = mask_of(rows.lengths, scores)
        arcs = torch.full(scores.shape[:2], -1, device=scores.device)
        for token in range(scores.shape[1]):
            at = real[:, token]
            masses = self.marginals(rows.replace({name: self._like(scores)})).parts[name][at, token].flatten(1)
            arcs[at, token] = chosen = draw(masses, generator)
            others = torch.ones_like(masses, dtype=torch.bool).scatter_(1, chosen.unsqueeze(1), False)
            scores[at, token] = scores[at, token].masked_fill(others, -torch.inf)
        return arcs.unflatten(0, (-1, n))

    def parts(self, labeling: Tensor) -> Tensor:
        """Indicators of the arcs, ``[B, N, N+1]``, or with labels ``[B, N, N+1, L]``."""
        batch, longest = labeling.shape
        arcs = torch.zeros(batch, longest, (longest + 1) * self._each, device=labeling.device)
        real = (labeling >= 0).unsqueeze(2)
        return self._like(arcs.scatter_(2, labeling.clamp(min=0).unsqueeze(2), real.to(arcs.dtype)))

    @override
    def loss(self, labeling: Tensor, target: Tensor) -> Tensor:
        if self.label_cost is None:
            return super().loss(labeling, target)
        wrong_label = self.label_cost * (labeling != target)
        wrong = torch.where(self._heads(labeling) != self._heads(target), 1.0, wrong_label)
        return (self.costs(target) * wrong).sum(1)

    @override
    def _scores(self, labelings: list[Tensor], potentials: Potentials) -> Tensor:
        arcs = labelings[0].mT  # [B, N, C]
        scores = potentials.single.flatten(2).gather(2, arcs.clamp(min=0)).to(torch.float64)
        return scores.masked_fill(arcs < 0, 0.0).sum(1)

    @override
    def _add(self, parts: Parts, labelings: list[Tensor], mass: Tensor) -> Parts:
        (tensor,), arcs = parts.values(), labelings[0].mT  # [B, N, C]
        weights = mass.to(tensor.dtype).unsqueeze(1) * (arcs >= 0)
        add_at(tensor.flatten(2), arcs.clamp(min=0), weights, any_order=mass.shape[1] <= 2)  # two terms have one sum
        return parts

    def max_marginals(self, potentials: Potentials) -> Tensor:
        """Margins of each arc, ``[B, N, N+1]``, or with labels ``[B, N, N+1, L]``; ``-inf`` for a token to itself."""
        if self.num_labels is not None:
            return self._label_margins(potentials)
        margins, real = super().max_marginals(potentials), mask_of(potentials.lengths, potentials.single)
        margins.diagonal(1, 1, 2)[real] = torch.where(margins[real][:, 0].isnan(), math.nan, -math.inf).double()
        return margins

    def _label_margins(self, potentials: Potentials) -> Tensor:
        """By the margins of arcs that have their best labels: the best tree without a label may have another one."""
        (name,), scores = potentials.tensors, potentials.single.detach().double()
        best, rest = scores.amax(3), scores.new_full(scores.shape, -math.inf)
        if scores.shape[3] > 1:
            two, place = scores.topk(2, 3)
            rest = two[..., :1].expand_as(scores).scatter(3, place[..., :1], two[..., 1:])
        arcs = Arborescence(self.among).max_marginals(potentials.replace({name: best}))
        without = torch.maximum(-arcs.unsqueeze(3), rest - best.unsqueeze(3))
        margins = (scores - best.unsqueeze(3)) - without
        possible = self.places(potentials)[name] & (arcs > -math.inf).unsqueeze(3)
        return torch.where(possible, margins, arcs.unsqueeze(3))

    def loss_potentials(self, target: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The cost of each part, float64, 0 at the target's and in the padding; the constant is zero."""
        costs = self.costs(target)
        delta = self._like(costs.unsqueeze(2).repeat(1, 1, (target.shape[1] + 1) * self._each))
        if self.label_cost is not None:
            at_head = self._heads(target).clamp(min=0)[:, :, None, None].expand(-1, -1, 1, self._each)
            delta.scatter_(2, at_head, self.label_cost * costs[:, :, None, None].expand(at_head.shape))
        delta.flatten(2).scatter_(2, target.clamp(min=0).unsqueeze(2), 0.0)
        return delta, delta.new_zeros(len(delta))

    def check_target(self, target: Tensor, potentials: Potentials) -> Tensor:
        """Check that shapes and lengths fit and the heads are an output; write -1 beyond each length.

        Raises:
            ValueError: A shape or a length does not fit; a head is not in 0 to T; heads form a cycle; ``among`` does
                not allow the arborescence.
        """
        scores = potentials.single
        such = "the head of each token" if self.num_labels is None else "head * num_labels + label: see join()"
        check_int64(target, "target", scores.shape[:2], f", {such}")
        real = mask_of(potentials.lengths, scores)
        target = target.masked_fill(~real, -1)
        heads = self._heads(target)
        wrong = real & ((heads < 0) | (heads > real.sum(1, keepdim=True)))
        reject_entries(wrong, heads, "target has head", "heads are 0, the root, to the number of tokens")
        reject_entries(
            ~has_root(heads), heads, "target has head", "heads lead from this token in a circle, not to the root"
        )
        rule = f"{self.among} requires that {self.among.rule}"
        reject_rows(~self.among.allow(heads), f"target of {{rows}} is not an output: {rule}")
        return target

    @override
    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        scores = potentials.single
        real = mask_of(potentials.lengths, scores)
        heads = torch.nn.functional.pad(real, (1, 0), value=True)  # and the root
        token, head = (torch.arange(size, device=scores.device) for size in scores.shape[1:3])
        arcs = real.unsqueeze(2) & heads.unsqueeze(1) & (token.unsqueeze(1) + 1 != head)
        return {next(iter(potentials.tensors)): arcs if self.num_labels is None else arcs.unsqueeze(3)}

    def enumerate(self, potentials: Potentials) -> Iterator[Tensor] | None:
        """All outputs of up to 5 tokens, and up to 32 labelings of their arcs; None for other sentences."""
        batch, longest = potentials.single.shape[:2]
        if longest > 5 or self._each**longest > 32:
            return None
        device = potentials.device
        lengths = torch.full((batch,), longest) if potentials.lengths is None else potentials.lengths
        listed = [self._all(length) for length in lengths.tolist()]

        def each() -> Iterator[Tensor]:
            for place in range(max(len(outputs) for outputs in listed)):
                heads = torch.full((batch, longest), -1, device=device)
                for row, outputs in enumerate(listed):
                    heads[row, : outputs.shape[1]] = outputs[place % len(outputs)].to(device)
                yield heads

        return each()

    def _all(self, length: int) -> Tensor:
        """All outputs of so many tokens, ``[M, T]``."""
        heads = _all_heads(length)
        heads = heads[self.among.allow(heads)].unsqueeze(1)
        labels = torch.tensor(list(itertools.product(range(self._each), repeat=length)))
        return (heads * self._each + labels).flatten(0, 1)

    def __repr__(self) -> str:
        labels = "" if self.num_labels is None else f", num_labels={self.num_labels}, label_cost={self.label_cost}"
        return f"Arborescence({self.among}, normalize={self.normalize}{labels})"


def has_root(heads: Tensor) -> Tensor:
    """Whether heads ``[B, N]`` lead from each token to the root: bool, True in the padding, where heads are -1."""
    above = torch.nn.functional.pad(heads.clamp(min=0), (1, 0))  # the head of the root is the root; [B, N+1]
    for _ in range(heads.shape[1].bit_length()):  # after r rounds: the head 2^r arcs up
        above = above.gather(1, above)
    return above[:, 1:] == 0


def is_projective(heads: Tensor) -> Tensor:
    """Whether no arcs of heads ``[B, N]`` cross, the root's included, which stands left of all tokens: ``[B]`` bool."""
    token = torch.arange(1, heads.shape[1] + 1, device=heads.device).expand_as(heads)
    head = torch.where(heads >= 0, heads, token)  # an arc to itself crosses nothing
    first, last = torch.minimum(head, token), torch.maximum(head, token)
    begins_inside = (first.unsqueeze(2) < first.unsqueeze(1)) & (first.unsqueeze(1) < last.unsqueeze(2))
    ends_outside = last.unsqueeze(2) < last.unsqueeze(1)
    return ~(begins_inside & ends_outside).flatten(1).any(1)


def _root_fits(heads: Tensor, single_root: bool) -> Tensor:
    roots = (heads == 0).sum(1)
    return roots == 1 if single_root else roots >= 1


def _all_heads(length: int) -> Tensor:
    heads = torch.tensor(list(itertools.product(range(length + 1), repeat=length)))
    return heads[has_root(heads).all(1)]
