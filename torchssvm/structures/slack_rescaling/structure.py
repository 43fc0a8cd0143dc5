"""Slack rescaling: the loss multiplies the margin instead of being added to it."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from torchssvm.core.arguments import check_type, check_whole
from torchssvm.core.decoding import Decoding, Labeling, each_labeling, shifted
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.potentials import Parts, Potentials, conform, inner, scale
from torchssvm.core.structure import Structure, reject_rows
from torchssvm.structures.chain.oracle import viterbi_by_level
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.common import Around, mask_of
from torchssvm.structures.hidden_states.structure import HiddenStates
from torchssvm.structures.multiclass.structure import Multiclass


class SlackOracle(ABC):
    """Finds the output with the largest product of its loss and its margin violation.

    Example:
        >>> oracles = {Multiclass(3): EveryClass(), Chain(3): EveryLossLevel(), Chain(2): BruteForceSearch()}
        >>> all(isinstance(oracle, SlackOracle) for oracle in oracles.values())
        True
        >>> [SlackRescaling(structure, oracle).oracle for structure, oracle in oracles.items()]
        [EveryClass(), EveryLossLevel(most=1000), BruteForceSearch(most=20000)]
    """

    @abstractmethod
    def check(self, structure: Structure) -> None:
        """Raise TypeError if the oracle cannot decode this structure."""

    @abstractmethod
    def __call__(self, structure: Structure, potentials: Potentials, target: Labeling) -> Decoding:
        """Maximise ``product(y) = loss(y, target) (1 + <parts(y) - parts(target), potentials>)`` for every example.

        Returns:
            A decoding whose value and bound (``[B]`` float64) are products, at least 0 (the target's product).
        """

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in sorted(vars(self).items()))
        return f"{type(self).__name__}({shown})"


class EveryClass(SlackOracle):
    """Exact for :class:`Multiclass`: compares the products of all K classes; ties go to the smallest class.

    Example:
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, structure=SlackRescaling(Multiclass(3), EveryClass())).exact
        True
    """

    @override
    def check(self, structure: Structure) -> None:
        check_type(structure, Multiclass, "structure", "a Multiclass, as oracle is EveryClass()")

    @override
    def __call__(self, structure: Structure, potentials: Potentials, target: Labeling) -> Decoding:
        losses, _ = structure.loss_potentials(target)
        assert isinstance(losses, Tensor)
        scores = potentials.single.to(torch.float64)
        value, labels = (losses * (1.0 + scores - scores.gather(1, target.unsqueeze(1)))).max(1)
        return Decoding(labels, value)


class EveryLossLevel(SlackOracle):
    """Exact for :class:`Chain` if token costs are integer multiples of a unit: O(N M K^2) for a loss of M units.

    Viterbi with the loss so far as part of the state finds the best sequence for each loss; then the products are
    compared. For the Hamming loss, normalised or not, the unit is one error: M = N.

    Args:
        most: The largest accepted M; time and memory are proportional to M.

    Example:
        >>> structure = SlackRescaling(Chain(3), EveryLossLevel())
        >>> hinge = StructuredHinge(structure)
        >>> hinge(LinearChain(4, 3)(tokens), tags)  # weights of zero: the largest loss
        tensor(1., grad_fn=<ToCopyBackward0>)
    """

    def __init__(self, most: int = 1000) -> None:
        self.most = check_whole(most, "most")

    @override
    def check(self, structure: Structure) -> None:
        check_type(structure, Chain, "structure", "a Chain, as oracle is EveryLossLevel()")

    def __call__(self, structure: Structure, potentials: Potentials, target: Labeling) -> Decoding:
        """Maximise the product over the losses.

        Raises:
            ValueError: The costs of an example's tokens are not whole multiples of the smallest, or M is too large.
        """
        assert isinstance(structure, Chain)
        emission = potentials["emission"]
        real = mask_of(potentials.lengths, emission)
        levels, unit = self._levels(structure, target)
        decoded = structure.restricted(potentials)
        best = viterbi_by_level(decoded["emission"], decoded["transition"], levels, real)
        score = inner(conform(structure.parts(target), potentials, "parts(target)"), potentials.tensors)
        ladder = torch.arange(best.scores.shape[1], device=score.device, dtype=torch.float64)
        losses = unit.unsqueeze(1) * ladder
        value, level = (losses * (1.0 + best.scores.to(torch.float64) - score.unsqueeze(1))).max(1)
        return Decoding(best.labels(level), value)

    def _levels(self, structure: Structure, target: Labeling) -> tuple[Tensor, Tensor]:
        """The cost of each state at each token, ``[B, N, K]`` int64, and its units, ``[B]`` float64."""
        delta, constant = structure.loss_potentials(target)
        if isinstance(delta, Tensor) or delta.keys() != {"emission"} or bool(constant.any()):
            raise ValueError("oracle=EveryLossLevel() needs a sum of token costs as loss: use BruteForceSearch()")
        costs = delta["emission"].to(torch.float64)
        smallest = torch.where(costs > 0, costs, torch.inf).flatten(1).amin(1)
        unit = torch.where(torch.isfinite(smallest), smallest, 1.0)
        multiples = costs / unit.view(-1, 1, 1)
        levels = multiples.round()
        wrong = ((multiples - levels).abs() > 1e-6 * levels).flatten(1).any(1)
        reject_rows(wrong, "token costs of {rows} are not whole multiples of the smallest: use BruteForceSearch()")
        if (largest := int(levels.amax(2).sum(1).max())) > self.most:
            raise ValueError(f"most={self.most} is less than the {largest} levels of the loss: raise it")
        return levels.to(torch.int64), unit


class BruteForceSearch(SlackOracle):
    """Exact for structures that enumerate their outputs: tries them all; ties go to the first.

    The loss may be any function of output and target.

    Example:
        >>> structure = SlackRescaling(Chain(2), oracle=BruteForceSearch(most=32))
        >>> hinge = StructuredHinge(structure)
        >>> hinge(LinearChain(4, 2)(tokens), tags.clamp(max=1)).item()  # weights of zero: the largest loss
        1.0
    """

    def __init__(self, most: int = 20_000) -> None:
        self.most = check_whole(most, "most")

    @override
    def check(self, structure: Structure) -> None:
        if type(structure).enumerate is Structure.enumerate:
            raise TypeError(f"structure={structure!r} has no enumerate(): use another oracle than BruteForceSearch()")

    def __call__(self, structure: Structure, potentials: Potentials, target: Labeling) -> Decoding:
        """Maximise the product over all outputs."""
        outputs = itertools.islice(structure.enumerate(potentials) or (), self.most + 1)
        count, best, value = 0, None, None
        for labeling in outputs:
            count += 1
            gain = inner(structure._difference(labeling, target, potentials), potentials.tensors)
            product = structure.loss(labeling, target).to(torch.float64) * (1.0 + gain)
            if value is None:
                best, value = labeling, product
            else:
                better = product > value
                best, value = choose(better, labeling, best), torch.where(better, product, value)
        if value is None or count > self.most:
            raise ValueError(
                f"structure={structure} lists {count if value is None else f'more than {self.most}'} outputs: raise "
                f"most={self.most}, or use another oracle"
            )
        return Decoding(best, value)


def choose(first: Tensor, a: Any, b: Any) -> Any:
    """``a`` in the rows where ``first`` is True, ``b`` elsewhere; for tensors or tuples of tensors."""
    if isinstance(a, tuple):
        chosen = [choose(first, x, y) for x, y in zip(a, b, strict=True)]
        return type(a)(*chosen) if hasattr(a, "_fields") else tuple(chosen)
    return torch.where(first.view(-1, *[1] * (a.ndim - 1)), a, b)


class SlackRescaling(Around):
    r"""Another structure, trained with slack rescaling instead of margin rescaling (Tsochantaridis et al., 2005).

    With ``psi_i(y) = p(y) - p(y_i)`` (times the head's linear map) and slack variables xi_i, margin rescaling requires
    ``-<psi_i(y), theta_i> >= L_i(y) - xi_i``. Slack rescaling requires the same margin 1 of every wrong output, and
    charges more if an output with a larger loss violates it: ``-<psi_i(y), theta_i> >= 1 - xi_i / L_i(y)`` if
    ``L_i(y) > 0``. Multiplied by ``L_i(y)``, this is a constraint of margin rescaling,

        ``-<L_i(y) psi_i(y), theta_i> >= L_i(y) - xi_i``,

    whose parts are multiplied by the loss: ``p(y) - p(y_i)`` becomes ``L_i(y) (p(y) - p(y_i))``. (An output with
    zero loss gives ``0 >= -xi_i``, like the target.) Hence

        ``H_i(w) = max_y L_i(y) (1 + <p(y) - p(y_i), theta_i>) = max_y L_i(y) + <L_i(y) (p(y) - p(y_i)), theta_i>``,

    so dual, steps, certificates and storages stay the same, with differences of parts rescaled. R of the convergence
    theorems becomes ``max_i,y L_i(y) |psi_i(y)|``.

    Only the max oracle changes: the product ``L_i(y) (1 + score difference)`` does not decompose over the parts. The
    ``oracle`` maximises it. Outputs far from the target need no large margin, and outputs with a small loss have little
    influence. With ``BruteForceSearch`` the loss need not decompose over the parts.

    Predictions, parts, loss and targets come from the wrapped structure. Use it by
    ``DualState.for_head(head, n, lam, structure=SlackRescaling(head.structure))``.

    Args:
        oracle: How the product is maximised, by a :class:`~torchssvm.structures.slack_rescaling.SlackOracle`. None
            means the exact one for ``structure``: ``EveryClass()`` for ``Multiclass``, ``EveryLossLevel()`` for
            ``Chain``, ``BruteForceSearch()`` for others that enumerate their outputs.

    Raises:
        TypeError: ``structure`` is not a structure, or is HiddenStates; or ``oracle`` (with None: every exact oracle)
            does not suit it.

    Example:
        >>> cost = torch.tensor([[0.0, 0.1, 1.0], [0.1, 0.0, 1.0], [1.0, 1.0, 0.0]])
        >>> structure = SlackRescaling(Multiclass(3, cost))
        >>> solve(LinearMulticlass(4, 3), data, lam=0.1, structure=structure).relative_gap <= 0.01
        True
    """

    def __init__(self, structure: Structure, oracle: SlackOracle | None = None) -> None:
        if not isinstance(structure, Structure) or isinstance(structure, SlackRescaling | HiddenStates):
            raise TypeError(f"structure={structure!r} must be one such as Chain(3), not rescaled or HiddenStates")
        self.structure = structure
        self.padding = structure.padding
        self.oracle = _default_oracle(structure) if oracle is None else oracle
        check_type(self.oracle, SlackOracle, "oracle", "a SlackOracle, such as BruteForceSearch()")
        self.oracle.check(structure)

    @override
    def by_position(self, labeling: Any) -> Any:
        return self.structure.by_position(labeling)

    @override
    def _plain(self) -> nn.Module | None:
        return self.structure.plain_decoder()

    def augmented_argmax(self, potentials: Potentials, target: Labeling) -> Decoding:
        """The output with the highest ``loss * (1 + score - target's score)``.

        Value and bound are this product plus the target's score, like the scores of other structures.
        """
        decoding = self.oracle(self.structure, potentials, target)
        score = inner(conform(self.structure.parts(target), potentials, "parts(target)"), potentials.tensors)
        return shifted(decoding, score)

    def _difference(self, labeling: Labeling, target: Labeling, potentials: Potentials) -> Parts:
        """``loss(labeling) (parts(labeling) - parts(target))``, the terms of the dual."""
        return scale(self.structure._difference(labeling, target, potentials), self.structure.loss(labeling, target))

    @override
    def relative_scores(self, labelings: Labeling, target: Labeling, potentials: Potentials) -> Tensor:
        return self._losses(labelings, target) * self.structure.relative_scores(labelings, target, potentials)

    @override
    def mean_difference(self, labelings: Labeling, mass: Tensor, target: Labeling, potentials: Potentials) -> Parts:
        rescaled = mass * self._losses(labelings, target)
        return self.structure.mean_difference(labelings, rescaled, target, potentials)

    def _mean_loss(self, psi: Parts, target: Labeling, potentials: Potentials) -> None:
        """None: psi holds outputs times their losses, which does not determine the mean loss."""
        return

    def _largest_gain(self, potentials: Potentials, target: Labeling) -> Tensor:
        """An upper bound of ``max_y loss(y) (score(y) - target's score)``, too high by at most the loss / 10 000."""
        many = 1e4  # scaling the potentials makes the 1 that the oracle adds negligible
        scaled = potentials.replace({name: many * tensor for name, tensor in potentials.tensors.items()})
        return find_corner(self, scaled, target).bound.clamp(min=0.0) / many

    def _losses(self, labelings: Labeling, target: Labeling) -> Tensor:
        columns = [self.structure.loss(labeling, target) for labeling in each_labeling(labelings)]
        return torch.stack(columns, 1).to(torch.float64)

    @override
    def loss(self, labeling: Labeling, target: Labeling) -> Tensor:
        return self.structure.loss(labeling, target)

    @override
    def loss_potentials(self, target: Labeling) -> tuple[Tensor | Mapping[str, Tensor], Tensor]:
        return self.structure.loss_potentials(target)

    def check_target(self, target: Labeling, potentials: Potentials) -> Labeling:
        """The wrapped structure's check.

        Raises:
            ValueError: Also where scores are known: they are counted with the loss, which must not be negative here.
        """
        if self.structure.known_scores(potentials) is not None:
            raise ValueError("potentials have known scores, as Situations(x, fixed=...): train without SlackRescaling")
        return self.structure.check_target(target, potentials)

    @override
    def _fingerprint(self) -> str:
        return f"SlackRescaling({self.structure._fingerprint()})"

    def __repr__(self) -> str:
        return f"SlackRescaling({self.structure!r}, oracle={self.oracle!r})"


def _default_oracle(structure: Structure) -> SlackOracle:
    if isinstance(structure, Multiclass):
        return EveryClass()
    if isinstance(structure, Chain):
        return EveryLossLevel()
    return BruteForceSearch()
