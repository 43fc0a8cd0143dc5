"""Linear chains: an output is one of K states for every position of a sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from typing_extensions import override

from torchssvm.core.arguments import check_costs, check_flags, check_int64, check_tensor, check_whole
from torchssvm.core.decoding import Decoding, OracleResult
from torchssvm.core.launch import arrays, by_example, fits_numba
from torchssvm.core.marginals import Marginals
from torchssvm.core.operators import on_host, upload
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.structure import Structure, digest, gated
from torchssvm.structures.chain import oracle as kernels
from torchssvm.structures.chain.nbest import NBest, nbest
from torchssvm.structures.chain.oracle import viterbi
from torchssvm.structures.chain.sum_product import sum_product
from torchssvm.structures.chain.transitions import Transitions
from torchssvm.structures.common import WeightedLabels, check_labels, check_potentials, mask_of
from torchssvm.structures.labelled import Indexed, Labelled, Places, every_labeling, leading, node_costs
from torchssvm.structures.max_marginals import tree_margins
from torchssvm.structures.sampling import sample_states


class Chain(Labelled, Indexed):
    """Label sequences with scores for single states and for neighbouring pairs.

    Potentials: ``emission`` ``[B, N, K]``; ``transition`` ``[B, K, K]`` (previous, next), the same at every position,
    or ``[B, N-1, K, K]`` with ``shared=False``. Labelings: ``[B, N]`` int64, -1 beyond an example's length. Targets are
    labelings (values beyond the length are ignored), or :class:`WeightedLabels`.

    The loss is the Hamming loss, ``sum_t weight_t class_weight[target_t] [y_t != target_t]``.

    Args:
        num_states: K, the number of states.
        shared: Whether one transition matrix serves all positions of an example.
        normalize: Divide the loss by the length of the sequence, as the OCR experiments of the papers do. False counts
            wrong labels: for tags of text, and what :class:`SparseLinearChain` does unless it is given a structure.
        class_weight: ``[K]``, non-negative, by the target's state; None is 1 for all.
        transitions: Which sequences are outputs; None means that all are.

    Raises:
        TypeError: ``transitions`` are not :class:`Transitions`.
        ValueError: ``num_states`` is less than 1, or ``class_weight`` is not such a vector, or ``transitions`` are for
            another number of states.

    Example:
        >>> chain = Chain(num_states=2)
        >>> emission = torch.tensor([[[1.0, 0.0], [0.0, 0.1]]])
        >>> staying = torch.eye(2).unsqueeze(0)
        >>> chain.argmax(Potentials({"emission": emission, "transition": staying})).labeling
        tensor([[0, 0]])
    """

    single = "emission"
    _quick_to_decode = _target_is_labeling = True

    def __init__(
        self,
        num_states: int,
        *,
        shared: bool = True,
        normalize: bool = True,
        class_weight: Tensor | None = None,
        transitions: Transitions | None = None,
    ) -> None:
        num_states = check_whole(num_states, "num_states")
        check_flags(shared=shared, normalize=normalize)
        if transitions is not None and not isinstance(transitions, Transitions):
            raise TypeError(f"transitions must be Transitions, or None, not a {type(transitions).__name__}")
        if transitions is not None and len(transitions.first) != num_states:
            raise ValueError(f"transitions are for {len(transitions.first)} states, and num_states={num_states}")
        self.num_states = num_states
        self.shared = shared
        self.normalize = normalize
        self.class_weight = check_costs(class_weight, "class_weight", num_states)
        self.transitions = transitions

    def argmax(self, potentials: Potentials) -> Decoding:
        """Viterbi; ties go to the smallest state, decided from the last position to the first."""
        potentials = self.restricted(potentials)
        labels, value = viterbi(potentials.tensors["emission"], potentials.tensors["transition"], potentials.lengths)
        return Decoding(labels, value)

    def marginals(self, potentials: Potentials) -> Marginals:
        """Sum-product (forward-backward)."""
        potentials = self.restricted(potentials)
        lengths = potentials.lengths
        emission, transition, log_partition = sum_product(
            potentials.tensors["emission"], potentials.tensors["transition"], lengths
        )
        return Marginals({"emission": emission, "transition": transition}, log_partition)

    def _sample(self, potentials: Potentials, n: int, generator: torch.Generator | None) -> Tensor:
        restricted = self.restricted(potentials)
        emission, transition = restricted["emission"], restricted["transition"]
        if self.shared:  # marginals of each pair of neighbours by itself
            transition = transition.unsqueeze(1).expand(-1, emission.shape[1] - 1, -1, -1)
        states, pairs, _ = sum_product(emission.double(), transition.double(), restricted.lengths)
        pairs = torch.cat([pairs.new_zeros(len(pairs), 1, *pairs.shape[2:]), pairs], 1)  # by the second of a pair
        place = torch.arange(emission.shape[1], device=emission.device)
        depth = place.where(mask_of(restricted.lengths, emission), -1)
        return sample_states(states, pairs, (place - 1).expand_as(depth), depth, n, generator)

    @gated
    def nbest(self, potentials: Potentials, n: int) -> NBest:
        """The n best outputs of every example, in descending order; ties may come in any order.

        Args:
            n: How many, at least 1.

        Raises:
            ValueError: ``n`` is less than 1, or scores are not finite.
            TypeError: ``n`` is not a number.

        Example:
            >>> scores = torch.tensor([[[1.0, 0.0], [0.0, 0.25]]])
            >>> best = Chain(2).nbest(Potentials({"emission": scores, "transition": torch.zeros(1, 2, 2)}), n=2)
            >>> best.labelings, best.values
            (tensor([[[0, 1],
                     [0, 0]]]), tensor([[1.2500, 1.0000]], dtype=torch.float64))
        """
        n = check_whole(n, "n")
        restricted = self.restricted(potentials)
        lengths = mask_of(potentials.lengths, restricted["emission"]).sum(1).cpu()
        return nbest(restricted["emission"], restricted["transition"], lengths, n)

    def max_marginals(self, potentials: Potentials) -> Tensor:
        """Margins of each state at each position, ``[B, N, K]``."""
        restricted = self.restricted(potentials)
        emission, transition = restricted["emission"], restricted["transition"]
        if not self.shared:  # by the child: the first position has none
            transition = torch.cat([transition.new_zeros(len(transition), 1, *transition.shape[2:]), transition], 1)
        labels = self.argmax(potentials).labeling
        place = torch.arange(emission.shape[1], device=emission.device)
        return tree_margins(emission, transition, place - 1, torch.where(labels >= 0, place, -1), labels)

    def restricted(self, potentials: Potentials) -> Potentials:
        """The potentials that are decoded: ``-inf`` where :attr:`transitions` forbid a state or a pair."""
        return potentials if self.transitions is None else self.transitions.restrict(potentials.detach())

    def _shapes(self, labeling: Tensor | WeightedLabels) -> dict[str, tuple[int, ...]]:
        longest, states = leading(labeling)[0].shape[1], self.num_states
        pairs = (states, states) if self.shared else (max(longest - 1, 0), states, states)
        return {"emission": (longest, states), "transition": pairs}

    def _places(self, labels: Tensor) -> Places:  # type: ignore[override]
        real, known, states = labels >= 0, labels.clamp(min=0), self.num_states
        position = torch.arange(labels.shape[2], device=labels.device)
        pairs = known[:, :, :-1] * states + known[:, :, 1:]
        pairs = pairs if self.shared else pairs + position[:-1] * states**2
        return [("emission", known + position * states, real), ("transition", pairs, real[:, :, :-1] & real[:, :, 1:])]

    @override
    def _examine(self, labeling: Tensor, target: Tensor | WeightedLabels, potentials: Potentials) -> OracleResult:
        # Summed as in `relative_scores`, so that decoded and cached labelings tie alike.
        scores, tensors = self._scores(self._stack(labeling, target), potentials), potentials.tensors
        total = tensors["emission"].detach().sum((1, 2)) + by_example(tensors["transition"]).detach().sum((1, 2, 3))
        score = scores[:, 0] - scores[:, 1] + 0.0 * total  # NaN where a potential is not finite
        return OracleResult(labeling, score, self.loss(labeling, target))

    @override
    def _scores(self, labelings: list[Tensor], potentials: Potentials) -> Tensor:
        emission, transition = potentials.tensors["emission"], potentials.tensors["transition"]
        labels, pairs = labelings[0].contiguous(), by_example(transition)
        if not fits_numba(labels, emission, pairs):
            return super()._scores(labelings, potentials)
        total = torch.empty(labels.shape[:2], dtype=torch.float64)
        if not kernels.sum_scores(*arrays(labels, emission, pairs, total)):
            raise ValueError(f"labels up to {int(labels.max())}: states are 0 to {self.num_states - 1}")
        return total

    @override
    def _add(self, parts: Parts, labelings: list[Tensor], mass: Tensor) -> Parts:
        emission, transition = parts["emission"], parts["transition"]
        labels, pairs = labelings[0].contiguous(), transition.unsqueeze(1) if self.shared else transition
        if not fits_numba(labels, emission, pairs):
            return super()._add(parts, labelings, mass)
        kernels.add_parts(*arrays(labels, mass.to(torch.float64).contiguous(), emission, pairs))
        return parts

    def check_target(self, target: Tensor | WeightedLabels, potentials: Potentials) -> Tensor | WeightedLabels:
        """Check shapes, lengths, labels and weights; write -1 beyond each length."""
        batch, longest, states = potentials["emission"].shape
        labels = target.labels if isinstance(target, WeightedLabels) else target
        given = on_host(check_int64(labels, "target", (batch, longest), ", a state for each position"))
        lengths = None if potentials.lengths is None else on_host(potentials.lengths)
        real = mask_of(lengths, given)
        check_labels(given, states, real)
        labels = upload(given.masked_fill(~real, -1), potentials.device)
        if self.transitions is not None:
            self.transitions.check(labels)
        if not isinstance(target, WeightedLabels):
            return labels
        real = labels >= 0
        node_costs(check_tensor(target.weights, "target.weights"), real)
        return WeightedLabels(labels, target.weights.masked_fill(~real, 0.0))

    @override
    def _check_potentials(self, potentials: Potentials) -> None:
        states, steps = self.num_states, () if self.shared else ("N-1",)
        shapes = {"emission": ("B", "N", states), "transition": ("B", *steps, states, states)}
        check_potentials(potentials, shapes)

    @override
    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        if potentials.lengths is None or potentials.ragged:
            return {}
        real = mask_of(potentials.lengths, potentials["emission"])
        places = {"emission": real.unsqueeze(2)}
        return places if self.shared else {**places, "transition": real[:, 1:, None, None]}

    def _extends(self, other: Structure) -> bool:
        """Whether ``other`` is this chain restricted to its first states."""
        if not isinstance(other, Chain):
            return False
        mine, theirs = self.transitions, other.transitions
        if mine is not theirs and (mine is None or theirs is None or not mine.extends(theirs)):
            return False
        size = min(other.num_states, self.num_states)
        weight = None if self.class_weight is None else self.class_weight[:size]
        less = Chain(size, shared=self.shared, normalize=self.normalize, class_weight=weight, transitions=theirs)
        return type(self) is Chain and less.same_as(other)

    @override
    def _plain(self) -> nn.Module:
        from torchssvm.structures.chain.plain import ChainDecoder

        return ChainDecoder(self)

    def enumerate(self, potentials: Potentials) -> Iterator[Tensor]:
        """All K^N sequences, or those that :attr:`transitions` allow."""
        real = mask_of(potentials.lengths, potentials["emission"])
        some: Tensor = self.argmax(potentials).labeling if self.transitions is not None else real
        for labels in every_labeling(self.num_states, real):
            if self.transitions is not None:
                allowed = self.transitions.allows(labels)
                if not bool(allowed.any()):
                    continue
                labels = torch.where(allowed.unsqueeze(1), labels, some)  # it may be an output of some examples only
            yield labels

    def __repr__(self) -> str:
        weighted = "" if self.class_weight is None else f", class_weight={digest(self.class_weight)}"
        allowed = "" if self.transitions is None else f", transitions={self.transitions}"
        return f"Chain({self.num_states}, shared={self.shared}, normalize={self.normalize}{weighted}{allowed})"
