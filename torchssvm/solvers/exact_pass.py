"""One pass over all examples in float64: the primal objective of any weights, and all that a certificate needs.

A hinge is a difference of scores: float32 makes it wrong by 1e-7 of the scores, which may be many times the primal. So
the pass runs a float64 copy of the head on float64 features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchssvm.compiler.jit import clock
from torchssvm.core.arguments import OLD_NUMBERS, check_int64, check_whole
from torchssvm.core.batch import Batch, apply_head, as_batch, check_batches, restrict, to_device, tree_map
from torchssvm.core.decoding import Labeling, OracleResult
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.operators import known, on_host, read_together
from torchssvm.core.potentials import Potentials
from torchssvm.core.precision import full_precision
from torchssvm.core.probe import check_depends
from torchssvm.core.problem import as_structure, check_lam
from torchssvm.core.row_sparse import parts_of, squared_norm
from torchssvm.core.structure import Structure
from torchssvm.dual.checks import check_batch, digest_examples
from torchssvm.dual.state import DualState

Head = Callable[..., Any]
"""``(x)`` or ``(x, lengths)`` -> potentials."""

_NOTE = (
    "An exact pass runs head and structure in float64: keep constants of the head in buffers, and make new tensors in "
    "the dtype of the potentials."
)


@dataclass(frozen=True)
class Objective:
    """The primal objective ``lam/2 |w|^2 + (1/n) sum_i H_i(w)`` by one pass over all examples ([B13] eq. 3).

    Attributes:
        value: The objective of the outputs that the oracle returned; a lower bound where the oracle is approximate.
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
    head: Head,
    structure: Structure,
    batches: Iterable[Batch],
    lam: float,
    *,
    parameters: Iterable[Tensor] | None = None,
    num_examples: int | None = None,
) -> Objective:
    """The structured SVM objective of the weights that the head holds; nothing changes.

    Needs no dual, so it also measures averages and other optimizers. A bound of the distance to the optimum needs a
    dual: see :func:`torchssvm.certify`, whose rules on float64 hold here too.

    Args:
        head: The head, or any callable ``(x)`` or ``(x, lengths)`` -> potentials, such as a model of frozen features
            and the head; ``parameters`` then lists the regularised weights.
        batches: Every training example exactly once, in any order, as :class:`torchssvm.Batch`.
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
        parameters = head.parameters() if isinstance(head, nn.Module) else ()
    weights = list(parameters)
    if not weights:
        raise ValueError("parameters are empty: pass the regularised weights")
    hinges = bounds = 0.0
    count, exact = 0, True
    head, leaves = in_float64(head, weights, _names_of(head, weights))
    check = partial(_check_batch, dtype=leaves[0].dtype, num_examples=num_examples)
    for batch, potentials, index in every_example(head, batches, weights[0].device, check, num_examples, grad=False):
        corner = _decode(structure, potentials, structure.check_target(batch.y, potentials))
        assert corner.read is not None
        hinges += float(corner.read[0].sum())
        bounds += float(corner.read[1].sum())
        exact &= corner.exact
        count += len(index)
    regularisation = lam / 2 * squared_norm(weights)
    return Objective(
        value=regularisation + hinges / count,
        bound=regularisation + bounds / count,
        hinge=hinges / count,
        exact=exact,
        oracle_calls=count,
        seconds=clock() - start,
        lam=lam,
    )


def _check_batch(index: Tensor, potentials: Potentials, dtype: torch.dtype, num_examples: int | None) -> Tensor:
    size = potentials.batch_size
    check_int64(index, "index", (size,), ", one number for each example")
    if not size or int(index.min()) < 0 or (num_examples is not None and int(index.max()) >= num_examples):
        raise ValueError(f"index={index.tolist()} must hold at least one example, below num_examples={num_examples}")
    if potentials.dtype != dtype:
        raise TypeError(f"potentials are {potentials.dtype} and the weights {dtype}: run the head without autocast")
    return index


def every_example(
    head: Head,
    batches: Iterable[Batch],
    device: torch.device,
    check: Callable[[Tensor, Potentials], Tensor],
    num_examples: int | None,
    *,
    grad: bool = True,
    first: int = 0,
) -> Iterator[tuple[Batch, Potentials, Tensor]]:
    """Yield each batch with its potentials and checked index; raise ValueError unless every example comes once.

    Potentials are differentiable with ``grad``; batches are moved to ``device``. ``check(index, potentials)`` returns
    the numbers of the examples in this pass, or raises. There are ``num_examples``, None is the largest number plus 1;
    ``first`` is the index of example number 0.
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
            raise ValueError(f"batches gave an example twice: {OLD_NUMBERS}")
        seen[places] = True
        yield batch, potentials, index
    if not len(seen):
        raise ValueError("batches are empty: give every training example once")
    if not bool(seen.all()):
        missing = ((~seen).nonzero().flatten() + first).tolist()
        raise ValueError(
            f"batches left out {len(missing)} of {len(seen)} examples, {missing[:5]} among them: give each once"
        )


def in_float64(head: Head, weights: Sequence[Tensor], names: list[str] | None) -> tuple[Head, list[Tensor]]:
    """``head`` at float64 copies of its ``weights``, and these copies, where its graph begins.

    ``names`` says which parameters of the module ``head`` are the weights, or equal to them; None if it has none. A
    module within it that has these parameters and no others runs on float64 copies of weights, buffers and inputs;
    features below it stay as training saw them. Where no module has them alone, as in a function, ``head`` runs as it
    is.
    """
    if names is None or not isinstance(head, nn.Module):
        return head, list(weights)
    module = head
    place, owner = _owner_of(module, names)
    if owner is None or weights[0].dtype is not torch.float32:
        same: dict[str, Tensor] = dict(zip(names, weights, strict=True))
        return lambda *args: functional_call(module, same, args), list(weights)
    leaves = [weight.detach().double().requires_grad_() for weight in weights]
    wide = {place + name: _double(buffer) for name, buffer in owner.named_buffers()}
    wide |= zip(names, leaves, strict=True)

    def call(*args: Any) -> Any:
        hook = owner.register_forward_pre_hook(_widen_inputs, with_kwargs=True)
        try:
            return functional_call(module, wide, args)
        except RuntimeError as error:
            error.add_note(_NOTE)
            raise
        finally:
            hook.remove()

    return call, leaves


def _names_of(head: Head, weights: Sequence[Tensor]) -> list[str] | None:
    """The names of a module's parameters that are ``weights``, or of consecutive ones with equal numbers, or None."""
    if not isinstance(head, nn.Module):
        return None
    named = dict(head.named_parameters())
    names, places = list(named), {id(p): name for name, p in named.items()}
    if all(id(weight) in places for weight in weights):
        return [places[id(weight)] for weight in weights]
    for begin in range(len(names) - len(weights) + 1):
        some = names[begin : begin + len(weights)]
        pairs = zip((named[name] for name in some), weights, strict=True)
        if all(a.dtype == b.dtype and torch.equal(a.to(b.device), b) for a, b in pairs):
            return some
    return None


def _owner_of(head: nn.Module, names: Sequence[str]) -> tuple[str, nn.Module | None]:
    """The outermost module whose parameters are ``names``, with the beginning of these names, or None."""
    for path, module in head.named_modules():
        place = f"{path}." if path else ""
        if {place + name for name, _ in module.named_parameters()} == set(names):
            return place, module
    return "", None


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _widen_inputs(_: nn.Module, args: Any, kwargs: Any) -> Any:
    return tree_map(_double, args), tree_map(_double, kwargs)


def _decode(structure: Structure, potentials: Potentials, target: Labeling) -> OracleResult:
    try:
        return find_corner(structure, potentials, target)
    except RuntimeError as error:
        error.add_note(_NOTE)
        raise


class ExactPass(NamedTuple):
    """The results of one pass over all examples at the head's weights; the pass changes nothing."""

    hinges: float  # ``sum_i H_i``; with an approximate oracle, an upper bound of it
    exact: bool  # whether the oracle was exact for every example
    relaxed: bool  # whether labelings may lie outside of the hull of outputs
    gaps: Tensor  # [m] float64 on the CPU, the block gaps at these weights, of the examples of this process
    weights: list[Tensor]  # w(alpha) for the current features, float64, one for each parameter; under bounds, v
    targets: Tensor  # [m] int64, digests
    losses: Tensor  # [2, m] float64 on the CPU: n l_i from each block, NaN where unknown, and the size of its terms
    remember: Callable[[], None]  # stores the oracle's labelings, if the storage keeps labelings and was asked to
    gap_estimate: float = 0.0  # of several processes, the sum of the gaps of all examples


def exact_pass(head: Head, dual: DualState, batches: Iterable[Batch], *, remember: bool = False) -> ExactPass:
    """Decode every example once; arguments and errors as in :func:`certify`.

    With ``remember`` the result can add the oracle's labelings to a storage that keeps labelings.
    """
    structure, storage = dual.structure, dual.storage
    hinges, exact, relaxed = 0.0, True, False
    gaps = torch.zeros(len(dual.own), dtype=torch.float64)
    losses = torch.stack([torch.full_like(gaps, torch.nan), gaps])
    hinge: list[tuple[Tensor, Tensor]] = []  # of each batch, on the CPU: the places of its blocks, and its hinges
    slopes: list[tuple[Tensor, ...]] = []  # of each batch, on the device: slopes of the blocks, losses and their terms
    targets = torch.zeros_like(dual.targets)
    every = torch.zeros(sum(p.numel() for p in dual.parameters), dtype=torch.float64, device=dual.parameters[0].device)
    weights = parts_of(every, dual.parameters)
    keep: list[Callable[[], None]] = []
    for batch, potentials, index, leaves in every_block(head, dual, batches):
        target = structure.check_target(batch.y, potentials)
        place = on_host(index)
        targets[place] = digest_examples(target, potentials)
        theta = potentials.examining()
        corner = _decode(structure, theta, target)
        assert corner.read is not None
        with torch.no_grad(), full_precision(potentials.device):
            stored = storage.gather(index, theta, target)
            storage.check_features(stored, potentials, leaves)
            hinges += float(corner.read[1].sum())
            exact &= corner.exact
            relaxed |= corner.relaxed
            hinge.append((place, corner.read[0]))
            slopes.append((stored.inner(theta), *(stored.mean_loss(theta) or ())))
            torch._foreach_add_(weights, storage.contribution(stored, potentials, leaves))
            if remember and (insert := storage.remember(stored, corner)) is not None:
                keep.append(insert)

    loss, *read = read_together(dual.loss, *chain(*slopes))
    known(dual.loss, loss)
    numbers = iter(read)
    for (place, its_hinges), its_slopes in zip(hinge, slopes, strict=True):
        inner, *its_losses = islice(numbers, len(its_slopes))
        gaps[place] = its_hinges / dual.num_examples + inner - loss[place]
        if its_losses:
            losses[:, place] = torch.stack(its_losses)

    def insert_all() -> None:
        for insert in keep:
            insert()
        if keep:
            dual.version += 1  # slots may hold other labelings now

    return ExactPass(hinges, exact, relaxed, gaps, weights, targets, losses, insert_all)


def every_block(
    head: Head, dual: DualState, batches: Iterable[Batch]
) -> Iterator[tuple[Batch, Potentials, Tensor, list[Tensor]]]:
    """Each batch once, as :func:`every_example`, with float64 potentials and the weights where their graph begins.

    Raises ValueError unless the potentials come from the dual's weights alone.
    """
    names = _names_of(head, dual.parameters)
    if isinstance(head, nn.Module) and names is None:
        raise ValueError(f"head={type(head).__name__} has other weights than the dual: pass its head, or use primal")
    call, leaves = in_float64(head, dual.parameters, names)
    local, device = dual.own, dual.parameters[0].device
    batches = restrict(batches, local) if dual.ranks else batches
    check = partial(check_batch, dual, dtype=leaves[0].dtype)
    checked = False
    for batch, potentials, index in every_example(call, batches, device, check, len(local), first=local.start):
        if not checked:
            check_depends(potentials, dual.structure, leaves)
            checked = True
        yield batch, potentials, index, leaves
