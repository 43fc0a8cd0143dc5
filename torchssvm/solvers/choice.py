"""Which solver trains a head: the user's, or the quickest that head, storage and memory allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from torchssvm.core.batch import tree_tensors
from torchssvm.core.memory import available_memory
from torchssvm.core.potentials import Potentials
from torchssvm.core.ranks import Ranks
from torchssvm.core.structure import Structure
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.storage import Storage
from torchssvm.dual.weights import Weights
from torchssvm.solvers.compiled.applies import reason_not_compiled
from torchssvm.solvers.compiled.head_adapter import find_adapter
from torchssvm.steps.block_steps import BlockSteps, check_block_steps
from torchssvm.steps.box_qp import BoxQP
from torchssvm.steps.cache import CacheOracle, MaxOracle, OracleRule
from torchssvm.steps.corrective import Corrective
from torchssvm.steps.direction import DirectionRule
from torchssvm.steps.frank_wolfe import FrankWolfe
from torchssvm.steps.line_search import LineSearch
from torchssvm.steps.pairwise import Pairwise
from torchssvm.steps.rules import check_rules

BATCH = 64
"""Examples of a step of the torch loop, where nobody says otherwise: more of them share the costs of Python."""

STORAGES: dict[str, type[Storage]] = {"labelings": Labelings, "mean_parts": MeanParts, "weights": Weights}
"""By the kind in checkpoints; what fits in memory is tried in this order."""

SHARE = 0.5
"""The largest share of the free memory that features, and that the blocks of the dual, may take unasked."""

LONG_VISIT = 1_000_000
"""Multiplications of a visit beyond which a head on a device is trained there: a thousand visits a second on a core."""

CPU = torch.device("cpu")


class Rules(NamedTuple):
    """Every rule of a solver; see :class:`Solver`."""

    direction: DirectionRule
    oracle: OracleRule
    storage: Storage
    block_steps: BlockSteps
    line_search: LineSearch | None


@dataclass(frozen=True, eq=False)
class Solver:
    """How a head is trained: the rules of a step, the storage of the dual's blocks, and the loop.

    What is None is chosen, to fit what is given; ``Solver()`` leaves all of it to the library (see :func:`choose`).

    Attributes:
        direction: The direction of a step, such as ``Pairwise()``.
        oracle: Whether to decode: ``MaxOracle()`` or ``CacheOracle()``.
        storage: How blocks are kept: ``MeanParts()``, ``Labelings()`` or ``Weights()``; every run begins with a copy.
        block_steps: The steps of a batch's blocks, such as ``Sequential()``: the torch loop is then chosen.
        line_search: Chooses the step size; None is ``ExactSearch()``.
        compiled: Whether :class:`torchssvm.CompiledBCFW` takes the steps; None is True where it can. False also suits a
            dataset that gives an example other features each time (augmentation).

    Raises:
        TypeError: An attribute is not an object of its kind.
        ValueError: Attributes contradict each other, such as a direction that needs labelings and a storage that keeps
            none; or the storage already belongs to a dual.

    Example:
        >>> solver = Solver(direction=Pairwise(), oracle=CacheOracle())
        >>> solve(LinearMulticlass(4, 3), data, lam=0.01, solver=solver).exact
        True
    """

    direction: Any = None
    oracle: OracleRule | None = None
    storage: Storage | None = None
    block_steps: BlockSteps | None = None
    line_search: LineSearch | None = None
    compiled: bool | None = None

    def __post_init__(self) -> None:
        if self.compiled is not None and not isinstance(self.compiled, bool):
            raise TypeError(f"compiled={self.compiled!r} must be True, False or None")
        self.rules()

    @property
    def is_default(self) -> bool:
        """Whether nothing is given."""
        return all(value is None for value in vars(self).values())

    def rules(self) -> Rules:
        """The rules, with the defaults of ``BlockGap`` in the place of None.

        Raises:
            TypeError, ValueError: See the class.
        """
        direction: Any = self.direction if self.direction is not None else FrankWolfe()
        oracle = self.oracle if self.oracle is not None else MaxOracle()
        storage = self.storage
        if storage is None:
            needed = getattr(direction, "needs_labelings", False) or getattr(oracle, "needs_labelings", False)
            storage = Labelings() if needed else MeanParts()
        if not isinstance(storage, Storage):
            raise TypeError(f"storage={storage} must be an object such as MeanParts(), Labelings() or Weights()")
        check_rules(direction, oracle, storage)
        if hasattr(storage, "num_examples"):
            raise ValueError(
                f"storage={type(storage).__name__}() already belongs to a DualState: give a new one, which every run "
                "copies"
            )
        block_steps = check_block_steps(self.block_steps if self.block_steps is not None else BoxQP())
        block_steps.check(direction, oracle, storage)
        return Rules(direction, oracle, storage, block_steps, self.line_search)


class Sample(NamedTuple):
    """The first examples of a training set, from which the memory of all is estimated.

    Attributes:
        x: What the head was given.
        potentials: What it returned, without gradients.
        size: Number of examples.
        y: Their targets, where they are known.
        share: The mean length of all examples, as a share of that of these: one long example is among short ones.
    """

    x: Any
    potentials: Potentials
    size: int
    y: Any = None
    share: float = 1.0


class Choice(NamedTuple):
    """The solver of a run.

    Attributes:
        rules: Every rule.
        compiled: Whether the compiled loop takes the steps.
        reason: Why, as a clause.
    """

    rules: Rules
    compiled: bool
    reason: str

    def __str__(self) -> str:
        own = self.rules
        text = f"{own.direction}, {own.oracle}, {type(own.storage).__name__}()"
        if self.compiled:
            return f"solver: compiled loop, {text}: {self.reason}"
        text += f", {own.block_steps}, which trains any head to the same certificate"
        return f"solver: torch loop, {text} (not compiled: {self.reason})"


def choose(
    solver: Solver,
    head: nn.Module,
    structure: Structure,
    num_examples: int,
    sample: Sample,
    *,
    bounds: bool = False,
    memory_limit: int | None = None,
    obstacle: str | None = None,
) -> Choice:
    """The solver with all of its rules.

    Where nothing is given, the rules are, as measured on the library's tasks:

    * the compiled loop with ``Corrective()``, ``CacheOracle()`` and ``Labelings()`` where it applies: chains,
      classes and parsers, on features that stay as they are and that fit in half of the free memory. It runs on the
      CPU, also for a head that is on a device, unless a visit would take more than ``LONG_VISIT`` multiplications there
      (a rule from the arithmetic alone: it has not been timed on a device), or there are several processes;
    * else in the torch loop ``FrankWolfe()`` on ``MeanParts()`` for structures that are quick to decode
      (``Structure.quick_to_decode``), and ``Pairwise()``, ``CacheOracle()`` and ``Labelings()`` for the others;
    * ``Pairwise()``, ``MaxOracle()`` and ``Labelings()`` for decisions that are quick, where there are fewer examples
      than weights (``Structure.pairwise_if_few``): Frank-Wolfe steps then take very many passes at a small lambda.

    Where the storage would take more than half of the free memory, or more than ``memory_limit``, it is the other one
    of ``MeanParts()`` and ``Labelings()``, or else ``Weights()``, with the steps that go with it. Where some rules are
    given, the others are the quickest that work with them: a cache wherever labelings are kept, for one.

    Args:
        solver: The rules that are given.
        head: The head.
        structure: What an output is.
        num_examples: n, the number of examples.
        sample: The first examples.
        bounds: Whether the weights have bounds.
        memory_limit: Bytes that the blocks may take; None is what the device has left.
        obstacle: Why the compiled loop cannot be used, where the caller knows of a reason; None if it does not.

    Raises:
        ValueError: ``compiled=True``, and the compiled loop cannot be used.
        MemoryError: ``compiled=True``, and the features take more than half of the free memory.
    """
    fits = _Fits(num_examples, structure, list(head.parameters()), sample, memory_limit)
    rules = _complete(solver, fits, compiled=True)
    device = fits.parameters[0].device
    if device.type != "cpu" and Ranks.here():
        obstacle = obstacle or f"of several processes each trains where its head is, here on {device}"
    if solver.block_steps is not None:
        obstacle = f"block_steps={solver.block_steps} is a rule of the torch loop"
    why_not = obstacle or reason_not_compiled(head, structure, rules, bounds=bounds)
    if solver.compiled and why_not is not None:
        raise ValueError(f"compiled=True, and the compiled loop cannot be used: {why_not}")
    if solver.compiled is False:
        why_not = "compiled=False"
    if why_not is None and (too_large := _features_too_large(sample, num_examples)) is not None:
        if solver.compiled:
            raise MemoryError(f"{too_large}: use compiled=False, which computes them for every batch")
        why_not = too_large
    on_device = device.type != "cpu"
    if why_not is None and on_device and not solver.compiled and (work := _multiplications(head, sample)) > LONG_VISIT:
        why_not = f"a visit takes {work:,} multiplications, and {device} does many visits at a time"
    if why_not is not None:
        rules = _complete(solver, fits, compiled=False)
        return Choice(rules, False, why_not)
    reason = "the features stay as they are"
    if on_device:
        reason += f", and the head trains on the CPU; Solver(compiled=False) trains on {device}"
    return Choice(rules, True, reason)


def of_all_ranks(choice: Choice, solver: Solver, choose: Callable[[Solver], Choice], ranks: Ranks) -> Choice:
    """The choice of the first process, which all follow: their memory and their first examples differ.

    Args:
        choice: That of this process.
        solver: The rules that were given.
        choose: Chooses from the rules that it is given.
        ranks: The processes.
    """
    kinds = list(STORAGES.values())
    own = [int(choice.compiled), *(type(choice.rules.storage) is kind for kind in kinds)]
    first = ranks.gather(torch.tensor(own))[0].tolist()
    if first == own:
        return choice
    return choose(replace(solver, compiled=bool(first[0]), storage=kinds[first[1:].index(1)]()))


def _complete(solver: Solver, fits: _Fits, *, compiled: bool) -> Rules:
    """The rules that are given, and the quickest that work with them."""
    storage, direction, oracle = solver.storage, solver.direction, solver.oracle
    quick = fits.structure.quick_to_decode and not compiled
    few = quick and fits.structure.pairwise_if_few and fits.num_examples < sum(p.numel() for p in fits.parameters)
    if storage is None:
        kinds = list(STORAGES.values())
        if any(getattr(rule, "needs_labelings", False) for rule in (direction, oracle)):
            kinds = [Labelings]
        elif direction is not None or solver.block_steps is not None or (quick and not few):
            kinds = [MeanParts, Labelings, Weights]
        storage = next((kind() for kind in kinds if fits(kind(), compiled=compiled)), kinds[0]())
    if storage.keeps_labelings:
        direction = direction if direction is not None else Corrective() if compiled else Pairwise()
        oracle = oracle if oracle is not None else MaxOracle() if few else CacheOracle()
    try:
        return Solver(direction, oracle, storage, solver.block_steps, solver.line_search).rules()
    except ValueError:  # these block steps do not go with the cache
        return solver.rules()


def _features_too_large(sample: Sample, num_examples: int) -> str | None:
    """That the features of all examples would not fit, as a clause; None if they do."""
    needed = sum(t.numel() * t.element_size() for t in tree_tensors(sample.x)) * num_examples // max(sample.size, 1)
    needed = int(sample.share * needed)
    allowed = int(SHARE * available_memory(CPU))
    if needed <= allowed:
        return None
    return (
        f"the features of {num_examples} examples would take about {needed / 2**20:,.0f} MiB, and half of the memory "
        f"that is left is {allowed / 2**20:,.0f} MiB"
    )


def _multiplications(head: nn.Module, sample: Sample) -> int:
    """About how many multiplications the scores and the decoding of an example take: features and pairs times labels.

    Args:
        head: A head that has a compiled loop.
        sample: The first examples.
    """
    adapter = find_adapter(head, anywhere=True)
    features = tree_tensors(sample.x)[0].numel() // max(sample.size, 1)
    if adapter.ragged_labels:  # a feature is that of one label
        return features
    tokens = 0 if adapter.pairs is None else sample.potentials[adapter.emission].shape[1]
    return features * adapter.num_states + tokens * adapter.num_states**2


@dataclass
class _Fits:
    """Whether blocks kept by a storage would take at most half of the free memory, or the limit."""

    num_examples: int
    structure: Structure
    parameters: list[nn.Parameter]
    sample: Sample
    memory_limit: int | None

    def __call__(self, storage: Storage, *, compiled: bool) -> bool:
        storage.bind(self.num_examples, 1.0, self.structure, self.parameters, self.memory_limit)
        allowed, potentials, y = self.memory_limit, self.sample.potentials, self.sample.y
        if allowed is None:
            allowed = int(SHARE * available_memory(CPU if compiled else potentials.device))
        target = None if y is None else self.structure.check_target(y, potentials)
        share = self.sample.share if isinstance(storage, MeanParts) else 1.0  # labelings are padded to the longest
        return share * storage.estimate(potentials, target) <= allowed
