"""Training a head on a dataset to a certified gap, by the solver that suits them."""

from __future__ import annotations

import contextlib
import copy
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_dataset, or_default
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
from torchssvm.core.caller import warn
from torchssvm.core.moved import moved
from torchssvm.core.problem import check_lam, find_structure
from torchssvm.core.ranks import Ranks
from torchssvm.core.structure import Structure
from torchssvm.dual.state import DualState
from torchssvm.solvers.bcfw import BCFW
from torchssvm.solvers.block_gap import BlockGap
from torchssvm.solvers.certificate import Certificate, write
from torchssvm.solvers.choice import BATCH, CPU, Choice, Sample, choose, of_all_ranks
from torchssvm.solvers.compiled.solver import CompiledBCFW
from torchssvm.solvers.gdmm.certificate import FactorwiseCertificate
from torchssvm.solvers.going_on import check_start, go_on
from torchssvm.solvers.guess_lam import advice_if_small, warn_if_zero
from torchssvm.solvers.parameter_groups import check_bounds, groups
from torchssvm.solvers.schedules import Relative, Tolerance, WhenEstimated, is_within
from torchssvm.solvers.solver import Solver
from torchssvm.solvers.torch_loop import TorchLoop
from torchssvm.solvers.trainer import check_limits
from torchssvm.steps.by_length import ByLength

FAR = 0.1
"""A run that ends with a larger gap than this share of its primal is far from the optimum."""

_told: set[str] = set()


@moved("options", "bounds", "memory_limit")
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

    A head on a device is trained there, or by the compiled loop on the CPU, and then moved back. The examples may be on
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
            have more features, and a chain more states, behind those of before. Passes are counted anew. From a
            trainer of the compiled loop, features of examples that stay are not packed again: they are those of before,
            and none of those behind them.
        kept: ``[n]`` int64, the place that each example had in the dataset of ``start``, -1 for a new one. None is the
            same places: what is beyond the old n is new.
        on_check: Called with the certificate of every exact pass.
        progress: Whether one line on stderr shows gap, dual, passes and seconds, estimates between certificates marked
            by ``~``, after a line with the choice of the solver. False is silent; the bits of the run are the same.

    Under ``torch.distributed`` all processes call it with the whole dataset, of which each reads its own part, and all
    hold the same weights afterwards.

    Returns:
        The certificate of the last exact pass, which is that of the head's weights.

    Raises:
        ValueError: An argument is out of range, or does not fit the others.
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


@moved("options", "bounds", "memory_limit")
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
    """The trainer that :func:`solve` would run, with a new dual; arguments and errors as there.

    ``progress=False`` leaves out the line with the choice of the solver.

    ``trainer.step()``, ``certify()`` and ``solve(tolerance)`` are those of :class:`torchssvm.solvers.Trainer`, and
    ``trainer.dual`` is the dual. ``save_checkpoint("run.pt", trainer=trainer, dual=trainer.dual)`` saves all of a run:
    the state of a compiled loop is that of its draws alone.

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
    if isinstance(dataset, BlockGap):
        raise TypeError(
            "solve(head, dataset, lam) makes its own dual and loss; to go on with those that you have, use "
            "TorchLoop(head, loss, dataset).solve(tolerance)"
        )
    check_dataset(dataset)
    lam, structure, n = check_lam(lam), find_structure(head, structure), len(dataset)
    given = or_default(solver, Solver, "solver")
    if not n:
        raise ValueError("the dataset is empty")
    bounds = check_bounds(head, given.bounds)
    check_fits(head, structure, dataset)
    begun = None
    loop = start if isinstance(start, CompiledBCFW) else None
    if start is not None:
        old = start.dual if isinstance(start, CompiledBCFW | TorchLoop) else start
        begun, given = check_start(old, kept, n, head, structure, given)
    elif kept is not None:
        raise ValueError(f"kept={kept} says where examples were in the dataset of start: give start too")
    ranks = Ranks.here()
    sample = ranks.run_on_all(lambda: _first(head, dataset))
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
        held = None
        if begun is not None:
            if loop is not None and choice.adapter is not None and loop.packs_for(head):
                held = loop, begun.kept
                if not getattr(dataset, "compared", False):
                    loop.check_staying(dataset, begun.kept, choice.adapter)
            go_on(head, dual, begun, dataset, sample.potentials, unread=held is not None)
        if choice.adapter is not None:
            trainer: Any = CompiledBCFW(
                head,
                dual,
                pass_over(dataset, batch_size=_packed_at_once(sample)) if held is None else _new(dataset, held[1]),
                direction=rules.direction,
                oracle=rules.oracle,
                order=rules.order,
                seed=rules.seed,
                round_visits=rules.round_visits,
                adapter=choice.adapter,
                held=held,
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
    numbers = sum(t.numel() for t in tree_tensors((sample.x, sample.potentials))) // max(sample.size, 1)
    return max(256, min(4096, 2**20 // max(numbers, 1)))


def _new(dataset: Any, kept: Tensor) -> Iterator[Batch]:
    """The batches of the examples that have no old place."""
    rows = (kept < 0).nonzero().flatten()
    for batch in pass_over(Part(dataset, rows)) if len(rows) else ():
        yield batch.replace(index=rows[batch.index.cpu()])


@contextlib.contextmanager
def _zero_weights(head: nn.Module) -> Iterator[None]:
    """Weights of zero, where a new dual begins; an error in the block brings back those that the head held, there."""
    device = device_of(head)
    held = [parameter.detach().clone() for parameter in head.parameters()]
    try:
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        yield
    except BaseException:
        move(head, device)
        write(held, head.parameters())
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
    """Move the head, unless it is there."""
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
    """Warn of a run that ends with a gap above a tenth of the primal; GDMM closes that of the relaxation."""
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
    """The first examples, and what the head makes of them."""
    lengths = lengths_of(dataset)
    rows = rows_in_order(Ranks.here().own(len(dataset)), most, lengths)[0]
    share = 1.0 if lengths is None else float(lengths.double().mean() / lengths[list(rows)].double().mean())
    batch = to_device(fetcher(dataset)(rows), device_of(head))
    return Sample(batch.x, apply_head(head, batch), len(batch.index), batch.y, share)
