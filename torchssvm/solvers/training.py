"""Training from data to a certificate in one call, by the user's solver or the quickest that head and memory allow."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

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
from torchssvm.core.problem import check_bounds, check_lam, find_structure, groups
from torchssvm.core.ranks import Ranks
from torchssvm.core.structure import Structure, reject_rows
from torchssvm.dual.state import DualState
from torchssvm.solvers.advice import advice_if_small, warn_if_short, warn_if_stiff, warn_if_zero
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate, write
from torchssvm.solvers.choice import CPU, Sample, choose, of_all_ranks, print_choice
from torchssvm.solvers.compiled.solver import CompiledBCFW
from torchssvm.solvers.going_on import check_start, go_on
from torchssvm.solvers.solver import Relative, Solver, Tolerance, WhenEstimated, is_within
from torchssvm.solvers.torch_loop import TorchLoop
from torchssvm.solvers.trainer import check_limits
from torchssvm.steps.sampler import ByLength

BATCH = 64
"""Examples of a step of the torch loop, where nobody says otherwise: more of them share the costs of Python."""


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

        if start is None and not Ranks.here().rank and not trainer.damps:
            warn_if_stiff(head, trainer.dual, fetcher(dataset), max_passes)

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
                earlier=packed,
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
        trainer.schedule = WhenEstimated(at_least=0.25)
    if rules.schedule is not None:
        trainer.schedule = rules.schedule
    return trainer


def _packed_at_once(sample: Sample) -> int:
    """Examples of a batch that is packed: of a million numbers, as far as 32 to 4096 examples have as many."""
    numbers = sum(t.numel() for t in tree_tensors((sample.x, sample.potentials.tensors))) // max(sample.size, 1)
    return max(32, min(4096, 2**20 // max(numbers, 1)))


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
