"""The quickest solver that head, storage and memory allow, where the user leaves it open."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
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
from torchssvm.kinds.adapter import HeadAdapter, find_adapter
from torchssvm.solvers.compiled.draws import can_draw
from torchssvm.solvers.compiled.solver import check_compiled
from torchssvm.solvers.solver import Solver
from torchssvm.steps.box_qp import BoxQP
from torchssvm.steps.directions import CacheOracle, Corrective, FrankWolfe, MaxOracle, Pairwise
from torchssvm.steps.line_search import ExactSearch

STORAGES: dict[str, type[Storage]] = {"labelings": Labelings, "mean_parts": MeanParts, "weights": Weights}
"""By the kind in checkpoints; what fits in memory is tried in this order."""

SHARE = 0.5
"""The largest share of the free memory that features, and that the blocks of the dual, may take unasked."""

LONG_VISIT = 1_000_000
"""Multiplications of a visit beyond which a head on a device is trained on it; measured in `docs/devices.md`."""

CPU = torch.device("cpu")


class Sample(NamedTuple):
    """The first examples of a training set, from which the memory of all is estimated."""

    x: Any  # what the head was given
    potentials: Potentials  # what it returned, without gradients
    size: int  # number of examples
    y: Any = None  # their targets, where they are known
    share: float = 1.0  # the mean length of all examples, over the mean length of these


class Choice(NamedTuple):
    """The solver of a run."""

    solver: Solver  # with every rule; ``compiled`` is True or False
    adapter: HeadAdapter | None  # the head's, where the compiled loop takes the steps; else None
    reason: str  # why, as a clause

    def __str__(self) -> str:
        solver = self.solver
        text = f"{solver.direction}, {solver.oracle}, {type(solver.storage).__name__}()"
        if solver.compiled:
            return f"solver: compiled loop, {text}: {self.reason}"
        text += f", {solver.block_steps}, which trains any head to the same certificate"
        return f"solver: torch loop, {text} (not compiled: {self.reason})"


def choose(
    solver: Solver,
    head: nn.Module,
    structure: Structure,
    num_examples: int,
    sample: Sample,
    *,
    obstacle: str | None = None,
) -> Choice:
    """The solver with all of its rules.

    Where nothing is given, the rules are, as measured on the library's tasks:

    * the compiled loop with ``Corrective()``, ``CacheOracle()`` and ``Labelings()`` where it applies: heads with a
      ``compiled_form``, on features that stay as they are and that fit in half of the free memory. It runs on the
      CPU, also for a head that is on a device, unless a visit would take more than ``LONG_VISIT`` multiplications,
      or training has several processes;
    * of classes, ``Corrective()``, ``MaxOracle()`` and ``MeanParts()`` in that loop: each step solves a whole block;
    * else in the torch loop ``FrankWolfe()`` on ``MeanParts()`` for structures that are quick to decode, and
      ``Pairwise()``, ``CacheOracle()`` and ``Labelings()`` for the others;
    * ``Pairwise()``, ``MaxOracle()`` and ``Labelings()`` for decisions that are quick, with fewer examples
      than weights: Frank-Wolfe steps then take very many passes at a small lambda.

    Where the storage would take more than half of the free memory, or more than ``memory_limit``, it is the other one
    of ``MeanParts()`` and ``Labelings()``, or else ``Weights()``, with the steps that go with it. Where some rules are
    given, the others are the quickest that work with them: a cache wherever labelings are kept, for one.

    Args:
        num_examples: n, the number of examples.
        obstacle: Why the compiled loop cannot be used, where the caller knows of a reason; None if it does not.

    Raises:
        ValueError: ``compiled=True``, and the compiled loop cannot be used.
        MemoryError: ``compiled=True``, and the features take more than half of the free memory.
    """
    fits = _Fits(num_examples, structure, list(head.parameters()), sample, solver.memory_limit)
    device = fits.parameters[0].device
    on_device = device.type != "cpu"
    if on_device and Ranks.here():
        obstacle = obstacle or f"of several processes each trains where its head is, here on {device}"
    if solver.order is not None and not can_draw(solver.order):
        obstacle = f"order={solver.order} is not compiled"
    if solver.block_steps is not None:
        obstacle = f"block_steps={solver.block_steps} is a rule of the torch loop"
    completed = _complete(solver, fits, compiled=True, whole=_solves_whole(head))
    adapter, why_not = (None, obstacle) if obstacle is not None else compiled_form(head, structure, completed)
    if solver.compiled and why_not is not None:
        raise ValueError(f"compiled=True is not possible: {why_not}")
    if solver.compiled is False:
        why_not = "compiled=False"
    if why_not is None and (too_large := _features_too_large(sample, num_examples)) is not None:
        if solver.compiled:
            raise MemoryError(f"{too_large}: use compiled=False")
        why_not = too_large
    if why_not is None and on_device and not solver.compiled:
        assert adapter is not None
        if (work := _multiplications(adapter, sample)) > LONG_VISIT:
            why_not = f"a visit takes {work:,} multiplications, and {device} does many visits at a time"
    if why_not is not None:
        return Choice(_complete(solver, fits, compiled=False), None, why_not)
    reason = "the head trains on fixed features"
    if on_device:
        reason += f", and the head trains on the CPU; Solver(compiled=False) trains on {device}"
    return Choice(completed, adapter, reason)


def compiled_form(head: nn.Module, structure: Structure, solver: Solver) -> tuple[HeadAdapter | None, str | None]:
    """The adapter of a head on any device, or None and a clause why the loop cannot train it by the full ``solver``."""
    if solver.bounds:
        return None, "the weights have bounds"
    if solver.line_search is not None and type(solver.line_search) is not ExactSearch:
        return None, f"line_search={solver.line_search} is not ExactSearch()"
    if type(solver.storage) not in (MeanParts, Labelings):
        return None, f"storage={type(solver.storage).__name__}() is not compiled"
    try:
        check_compiled(solver.direction, solver.oracle)
        adapter = find_adapter(head, anywhere=True)
    except (ImportError, TypeError) as error:
        return None, getattr(error, "reason", str(error))
    if not structure.same_as(compiled := head.structure):  # type: ignore[arg-type]
        return None, f"structure={structure} is not the head's, {compiled}"
    return adapter, None


def of_all_ranks(choice: Choice, solver: Solver, choose: Callable[[Solver], Choice], ranks: Ranks) -> Choice:
    """The choice of the first process, which all follow: their memory and their first examples differ.

    ``choice`` is this process's choice from ``solver``; ``choose`` chooses from its argument.
    """
    kinds = list(STORAGES.values())
    mine = [int(bool(choice.solver.compiled)), *(type(choice.solver.storage) is kind for kind in kinds)]
    first = ranks.gather(torch.tensor(mine))[0].tolist()
    if first == mine:
        return choice
    return choose(solver.with_rules(compiled=bool(first[0]), storage=kinds[first[1:].index(1)]()))


def _solves_whole(head: nn.Module) -> bool:
    """Whether the compiled loop can solve whole blocks of mean parts for this head."""
    with contextlib.suppress(ImportError, TypeError):
        return find_adapter(head, anywhere=True).whole() is not None
    return False


def _complete(solver: Solver, fits: _Fits, *, compiled: bool, whole: bool = False) -> Solver:
    """The rules that are given, and the quickest that work with them, for the compiled loop or for the torch loop.

    ``whole`` says that blocks of mean parts can be solved whole.
    """
    storage, direction, oracle = solver.storage, solver.direction, solver.oracle
    whole &= direction is None and not getattr(oracle, "needs_labelings", False)
    if whole and storage is None and fits(MeanParts(), compiled=True):
        storage = MeanParts()
    if whole and type(storage) is MeanParts:
        direction = Corrective()
    quick = fits.structure._quick_to_decode and not compiled
    few = quick and fits.structure._pairwise_if_few and fits.num_examples < sum(p.numel() for p in fits.parameters)
    if storage is None:
        kinds = list(STORAGES.values())
        if any(getattr(rule, "needs_labelings", False) for rule in (direction, oracle)):
            kinds = [Labelings]
        elif direction is not None or solver.block_steps is not None or (quick and not few):
            kinds = [MeanParts, Labelings, Weights]
        storage = next((kind() for kind in kinds if fits(kind(), compiled=compiled)), kinds[0]())
    keeps = storage.keeps_labelings
    if direction is None:
        direction = (Corrective() if compiled else Pairwise()) if keeps else FrankWolfe()
    if oracle is None:
        oracle = CacheOracle() if keeps and not few else MaxOracle()
    block_steps = solver.block_steps if solver.block_steps is not None else BoxQP()
    return solver.with_rules(
        direction=direction, oracle=oracle, storage=storage, block_steps=block_steps, compiled=compiled
    )


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


def _multiplications(adapter: HeadAdapter, sample: Sample) -> int:
    """About how many multiplications an example's scores and decoding take: features and pairs times labels."""
    features = tree_tensors(sample.x)[0].numel() // max(sample.size, 1)
    if adapter.ragged_labels:  # each feature belongs to one label
        return features
    work = features * adapter.num_states
    if adapter.pairs is not None:
        rows, pairs = sample.potentials[adapter.emission], sample.potentials[adapter.pairs]
        each = rows.shape[1] if rows.ndim == 3 and adapter.pairs not in sample.potentials.ragged else 1
        work += each * pairs[0].numel()
    return work


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


_told: set[str] = set()


def print_choice(choice: Choice) -> None:
    """Say on stderr which solver was chosen, once in a process for each text."""
    text = f"torchssvm: {choice}"
    if text not in _told:
        _told.add(text)
        with contextlib.suppress(OSError, ValueError):  # a closed stream does not end a run
            print(text, file=sys.stderr, flush=True)
