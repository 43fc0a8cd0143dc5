"""Max oracles of slack rescaling: ``max_y L(y) (1 + <p(y) - p(target), theta>)``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_whole, row_names
from torchssvm.core.potentials import Potentials, conform, inner
from torchssvm.core.structure import Decoding, Labeling, Structure
from torchssvm.structures.arguments import check_lengths
from torchssvm.structures.chain.by_level import viterbi_by_level
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.multiclass.structure import Multiclass

ORACLES = """\
  EveryClass()       exact, for Multiclass: all classes at once
  EveryLossLevel()   exact, for Chain: Viterbi with the loss so far as part of the state
  BruteForceSearch() exact, for structures that define enumerate(): all outputs of a small problem
or a SlackOracle of your own"""


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

        Args:
            structure: The structure that is rescaled.
            potentials: The batch.
            target: As ``structure.check_target`` returned it.

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

    def check(self, structure: Structure) -> None:
        """Multiclass only."""
        _require(self, structure, Multiclass)

    def __call__(self, structure: Structure, potentials: Potentials, target: Labeling) -> Decoding:
        """Maximise the product over the classes."""
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

    def check(self, structure: Structure) -> None:
        """Chains only."""
        _require(self, structure, Chain)

    def __call__(self, structure: Structure, potentials: Potentials, target: Labeling) -> Decoding:
        """Maximise the product over the losses.

        Raises:
            ValueError: The costs of an example's tokens are not whole multiples of the smallest, or M is too large.
        """
        assert isinstance(structure, Chain)
        emission = potentials["emission"]
        real = check_lengths(potentials.lengths, emission.shape[0], emission.shape[1], emission.device)
        levels, unit = self._levels(structure, target)
        decoded = structure.restricted(potentials)
        found = viterbi_by_level(decoded["emission"], decoded["transition"], levels, real)
        own = inner(conform(structure.parts(target), potentials, "parts(target)"), potentials.tensors)
        ladder = torch.arange(found.scores.shape[1], device=own.device, dtype=torch.float64)
        losses = unit.unsqueeze(1) * ladder
        value, level = (losses * (1.0 + found.scores.to(torch.float64) - own.unsqueeze(1))).max(1)
        return Decoding(found.labels(level), value)

    def _levels(self, structure: Structure, target: Labeling) -> tuple[Tensor, Tensor]:
        """The cost of each state at each token, ``[B, N, K]`` int64, and its units, ``[B]`` float64."""
        delta, constant = structure.loss_potentials(target)
        if isinstance(delta, Tensor) or delta.keys() != {"emission"} or bool(constant.any()):
            raise ValueError("EveryLossLevel needs a loss that is a sum of token costs: use another of\n" + ORACLES)
        costs = delta["emission"].to(torch.float64)
        smallest = torch.where(costs > 0, costs, torch.inf).flatten(1).amin(1)
        unit = torch.where(torch.isfinite(smallest), smallest, 1.0)
        multiples = costs / unit.view(-1, 1, 1)
        levels = multiples.round()
        if bool((wrong := ((multiples - levels).abs() > 1e-6 * levels).flatten(1).any(1)).any()):
            raise ValueError(
                f"the token costs of {row_names(wrong.nonzero().flatten().tolist())} are not whole multiples of the "
                f"smallest one, as EveryLossLevel needs: use other weights, or another of\n{ORACLES}"
            )
        if (largest := int(levels.amax(2).sum(1).max())) > self.most:
            raise ValueError(
                f"the loss has {largest} levels, and EveryLossLevel(most={self.most}) takes time and memory for each: "
                f"raise `most`, or use another of\n{ORACLES}"
            )
        return levels.to(torch.int64), unit


class BruteForceSearch(SlackOracle):
    """Exact for structures that enumerate their outputs: tries them all; ties go to the first.

    The loss may be any function of output and target.

    Args:
        most: The largest accepted number of outputs.

    Example:
        >>> structure = SlackRescaling(Chain(2), oracle=BruteForceSearch(most=32))
        >>> hinge = StructuredHinge(structure)
        >>> hinge(LinearChain(4, 2)(tokens), tags.clamp(max=1)).item()  # weights of zero: the largest loss
        1.0
    """

    def __init__(self, most: int = 20_000) -> None:
        self.most = check_whole(most, "most")

    def check(self, structure: Structure) -> None:
        """Structures that define ``enumerate``."""
        if type(structure).enumerate is Structure.enumerate:
            raise TypeError(
                f"{type(structure).__name__} does not define enumerate(), and BruteForceSearch needs it. "
                f"There are:\n{ORACLES}"
            )

    def __call__(self, structure: Structure, potentials: Potentials, target: Labeling) -> Decoding:
        """Maximise the product over all outputs.

        Raises:
            ValueError: The structure lists no outputs, or too many.
        """
        outputs = structure.enumerate(potentials)
        best: Labeling = None
        value: Tensor | None = None
        for number, labeling in enumerate(() if outputs is None else outputs, 1):
            if number > self.most:
                raise ValueError(
                    f"{structure} has more outputs than BruteForceSearch(most={self.most}) takes: raise `most`, or use "
                    f"another of\n{ORACLES}"
                )
            gain = inner(structure.difference(labeling, target, potentials), potentials.tensors)
            product = structure.loss(labeling, target).to(torch.float64) * (1.0 + gain)
            if value is None:
                best, value = labeling, product
            else:
                better = product > value
                best, value = choose(better, labeling, best), torch.where(better, product, value)
        if value is None:
            raise ValueError(f"{structure} lists no outputs of these potentials: use another of\n{ORACLES}")
        return Decoding(best, value)


def choose(first: Tensor, a: Any, b: Any) -> Any:
    """``a`` in the rows where ``first`` is True, ``b`` elsewhere; for tensors or tuples of tensors."""
    if isinstance(a, tuple):
        chosen = [choose(first, x, y) for x, y in zip(a, b, strict=True)]
        return type(a)(*chosen) if hasattr(a, "_fields") else tuple(chosen)
    return torch.where(first.view(-1, *[1] * (a.ndim - 1)), a, b)


def _require(oracle: SlackOracle, structure: Structure, kind: type[Structure]) -> None:
    if not isinstance(structure, kind):
        raise TypeError(
            f"{type(oracle).__name__} is for {kind.__name__}, not for {type(structure).__name__}. There are:\n{ORACLES}"
        )
