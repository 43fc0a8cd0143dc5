"""Linear chains: an output is one of K states for every position of a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_costs, check_flags, check_int64, check_tensor, check_whole
from torchssvm.core.launch import arrays, by_example, fits_numba
from torchssvm.core.marginals import Marginals
from torchssvm.core.operators import constant, on_host, upload
from torchssvm.core.potentials import Parts, Potentials
from torchssvm.core.structure import Decoding, OracleResult, Structure, digest, gated
from torchssvm.core.triton_support import fits_triton
from torchssvm.structures.chain import oracle as kernels
from torchssvm.structures.chain.labelings import chain_parts, chain_scores
from torchssvm.structures.chain.nbest import NBest, nbest
from torchssvm.structures.chain.oracle import viterbi
from torchssvm.structures.chain.sum_product import sum_product
from torchssvm.structures.chain.transitions import Transitions
from torchssvm.structures.common import WeightedLabels, check_labels, check_lengths
from torchssvm.structures.labelled import Indexed, Labelled, Places, every_labeling, real_rows, zeros_like
from torchssvm.structures.max_marginals import tree_margins

_NONE = torch.empty(0, 0, dtype=torch.float64)


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
    quick_to_decode = target_is_labeling = True

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

    def augmented_argmax(self, potentials: Potentials, target: Tensor | WeightedLabels) -> Decoding:
        """Viterbi with the Hamming loss added to the emissions."""
        emission, labels, costs = potentials.tensors["emission"], _labels(target), self._token_costs(target)
        fits = labels.shape == emission.shape[:2]
        augmented = torch.empty_like(emission) if fits and fits_numba(emission, labels) else None
        if augmented is not None:
            tables = arrays(emission, costs, labels, augmented)
            if not kernels.augment(*tables[:2], 1.0, self.normalize, *tables[2:]):
                augmented = None
        elif fits and not len(costs) and fits_triton(emission, labels):
            from torchssvm.structures.chain.labels_triton import augment_triton

            augmented = augment_triton(emission, labels, self.normalize)
        if augmented is None:
            costs = self.costs(target).to(emission.dtype).unsqueeze(2)
            # The cost at the target is set to 0: adding it and subtracting it again would leave a rounding error.
            augmented = emission + costs.expand_as(emission).scatter(2, labels.clamp(min=0).unsqueeze(2), 0.0)
        return self.argmax(potentials.replace({**potentials.tensors, "emission": augmented}))

    def marginals(self, potentials: Potentials) -> Marginals:
        """Sum-product (forward-backward)."""
        potentials = self.restricted(potentials)
        lengths = potentials.lengths
        emission, transition, log_partition = sum_product(
            potentials.tensors["emission"], potentials.tensors["transition"], lengths
        )
        return Marginals({"emission": emission, "transition": transition}, log_partition)

    @gated
    def nbest(self, potentials: Potentials, n: int) -> NBest:
        """The n best outputs of every example, the first one that of :meth:`argmax`; equals in no certain order.

        Args:
            n: How many, at least 1.

        Raises:
            ValueError: ``n`` is less than 1, or scores are not finite.
            TypeError: ``n`` is not a number.

        Example:
            >>> scores = torch.tensor([[[1.0, 0.0], [0.0, 0.25]]])
            >>> found = Chain(2).nbest(Potentials({"emission": scores, "transition": torch.zeros(1, 2, 2)}), n=2)
            >>> found.labelings, found.values
            (tensor([[[0, 1],
                     [0, 0]]]), tensor([[1.2500, 1.0000]], dtype=torch.float64))
        """
        n = check_whole(n, "n")
        emission, transition = _chain_potentials(potentials)
        self._check_tables(emission, transition)
        batch, longest, _ = emission.shape
        real = check_lengths(potentials.lengths, batch, longest, emission.device)
        restricted = self.restricted(potentials).tensors
        return nbest(restricted["emission"], restricted["transition"], real.sum(1).cpu(), n)

    def max_marginals(self, potentials: Potentials) -> Tensor:
        """Of each state at each position, ``[B, N, K]``."""
        found = self.restricted(potentials)
        emission, transition = found["emission"], found["transition"]
        if not self.shared:  # by the child: the first position has none
            transition = torch.cat([transition.new_zeros(len(transition), 1, *transition.shape[2:]), transition], 1)
        labels = self.argmax(potentials).labeling
        place = torch.arange(emission.shape[1], device=emission.device)
        return tree_margins(emission, transition, place - 1, torch.where(labels >= 0, place, -1), labels)

    def restricted(self, potentials: Potentials) -> Potentials:
        """The potentials that are decoded: ``-inf`` where :attr:`transitions` forbid a state or a pair."""
        return potentials if self.transitions is None else self.transitions.restrict(potentials.detach())

    def _shapes(self, labeling: Tensor | WeightedLabels) -> dict[str, tuple[int, ...]]:
        longest, states = _labels(labeling).shape[1], self.num_states
        pairs = (states, states) if self.shared else (max(longest - 1, 0), states, states)
        return {"emission": (longest, states), "transition": pairs}

    def _places(self, labels: Tensor) -> Places:  # type: ignore[override]
        real, known, states = labels >= 0, labels.clamp(min=0), self.num_states
        position = torch.arange(labels.shape[2], device=labels.device)
        pairs = known[:, :, :-1] * states + known[:, :, 1:]
        pairs = pairs if self.shared else pairs + position[:-1] * states**2
        return [("emission", known + position * states, real), ("transition", pairs, real[:, :, 1:])]

    def _scores(self, labelings: list[Tensor], potentials: Potentials) -> Tensor:
        found = chain_scores(labelings[0], potentials.tensors["emission"], potentials.tensors["transition"])
        return super()._scores(labelings, potentials) if found is None else found

    def _add(self, parts: Parts, labelings: list[Tensor], mass: Tensor) -> Parts:
        """``parts`` are zeros, as all callers give them."""
        found = chain_parts(labelings[0], mass, parts["emission"], parts["transition"])
        return super()._add(parts, labelings, mass) if found is None else found

    def difference(
        self, labeling: Tensor | WeightedLabels, target: Tensor | WeightedLabels, potentials: Potentials
    ) -> Parts:
        """Parts of the labeling less parts of the target."""
        return self._scatter(zeros_like(potentials), labeling, target, potentials)

    def add_difference(
        self,
        parts: Parts,
        labeling: Tensor | WeightedLabels,
        target: Tensor | WeightedLabels,
        potentials: Potentials,
    ) -> Parts:
        """As :meth:`Structure.add_difference`; padding does not change."""
        return self._scatter(parts, labeling, target, potentials)

    def _scatter(self, parts: Parts, labeling: Any, target: Any, potentials: Potentials) -> Parts:
        """Add the states and pairs of ``labeling`` and subtract those of ``target``; may write into ``parts``."""
        emission, transition = parts["emission"], parts["transition"]
        found, true = _labels(labeling), _labels(target)
        self._check_tables(emission, transition)
        pairs = transition.unsqueeze(1) if self.shared else transition
        fits = found.shape == true.shape == emission.shape[:2] and fits_numba(emission, pairs, found, true)
        if fits:
            tables = arrays(found, true, emission, pairs)
            if kernels.scatter(*tables, np.zeros_like(tables[3], shape=transition.shape[-2:])):
                return parts
        if self.shared and self._on_device(found, true, emission, transition):
            from torchssvm.structures.chain.labels_triton import add_difference_triton

            added = add_difference_triton(found, true, emission, transition)
            return dict(zip(("emission", "transition"), added, strict=True))
        # What labelings share cancels before it is added: x + 1 - 1 rounds a small x.
        difference = super().difference(labeling, target, potentials)
        return {name: tensor + difference[name] for name, tensor in parts.items()}

    def examine(
        self, labeling: Tensor | WeightedLabels, target: Tensor | WeightedLabels, potentials: Potentials
    ) -> OracleResult:
        """Score and loss from looked-up potentials: 4 T - 2 reads for length T, and a search of all for NaN."""
        emission, transition, found = (
            potentials.tensors["emission"],
            potentials.tensors["transition"],
            _labels(labeling),
        )
        self._check_tables(emission, transition)
        labels = _labels(target)
        costs, one = self._token_costs(target), by_example(transition)
        if fits_numba(emission, one, found, labels) and found.shape == labels.shape == emission.shape[:2]:
            tables, (score, loss) = arrays(found, labels, costs, emission, one), np.empty((2, labels.shape[0]))
            if kernels.examine(*tables[:3], 1.0, self.normalize, *tables[3:], score, loss):
                return OracleResult(labeling, torch.from_numpy(score), torch.from_numpy(loss))
        if not len(costs) and self._on_device(found, labels, emission, one):
            from torchssvm.structures.chain.labels_triton import examine_triton

            return OracleResult(labeling, *examine_triton(found, labels, emission, transition, self.normalize))
        return super().examine(labeling, target, potentials)

    def _check_tables(self, emission: Tensor, transition: Tensor) -> None:
        """Raise ValueError unless these are scores, or parts, of states and pairs."""
        batch, longest = emission.shape[:2]
        pairs = (self.num_states, self.num_states)
        wanted = (batch, *pairs) if self.shared else (batch, longest - 1, *pairs)
        if emission.shape[2:] != pairs[:1] or transition.shape != wanted:
            raise ValueError(
                f"emission must be [B, N, {self.num_states}] and transition {list(wanted)}, got "
                f"{list(emission.shape)} and {list(transition.shape)}"
            )

    def _on_device(self, found: Tensor, true: Tensor, emission: Tensor, pairs: Tensor) -> bool:
        """Whether the Triton kernels take these labels (checked ones, and those of the oracle) and tables."""
        fits = found.shape == true.shape == emission.shape[:2] and emission.dtype == pairs.dtype
        return fits and fits_triton(found, true, emission, pairs)

    def resize(self, labelings: Tensor, target: Tensor | WeightedLabels) -> Tensor:
        """Cropped or padded to the length of this batch."""
        return super().resize(labelings, _labels(target))

    def check_target(self, target: Tensor | WeightedLabels, potentials: Potentials) -> Tensor | WeightedLabels:
        """Check shapes, lengths, labels and weights; write -1 beyond each length."""
        emission, transition = _chain_potentials(potentials)
        batch, longest, states = emission.shape
        pair_shape = [batch, states, states] if self.shared else [batch, max(longest - 1, 0), states, states]
        if states != self.num_states or list(transition.shape) != pair_shape:
            raise ValueError(
                f"potentials of {self} must be emission [B, N, {self.num_states}] and transition "
                f"{pair_shape}; got {list(emission.shape)} and {list(transition.shape)}"
            )
        labels = check_int64(_labels(target), "target", (batch, longest), ", a state for each position")
        labels = self._check_labels(labels, potentials)
        if self.transitions is not None:
            self.transitions.check(labels)
        if not isinstance(target, WeightedLabels):
            return labels
        real = labels >= 0
        weights = check_tensor(target.weights, "target.weights")
        if weights.shape != labels.shape or not bool(((weights >= 0) & torch.isfinite(weights))[real].all()):
            raise ValueError(f"weights must be finite, non-negative and shaped like the labels {list(labels.shape)}")
        return WeightedLabels(labels, weights.masked_fill(~real, 0.0))

    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        """The positions and pairs of each example, where ``ragged`` does not say it."""
        if potentials.lengths is None or potentials.ragged:
            return {}
        real = real_rows(potentials, "emission")
        own = {"emission": real.unsqueeze(2)}
        return own if self.shared else {**own, "transition": real[:, 1:, None, None]}

    def extends(self, other: Structure) -> bool:
        """Also a chain of more states; the first ones are those of ``other``."""
        if not isinstance(other, Chain):
            return False
        mine, theirs = self.transitions, other.transitions
        if mine is not theirs and (mine is None or theirs is None or not mine.extends(theirs)):
            return False
        size = min(other.num_states, self.num_states)
        weight = None if self.class_weight is None else self.class_weight[:size]
        less = Chain(size, shared=self.shared, normalize=self.normalize, class_weight=weight, transitions=theirs)
        return type(self) is Chain and less.same_as(other)

    def _token_costs(self, target: Tensor | WeightedLabels) -> Tensor:
        """``costs(target)`` for the kernels; empty if all tokens of an example cost the same."""
        uniform = self.class_weight is None and not isinstance(target, WeightedLabels)
        return _NONE if uniform else self.costs(target)

    def _check_labels(self, labels: Tensor, potentials: Potentials) -> Tensor:
        """The labels with -1 beyond each length."""
        held = on_host(labels)
        checked = self._mask(held, None if potentials.lengths is None else on_host(potentials.lengths), potentials)
        if held is labels:
            return checked
        return labels if torch.equal(checked, held) else upload(checked, labels.device)

    def _mask(self, labels: Tensor, lengths: Tensor | None, potentials: Potentials) -> Tensor:
        """As :meth:`_check_labels`, on the CPU."""
        batch, longest = labels.shape
        if lengths is not None and potentials.max_length is not None and potentials.max_length <= longest:
            if fits_numba(labels, lengths):
                given = arrays(labels, lengths)
                if kernels.mask(*given, self.num_states, masked := np.empty_like(given[0])):
                    return torch.from_numpy(masked)
            real = torch.arange(longest, device=labels.device) < lengths.unsqueeze(1)
        else:
            real = check_lengths(lengths, batch, longest, labels.device)
        check_labels(labels, self.num_states, real)
        return labels.masked_fill(~real, -1)

    def _plain(self) -> nn.Module:
        """Viterbi."""
        from torchssvm.structures.chain.plain import ChainDecoder

        return ChainDecoder(self)

    def enumerate(self, potentials: Potentials) -> Iterator[Tensor]:
        """All K^N sequences, or those that :attr:`transitions` allow."""
        batch, longest, states = potentials.tensors["emission"].shape
        real = check_lengths(potentials.lengths, batch, longest, potentials.device)
        some: Tensor = self.argmax(potentials).labeling if self.transitions is not None else real
        for labels in every_labeling(states, real):
            if self.transitions is not None:
                allowed = self.transitions.allows(labels)
                if not bool(allowed.any()):
                    continue
                labels = torch.where(allowed.unsqueeze(1), labels, some)  # it may be an output of some examples only
            yield labels

    def costs(self, target: Tensor | WeightedLabels) -> Tensor:
        """The cost of a wrong label at each token: ``[B, N]`` float64, zero in the padding."""
        labels = _labels(target)
        real = labels >= 0
        costs = real.to(torch.float64)
        if isinstance(target, WeightedLabels):
            costs = costs * target.weights.to(torch.float64)
        if self.class_weight is not None:
            costs = costs * constant(self.class_weight, labels.device)[labels.clamp(min=0)]
        if self.normalize:
            costs = costs / real.sum(1, keepdim=True).clamp(min=1)
        return costs

    def __repr__(self) -> str:
        weighted = "" if self.class_weight is None else f", class_weight={digest(self.class_weight)}"
        allowed = "" if self.transitions is None else f", transitions={self.transitions}"
        return f"Chain({self.num_states}, shared={self.shared}, normalize={self.normalize}{weighted}{allowed})"


def _chain_potentials(potentials: Potentials) -> tuple[Tensor, Tensor]:
    if potentials.tensors.keys() != {"emission", "transition"} or potentials.tensors["emission"].ndim != 3:
        raise ValueError(f"a chain takes potentials emission [B, N, K] and transition, got {potentials}")
    return potentials.tensors["emission"], potentials.tensors["transition"]


def _labels(labeling: Tensor | WeightedLabels) -> Tensor:
    return labeling.labels if isinstance(labeling, WeightedLabels) else labeling
