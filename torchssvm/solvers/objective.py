"""The exact primal objective of any weights, however they were trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.arguments import check_int64, check_whole
from torchssvm.core.batch import Batch, apply_head, as_batch, check_batches, to_device
from torchssvm.core.jit import clock
from torchssvm.core.operators import in_full_precision, on_host
from torchssvm.core.potentials import Potentials
from torchssvm.core.problem import as_structure, check_lam
from torchssvm.core.row_sparse import squared_norm
from torchssvm.core.structure import Structure
from torchssvm.solvers.rounding import Rounding


@dataclass(frozen=True)
class Objective:
    """The primal objective ``lam/2 |w|^2 + (1/n) sum_i H_i(w)`` by one pass over all examples ([B13] eq. 3).

    Attributes:
        value: The objective with the outputs that the oracle found; a lower bound where the oracle is approximate.
        bound: An upper bound of the objective; equal to ``value`` where the oracle is exact.
        hinge: ``(1/n) sum_i H_i``: ``value`` without the regularisation.
        exact: Whether the oracle was exact for every example, so that ``value`` is the objective itself.
        oracle_calls: Examples decoded by this pass.
        seconds: Duration of this pass.
        lam: Regularisation.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> objective = primal(head, head.structure, in_order(data), lam=0.1)
        >>> objective.value == objective.bound, objective.oracle_calls
        (True, 30)
    """

    value: float
    bound: float
    hinge: float
    exact: bool
    oracle_calls: int
    seconds: float
    lam: float

    def __str__(self) -> str:
        if self.exact:
            return f"primal {self.value:.6g}"
        return f"primal between {self.value:.6g} and {self.bound:.6g} (approximate oracle)"


@torch.no_grad()
def primal(
    head: Callable[..., Any],
    structure: Structure,
    batches: Iterable[Batch],
    lam: float,
    *,
    parameters: Iterable[Tensor] | None = None,
    num_examples: int | None = None,
) -> Objective:
    """The structured SVM objective of the weights that the head holds; nothing changes.

    Needs no dual, so it also measures averages and other optimizers. A bound of the distance to the optimum needs a
    dual: see :func:`torchssvm.certify`.

    Args:
        head: The head, or any callable ``(x)`` or ``(x, lengths)`` -> potentials, such as a model of frozen features
            and the head; ``parameters`` then lists the regularised weights.
        structure: What an output is.
        batches: Every training example exactly once, in any order, as :class:`torchssvm.Batch`.
        lam: Regularisation; positive.
        parameters: The regularised weights; None is ``head.parameters()``.
        num_examples: n, to detect missing examples at the end; None is the largest index plus 1.

    Raises:
        ValueError: An example is missing or duplicated, or an argument or a batch is not valid.
        TypeError: The potentials have another dtype than the weights, or ``lam`` is not a number.

    Example:
        >>> head = LinearMulticlass(4, 3)
        >>> primal(head, head.structure, in_order(data), lam=0.1).value  # at weights of zero: the largest loss
        1.0
    """
    start = clock()
    lam = check_lam(lam)
    as_structure(structure)
    num_examples = None if num_examples is None else check_whole(num_examples, "num_examples")
    if parameters is None:
        if not isinstance(head, torch.nn.Module):
            raise ValueError(
                f"parameters=None, and head is a {type(head).__name__}, not an nn.Module: pass the weights that are "
                "regularised"
            )
        parameters = head.parameters()
    weights = list(parameters)
    if not weights:
        raise ValueError("parameters are empty: the head has no weights")
    found = bounds = 0.0
    count, exact = 0, True

    check = partial(_check_batch, weight=weights[0], num_examples=num_examples)
    call = in_full_precision(head, weights)
    with Rounding(head, structure, weights, lam, num_examples) as fine:
        for batch, potentials, index in every_example(
            call, batches, weights[0].device, check, num_examples, grad=False
        ):
            target = structure.check_target(batch.y, potentials)
            corner = fine(potentials, target).corner
            assert corner.read is not None
            found += float(corner.read[0].sum())
            bounds += float(corner.read[1].sum())
            exact &= corner.exact
            count += len(index)
    regularisation = lam / 2 * squared_norm(weights)
    return Objective(
        value=regularisation + found / count,
        bound=regularisation + bounds / count,
        hinge=found / count,
        exact=exact,
        oracle_calls=count,
        seconds=clock() - start,
        lam=lam,
    )


def every_example(
    head: Callable[..., Any],
    batches: Iterable[Batch],
    device: torch.device,
    check: Callable[[Tensor, Potentials], Tensor],
    num_examples: int | None,
    *,
    grad: bool = True,
    first: int = 0,
) -> Iterator[tuple[Batch, Potentials, Tensor]]:
    """Yield each batch with its potentials and checked index; raise ValueError unless every example comes once.

    Args:
        head: ``(x)`` or ``(x, lengths)`` -> potentials, differentiable with ``grad``.
        batches: Every example exactly once; moved to ``device``.
        check: ``(index, potentials)`` -> the numbers of the examples among those of this pass, or an error.
        num_examples: Examples of this pass; None is the largest number plus 1.
        first: The index of the example with the number 0.
    """
    seen = torch.zeros(num_examples or 0, dtype=torch.bool)
    for batch in check_batches(batches):
        batch = to_device(as_batch(batch), device)
        with torch.enable_grad() if grad else nullcontext():
            potentials = apply_head(head, batch)
        index = check(batch.index, potentials)
        places = on_host(index)
        numbers = places.tolist()
        if (more := max(numbers) + 1 - len(seen)) > 0:
            seen = torch.cat([seen, torch.zeros(more, dtype=torch.bool)])
        if bool(seen[places].any()) or len(set(numbers)) < len(numbers):
            raise ValueError("batches gave an example twice: a pass needs every training example exactly once")
        seen[places] = True
        yield batch, potentials, index
    if not len(seen):
        raise ValueError("batches are empty: a pass needs every training example once")
    if not bool(seen.all()):
        missing = ((~seen).nonzero().flatten() + first).tolist()
        raise ValueError(
            f"batches left out {len(missing)} of {len(seen)} examples, {missing[:5]} among them: a pass needs "
            "every training example once (no drop_last, no sampling)"
        )


def _check_batch(index: Tensor, potentials: Potentials, weight: Tensor, num_examples: int | None) -> Tensor:
    size = potentials.batch_size
    check_int64(index, "index", (size,), ", one number for each example")
    if not size:
        raise ValueError("a batch is empty: index holds no example")
    if int(index.min()) < 0 or (num_examples is not None and int(index.max()) >= num_examples):
        raise ValueError(f"index holds {int(index.min())} to {int(index.max())}, and num_examples={num_examples}")
    if potentials.dtype != weight.dtype:
        raise TypeError(
            f"the potentials are {potentials.dtype} and the head's weights {weight.dtype}: run the head in the dtype "
            "of its weights, with autocast off"
        )
    return index
