"""Training from data to a certificate in one call, by the user's solver or the quickest that head and memory allow."""

from __future__ import annotations

import contextlib
import copy
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_dataset, naming, or_default
from torchssvm.core.batch import (
    Batch,
    Part,
    apply_head,
    check_fits,
    device_of,
    fetcher,
    lengths_of,
    pass_over,
    rows_in_order,
    to_device,
    tree_tensors,
)
from torchssvm.core.max_oracle import has_target_check, unreachable
from torchssvm.core.memory import available_memory
from torchssvm.core.packages import warn
from torchssvm.core.potentials import Potentials
from torchssvm.core.problem import check_bounds, check_lam, find_structure, groups
from torchssvm.core.ranks import Ranks
from torchssvm.core.structure import Structure, reject_rows
from torchssvm.dual.labelings import Labelings
from torchssvm.dual.mean_parts import MeanParts
from torchssvm.dual.state import DualState
from torchssvm.dual.storage import Storage
from torchssvm.dual.weights import Weights
from torchssvm.kinds.adapter import HeadAdapter, find_adapter
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate, FactorwiseCertificate, write
from torchssvm.solvers.compiled.draws import can_draw
from torchssvm.solvers.compiled.solver import CompiledBCFW, check_compiled
from torchssvm.solvers.going_on import check_start, go_on
from torchssvm.solvers.guess_lam import advice_if_small, warn_if_zero
from torchssvm.solvers.solver import Relative, Solver, Tolerance, WhenEstimated, is_within
from torchssvm.solvers.torch_loop import TorchLoop
from torchssvm.solvers.trainer import check_limits
from torchssvm.steps.box_qp import BoxQP
from torchssvm.steps.directions import CacheOracle, Corrective, FrankWolfe, MaxOracle, Pairwise
from torchssvm.steps.line_search import ExactSearch
from torchssvm.steps.sampler import ByLength

FAR = 0.1
"""A run that ends with a larger gap than this share of its primal is far from the optimum."""

_told: set[str] = set()


def solve(
    head: nn.Module,
    dataset: Any,
    lam: float,
    *,
    tolerance: Tolerance | None = None,
    max_passes: float = 1000.0,
    solver: Solver | None = None,
    structure: Structure | None = None,
    start: DualState | CompiledBCFW | TorchLoop | None = None,
    kept: Tensor | None = None,
    on_check: Callable[[Certificate], None] | None = None,
    progress: bool = True,
) -> Certificate:
    """Train a head until an exact pass proves that it is within ``tolerance`` of the optimum.

    The quickest solver that head, storage and memory allow is chosen, and said once on stderr with the reason; see
    :func:`torchssvm.solvers.choose`. The head starts from zero weights, whatever it holds: a second call trains it
    anew, without ``start``. :func:`make_trainer` gives the trainer itself, to stop, save and continue: its ``solve``
    goes on, and ``solve(..., start=trainer.dual)`` goes on with more data.

    A head on a device is trained on it, or by the compiled loop on the CPU, and then moved back. The examples may be on
    any device.

    Args:
        head: Features -> potentials, linear in all its weights; afterwards it holds the trained weights.
        dataset: Map-style, n examples with ``collate``; an item's index is its place.
        lam: Regularisation, the lambda of ``lam/2 |w|^2``; positive.
        tolerance: The gap to reach, a number or ``Relative(share)``; None is ``Relative(0.01)``, 1 % of the primal.
        max_passes: Stop at this many effective passes (n oracle calls each), with a warning.
        solver: What is given: rules, bounds on the weights, seed, order, memory; the rest is chosen to fit it. None
            gives nothing.
        structure: What an output is; None is ``head.structure``.
        start: The dual of an earlier run, or its trainer, to go on from; it does not change. Examples keep their
            blocks, new ones start empty, and those that have gone are subtracted; lambda may be another. The head may
            have more features, and a chain more states, after the earlier ones. Passes are counted anew. A trainer of
            the compiled loop does not pack the features of examples that stay again: they have no new features.
        kept: ``[n]`` int64, the place that each example had in the dataset of ``start``, -1 for a new one. None is the
            same places: what is beyond the old n is new.
        on_check: Called with the certificate of every exact pass.
        progress: Whether one line on stderr shows gap, dual, passes and seconds, estimates between certificates marked
            by ``~``, after a line with the choice of the solver. False is silent; the bits of the run are the same.

    Under ``torch.distributed`` all processes call it with the whole dataset, of which each reads a part, and all
    hold the same weights afterwards.

    Returns:
        The certificate of the last exact pass, which belongs to the head's weights.

    Raises:
        ValueError: An argument is out of range, or does not fit the others. Or a structure without a
            ``check_target`` cannot return the target of one of 16 examples, which are decoded before training.
        TypeError: An argument is of another kind.
        RuntimeError: An example has another target or length than in the dataset of ``start``.
        MemoryError: The features (with ``compiled=True``) or the blocks do not fit.

    Example:
        >>> head = LinearMulticlass(in_features=4, num_classes=3)
        >>> certificate = solve(head, data, lam=0.01)
        >>> certificate.gap <= 0.01 * certificate.primal
        True
        >>> head.structure.argmax(head(points[:3])).labeling
        tensor([2, 0, 2])
    """
    tolerance = tolerance if tolerance is not None else Relative(0.01)
    check_limits(tolerance, max_passes)
    device = device_of(head)
    with on_device(head, device):
        trainer = make_trainer(
            head, dataset, lam, solver=solver, structure=structure, start=start, kept=kept, progress=progress
        )

        def check(certificate: Certificate) -> None:
            assert on_check is not None
            with on_device(head, device):
                on_check(certificate)

        told = None if on_check is None else check
        certificate = trainer.solve(tolerance, max_passes=max_passes, on_check=told, progress=progress)
    if is_within(certificate.gap, tolerance, certificate.primal):
        warn_if_zero(certificate, trainer.dual, head, dataset)
    else:
        warn_if_short(certificate, tolerance, max_passes, advice_if_small(lam, trainer.dual, head, dataset))
    return certificate


def make_trainer(
    head: nn.Module,
    dataset: Any,
    lam: float,
    *,
    solver: Solver | None = None,
    structure: Structure | None = None,
    start: DualState | CompiledBCFW | TorchLoop | None = None,
    kept: Tensor | None = None,
    progress: bool = True,
) -> CompiledBCFW | TorchLoop:
    """The trainer that :func:`solve` would run, with a new dual; arguments and errors as in :func:`solve`.

    ``progress=False`` leaves out the line with the choice of the solver.

    ``trainer.step()``, ``certify()`` and ``solve(tolerance)`` are described in :class:`torchssvm.solvers.Trainer`, and
    ``trainer.dual`` is the dual. ``save_checkpoint("run.pt", trainer=trainer, dual=trainer.dual)`` saves all of a run:
    the state of a compiled loop holds its draws alone.

    A head on a device is on the CPU from here on where the compiled loop is chosen, as the line with the choice says;
    ``solve`` moves it back when it has ended.

    Example:
        >>> trainer = make_trainer(LinearMulticlass(4, 3), data, lam=0.01)
        >>> trainer.step()  # one pass: the number of examples visited
        30
        >>> trainer.certify().exact
        True
        >>> trainer.solve(tolerance=0.05).gap <= 0.05
        True
    """
    check_dataset(dataset)
    lam, structure, n = check_lam(lam), find_structure(head, structure), len(dataset)
    given = or_default(solver, Solver, "solver")
    if not n:
        raise ValueError("dataset is empty: give at least one example")
    bounds = check_bounds(head, given.bounds)
    check_fits(head, structure, dataset)
    begun = None
    loop = start if isinstance(start, CompiledBCFW) else None
    if start is not None:
        old = start.dual if isinstance(start, CompiledBCFW | TorchLoop) else start
        begun, given = check_start(old, kept, n, head, structure, given)
    elif kept is not None:
        raise ValueError(f"kept={kept} needs start: give start too")
    ranks = Ranks.here()
    sample = ranks.run_on_all(lambda: _first(head, dataset))
    if not has_target_check(structure):
        ranks.run_on_all(lambda: _check_targets(head, structure, dataset))
    chosen = partial(choose, head=head, structure=structure, num_examples=n, sample=sample)
    choice = of_all_ranks(ranks.run_on_all(lambda: chosen(given)), given, chosen, ranks)
    if progress and not ranks.rank:
        print_choice(choice)
    rules: Any = choice.solver
    with _zero_weights(head):
        if choice.adapter is not None:
            move(head, CPU)
        dual = DualState.for_head(
            head, n, lam, structure=structure, storage=copy.deepcopy(rules.storage), memory_limit=rules.memory_limit
        )
        packed = None
        if begun is not None:
            if loop is not None and choice.adapter is not None and loop.packs_for(choice.adapter.head):
                packed = loop, begun.kept
                if not getattr(dataset, "compared", False):
                    loop.check_staying(dataset, begun.kept, choice.adapter)
            go_on(head, dual, begun, dataset, sample.potentials, unread=packed is not None)
        if choice.adapter is not None:
            trainer: Any = CompiledBCFW(
                head,
                dual,
                pass_over(dataset, batch_size=_packed_at_once(sample)) if packed is None else _new(dataset, packed[1]),
                direction=rules.direction,
                oracle=rules.oracle,
                order=rules.order,
                seed=rules.seed,
                round_visits=rules.round_visits,
                adapter=choice.adapter,
                held=packed,
            )
        else:
            order, lengths = rules.order, lengths_of(dataset)
            trainer = TorchLoop(
                head,
                BlockGap(dual, rules.direction, oracle=rules.oracle, block_steps=rules.block_steps),
                dataset,
                batch_size=rules.batch_size if rules.batch_size is not None else max(BATCH // ranks.size, 1),
                order=ByLength(lengths) if order is None and lengths is not None else order,
                seed=rules.seed,
                optimizer=BCFW(groups(head, bounds), dual, line_search=rules.line_search),
            )
    if begun is not None:  # few passes are left, of which a certificate too late is a good part
        trainer.early, trainer.schedule = True, WhenEstimated(at_least=0.25)
    if rules.schedule is not None:
        trainer.schedule = rules.schedule
    return trainer


def _packed_at_once(sample: Sample) -> int:
    """Examples of a batch that is packed: of a million numbers, as far as 256 to 4096 examples have as many."""
    numbers = sum(t.numel() for t in tree_tensors((sample.x, sample.potentials.tensors))) // max(sample.size, 1)
    return max(256, min(4096, 2**20 // max(numbers, 1)))


def _new(dataset: Any, kept: Tensor) -> Iterator[Batch]:
    """The batches of the examples that have no old place."""
    rows = (kept < 0).nonzero().flatten()
    for batch in pass_over(Part(dataset, rows)) if len(rows) else ():
        yield batch.replace(index=rows[batch.index.cpu()])


@contextlib.contextmanager
def _zero_weights(head: nn.Module) -> Iterator[None]:
    """Weights of zero, where a new dual begins; an error in the block restores weights and device."""
    device = device_of(head)
    initial = [parameter.detach().clone() for parameter in head.parameters()]
    try:
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        yield
    except BaseException:
        move(head, device)
        write(initial, head.parameters())
        raise


@contextlib.contextmanager
def on_device(head: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, the head is on ``device``; whoever moved it before or inside, it is afterwards where it was before."""
    before = device_of(head)
    try:
        move(head, device)
        yield
    finally:
        move(head, before)


def move(head: nn.Module, device: torch.device) -> None:
    """Move the head, unless it is on ``device``."""
    if device_of(head) != device:
        head.to(device)


def print_choice(choice: Choice) -> None:
    """Say on stderr which solver was chosen, once in a process for each text."""
    text = f"torchssvm: {choice}"
    if text not in _told:
        _told.add(text)
        with contextlib.suppress(OSError, ValueError):  # a closed stream does not end a run
            print(text, file=sys.stderr, flush=True)


def warn_if_short(certificate: Certificate, tolerance: Tolerance, max_passes: float, advice: str = "") -> None:
    """Warn of a run that ``max_passes`` ended before its tolerance, by the gap of the problem that was trained.

    ``advice`` is on its lambda, if that is small.
    """
    if is_within(certificate.gap, tolerance, certificate.primal):
        return
    far = ", far from the optimum" if certificate.relative_gap > FAR else ""
    warn(
        f"the run ended at max_passes={max_passes:g} with a gap{certificate.kind} of {certificate.gap:.4g}, "
        f"{100 * certificate.relative_gap:.3g} % of the primal{far}; tolerance asks for {tolerance:g}"
        + (advice or ". Give a larger max_passes, or a larger lam, which takes fewer passes")
    )


def warn_if_far(certificate: Certificate) -> None:
    """Warn of a run that ends with a gap above a tenth of the primal; GDMM closes the gap of the relaxation."""
    gap, primal, kind = certificate.gap, certificate.primal, certificate.kind
    if isinstance(certificate, FactorwiseCertificate):
        gap, primal = certificate.relaxed_gap, certificate.relaxed_primal
        kind = " of the relaxation" if certificate.has_relaxation else kind
    if gap > FAR * primal > 0.0:
        warn(
            f"the run ended far from the optimum: the gap{kind}, {gap:.4g}, is {100 * gap / primal:.0f} % of the "
            f"primal, {primal:.4g}. Train longer, or with a larger lam, which takes fewer passes"
        )


def warn_if_estimated_far(dual: DualState) -> None:
    """Warn of a run without a certificate whose estimated gap is above a tenth of the primal that it gives."""
    gap = dual.gap_estimate
    if (primal := dual.value() + gap) < math.inf and gap > FAR * primal > 0.0:
        warn(
            f"the run ended far from the optimum: the gap is estimated at {gap:.4g}, {100 * gap / primal:.0f} % of the "
            "primal. DualityGap() among the callbacks certifies the gap and ends a run at 1 % of the primal"
        )


@torch.no_grad()
def _first(head: nn.Module, dataset: Any, most: int = 64) -> Sample:
    lengths = lengths_of(dataset)
    rows = rows_in_order(Ranks.here().own(len(dataset)), most, lengths)[0]
    share = 1.0 if lengths is None else float(lengths.double().mean() / lengths[list(rows)].double().mean())
    batch = to_device(fetcher(dataset)(rows), device_of(head))
    return Sample(batch.x, apply_head(head, batch), len(batch.index), batch.y, share)


@torch.no_grad()
def _check_targets(head: nn.Module, structure: Structure, dataset: Any, most: int = 16) -> None:
    """Decode some examples, from all over the dataset; ValueError names those whose target is no output."""
    rows = Ranks.here().own(len(dataset))
    places = torch.linspace(0, len(rows) - 1, min(most, len(rows)), dtype=torch.float64).long().tolist()
    with torch.random.fork_rng(devices=[]):  # items may draw numbers, and training then draws the same numbers again
        batch = to_device(fetcher(dataset)([rows[place] for place in places]), device_of(head))
    potentials = apply_head(head, batch)
    target = structure.check_target(batch.y, potentials)
    wrong = unreachable(structure, potentials, target) if structure.known_scores(potentials) is None else None
    if wrong is not None:
        with naming(batch.index):
            reject_rows(
                wrong,
                f"argmax of {type(structure).__name__} cannot return the target of {{rows}}, even where that scores "
                "best: correct the target, or argmax",
            )


BATCH = 64
"""Examples of a step of the torch loop, where nobody says otherwise: more of them share the costs of Python."""

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
    reason = "the features stay as they are"
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
