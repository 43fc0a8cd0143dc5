"""One pass of the max oracle over all training examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchssvm.core.batch import Batch, restrict
from torchssvm.core.operators import full_precision, in_full_precision, known, on_host, read_together
from torchssvm.core.potentials import Potentials
from torchssvm.core.probe import check_depends
from torchssvm.core.problem import digest_examples
from torchssvm.core.row_sparse import parts_of
from torchssvm.dual.checks import check_batch
from torchssvm.dual.state import DualState
from torchssvm.solvers.objective import Rounding, every_example


class ExactPass(NamedTuple):
    """The results of one pass over all examples at the weights that the head holds; the pass changes nothing."""

    hinges: float  # ``sum_i H_i``; with an approximate oracle, an upper bound of it
    exact: bool  # whether the oracle was exact for every example
    relaxed: bool  # whether labelings may lie outside of the hull of outputs
    gaps: Tensor  # [m] float64 on the CPU, the block gaps at the held weights, of the examples of this process
    weights: list[Tensor]  # w(alpha) for the current features, float64, one for each parameter; under bounds, v
    targets: Tensor  # [m] int64, digests
    losses: Tensor  # [2, m] float64 on the CPU: n l_i from each block, NaN where unknown, and the size of its terms
    remember: Callable[[], None]  # stores the labelings found, if the storage keeps labelings and was asked to
    gap_estimate: float = 0.0  # of several processes, the sum of the gaps of all examples


def exact_pass(
    head: Callable[..., Any], dual: DualState, batches: Iterable[Batch], *, remember: bool = False
) -> ExactPass:
    """Decode every example once; arguments and errors as in :func:`certify`.

    With ``remember`` the result can add the labelings found to a storage that keeps labelings.
    """
    hinges, exact, relaxed = 0.0, True, False
    gaps = torch.zeros(len(dual.own), dtype=torch.float64)
    losses = torch.stack([torch.full_like(gaps, torch.nan), gaps])
    hinge: list[tuple[Tensor, Tensor]] = []  # of each batch, on the CPU: where its blocks are, and its hinges
    there: list[tuple[Tensor, ...]] = []  # of each batch, on the device: slopes of the blocks, losses and their terms
    targets = torch.zeros_like(dual.targets)
    every = torch.zeros(sum(p.numel() for p in dual.parameters), dtype=torch.float64, device=dual.parameters[0].device)
    weights = parts_of(every, dual.parameters)
    keep: list[Callable[[], None]] = []
    with Rounding(head, dual.structure, dual.parameters, dual.lam, dual.num_examples) as fine:
        for batch, potentials, index in every_block(head, dual, batches, fine.read, fine.held):
            target = dual.structure.check_target(batch.y, potentials)
            place = on_host(index)
            targets[place] = digest_examples(target, potentials)
            finer, scored, leaves, corner = fine(potentials, target)
            assert finer.read is not None
            with torch.no_grad(), full_precision(potentials.device):
                stored = dual.storage.gather(index, scored, target)
                dual.storage.check_features(stored, potentials)
                hinges += float(finer.read[1].sum())
                exact &= finer.exact
                relaxed |= finer.relaxed
                hinge.append((place, finer.read[0]))
                there.append((stored.inner(scored), *(stored.mean_loss(scored) or ())))
                torch._foreach_add_(weights, dual.storage.contribution(stored, scored, leaves))
                if remember and (insert := dual.storage.remember(stored, corner)) is not None:
                    keep.append(insert)

    held, *read = read_together(dual.loss, *chain(*there))
    known(dual.loss, held)
    numbers = iter(read)
    for (place, found), several in zip(hinge, there, strict=True):
        inner, *told = islice(numbers, len(several))
        gaps[place] = found / dual.num_examples + inner - held[place]
        if told:
            losses[:, place] = torch.stack(told)

    def insert_all() -> None:
        for insert in keep:
            insert()
        if keep:
            dual.version += 1  # slots may hold other labelings now

    return ExactPass(hinges, exact, relaxed, gaps, weights, targets, losses, insert_all)


def every_block(
    head: Callable[..., Any], dual: DualState, batches: Iterable[Batch], *read: Any
) -> Iterator[tuple[Batch, Potentials, Tensor]]:
    """As :func:`every_training_example`, for a head that must have the dual's weights, checked as ``check_depends``
    says.
    """
    every = every_training_example(of_dual(head, dual), dual, batches)
    for place, (batch, potentials, index) in enumerate(every):
        if place == 0:
            check_depends(potentials, dual.structure, dual.parameters, *read)
        yield batch, potentials, index


def every_training_example(
    head: Callable[..., Any], dual: DualState, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, Potentials, Tensor]]:
    """Yield each batch with its potentials and checked index; raise ValueError unless every example comes once."""
    head = in_full_precision(head, dual.parameters)
    batches = restrict(batches, dual.own) if dual.ranks else batches
    return every_example(
        head, batches, dual.parameters[0].device, partial(check_batch, dual), len(dual.own), first=dual.own.start
    )


def of_dual(head: Callable[..., Any], dual: DualState) -> Callable[..., Any]:
    """``head``, a module with the dual's parameters in place of equal copies; ValueError for other weights."""
    if not isinstance(head, nn.Module):
        return head
    named = dict(head.named_parameters())
    wanted = {id(p) for p in dual.parameters}
    if wanted <= {id(p) for p in named.values()}:
        return head
    some = _alike(named, dual.parameters)
    if some is None:
        raise ValueError(
            f"head={type(head).__name__}(...) has other weights than the dual, and a certificate is for the weights of "
            "the dual alone: pass the head that the dual was made for. To load weights, load the state of their "
            "optimizer; for the objective of other weights, see torchssvm.solvers.primal"
        )
    replaced: dict[str, Tensor] = dict(zip(some, dual.parameters, strict=True))
    # As in in_full_precision: features below the copy stay in the precision of the process.
    alone = full_precision if len(named) == len(wanted) else lambda _: nullcontext()

    def call(*args: Any) -> Any:
        with alone(dual.parameters[0].device):
            return functional_call(head, replaced, args)

    return call


def _alike(named: dict[str, nn.Parameter], parameters: Sequence[nn.Parameter]) -> list[str] | None:
    """The names of consecutive parameters that are equal to ``parameters``, or None."""
    names = list(named)
    for begin in range(len(names) - len(parameters) + 1):
        some = names[begin : begin + len(parameters)]
        pairs = zip((named[name] for name in some), parameters, strict=True)
        if all(a.dtype == b.dtype and torch.equal(a.to(b.device), b) for a, b in pairs):
            return some
    return None
