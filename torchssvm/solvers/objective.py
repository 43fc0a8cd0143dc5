"""The exact primal objective of any weights, however they were trained.

A hinge is a difference of scores: in float32 it is wrong by 1e-7 of the scores, which may be many times the primal (a
small lambda on separable examples, features far from zero, long sequences). A sample of the examples is scored and
decoded in both precisions; where the difference is not negligible beside the primal, the float64 results count. The
dual's weights are sums over the same features, and cancel as the scores do: the float64 potentials make them too.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchssvm.compiler.jit import clock
from torchssvm.core.arguments import OLD_NUMBERS, check_int64, check_whole
from torchssvm.core.batch import (
    Batch,
    apply_head,
    as_batch,
    check_batches,
    to_device,
    tree_map,
    tree_replace,
    tree_tensors,
)
from torchssvm.core.gradients import state_kept
from torchssvm.core.launch import once
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.operators import (
    Reading,
    bring,
    full_precision,
    in_full_precision,
    on_host,
    pick,
    read_together,
    scalars,
    upload,
)
from torchssvm.core.potentials import Parts, Potentials, as_potentials, conform, inner
from torchssvm.core.problem import as_structure, check_lam
from torchssvm.core.row_sparse import flat, squared_norm
from torchssvm.core.structure import Labeling, OracleResult, Structure


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

    ``head`` is ``(x)`` or ``(x, lengths)`` -> potentials, differentiable with ``grad``; batches are moved to
    ``device``. ``check`` makes of ``(index, potentials)`` the numbers of the examples among those of this pass, or
    raises. There are ``num_examples``, None is the largest number plus 1; ``first`` is the index of the example with
    the number 0.
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
            raise ValueError(
                f"batches gave an example twice, and a pass needs every training example exactly once: {OLD_NUMBERS}"
            )
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


_SAMPLE = 16  # examples of a batch that are compared
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_FEW = 1 << 18  # numbers of a sample and its head that are brought from a device
_AGAIN = 64  # a sample is taken again when this many times as many examples have been seen


def negligible(rounding: float, primal: float, num_examples: int) -> bool:
    """Whether errors of hinges leave the primal right to a few 1e-7 of itself.

    ``rounding`` is the typical error of a hinge. Errors of many examples have either sign and average out; no more than
    64 are trusted to, as examples may be alike.
    """
    return rounding <= 5e-7 * primal * math.sqrt(min(num_examples, 64))


class Finer(NamedTuple):
    """What a batch of a pass is computed from."""

    corner: OracleResult  # the labelings found in these potentials
    potentials: Potentials  # those that were decoded, with their graph if the head's have one
    weights: list[Tensor]  # the leaves of that graph, in the order of the weights: these, or their doubles
    first: OracleResult  # the labelings found in the potentials of the head


class Rounding:
    """Makes the hinges of one pass; a context, within which it sees how the head is called.

    Hinges stay as they are where no module makes the potentials from these weights alone, and where it, or the
    structure, does not run in float64. ``weights`` are the regularised ones; ``num_examples`` is n, None for many.
    """

    def __init__(
        self, head: Any, structure: Structure, weights: Iterable[Tensor], lam: float, num_examples: int | None
    ) -> None:
        self._weights = weights = list(weights)
        self._structure, self._lam, self.held = structure, lam, flat(weights)
        self._square = self.held @ self.held  # read with the numbers of each batch
        self._num_examples = 64 if num_examples is None else num_examples
        self._rounding, self._seen, self._due, self._largest = 0.0, 0, 0, 0.0
        self._call: Any = None
        self.read = Reading()
        self._owner, self._names = None, list[str]()
        if weights[0].dtype is torch.float32:
            self._owner, self._names = _owner(head, weights)

    def __enter__(self) -> Rounding:
        if self._owner is not None:
            self._hook = self._owner.register_forward_hook(self._note, with_kwargs=True)
        return self

    def __exit__(self, *raised: object) -> None:
        self._call = None
        if self._owner is not None:
            self._hook.remove()

    def _note(self, head: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._call = (args, kwargs), output

    def __call__(self, potentials: Potentials, target: Labeling) -> Finer:
        """What ``find_corner`` finds in ``potentials`` just made by the head, or in float64 ones in their place."""
        call, self._call = self._call, None
        if self._owner is None or call is None or not _made(potentials, call[1]):
            corner = find_corner(self._structure, potentials, target, self.read)
            return Finer(corner, potentials, self._weights, corner)
        inputs, size, known = call[0], potentials.batch_size, list[Tensor]()
        filled = _filled(inputs)
        squares = [_square(tensor).to(potentials.device) for tensor in filled]
        sizes = _sizes(potentials) if size > _SAMPLE and self._seen >= self._due else []
        self.read.later([self._square, *squares, *sizes], lambda *found: known.extend(found))
        corner = find_corner(self._structure, potentials, target, self.read)
        assert corner.read is not None
        square, total = float(known[0]), float(corner.read[1].sum())
        means = [float(found / tensor.numel()) for found, tensor in zip(known[1:], filled, strict=False)]
        largest = max([0.0, *means])
        if self._seen >= self._due or largest > 4.0 * self._largest:
            self._compare(inputs, potentials, target, corner.read[1], known[1 + len(filled) :])
            self._largest = max(largest, self._largest)
            self._due = _AGAIN * (self._seen + size) if self._seen + size >= _SAMPLE else 0
        self._seen += size
        primal = self._lam / 2 * square + total / size
        if not negligible(self._rounding, primal, self._num_examples):
            wide = self._widen(inputs, potentials)
            if wide is not None and (found := self._decode(wide[0], target)) is not None:
                return Finer(found, *wide, corner)
        return Finer(corner, potentials, self._weights, corner)

    def _decode(self, wide: Potentials, target: Labeling, *, leave: bool = True) -> OracleResult | None:
        try:
            return find_corner(self._structure, wide, target)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a structure of one's own may know float32 alone
            if leave:
                self._leave()
            return None

    def _leave(self) -> None:
        """The rest of the pass stays in float32."""
        self._hook.remove()
        self._owner = None

    def _compare(
        self, inputs: Any, potentials: Potentials, target: Labeling, bound: Tensor, sizes: list[Tensor]
    ) -> None:
        """Compare some examples of a batch: those with the largest potentials, and some others.

        ``bound`` is that of the hinges and ``sizes`` those of the potentials, on the CPU; none, and they are made here.
        """
        size, narrow, wide = potentials.batch_size, potentials.detach(), None
        held = torch.arange(size)
        if size > _SAMPLE:
            largest = torch.stack([t.expand(size) for t in sizes or read_together(*_sizes(narrow))]).amax(0)
            others = torch.arange(0, size, -(-2 * size // _SAMPLE))
            held = torch.cat([largest.topk(_SAMPLE // 2).indices, others]).unique()
            bound = bound[held]
        if narrow.device.type != "cpu" and self._compare_on_host(inputs, narrow, target, bound, held):
            return
        if size > _SAMPLE:
            rows = upload(held, potentials.device)
            whole, narrow = narrow, narrow.select(rows)
            target = tree_map(lambda t: pick(t, rows), target)
            own = tree_map(lambda t: pick(t, rows) if t.shape[:1] == (size,) else t, inputs)
            if (found := self._widen(own, narrow, leave=False)) is not None:
                wide = found[0]
            elif (found := self._widen(inputs, whole)) is not None:  # inputs are not a row for each example
                wide = found[0].select(rows)
        elif (found := self._widen(inputs, narrow)) is not None:
            wide = found[0]
        if wide is not None and (fine := self._decode(wide, target)) is not None:
            self._learn(wide, narrow, target, fine, bound)

    def _compare_on_host(self, inputs: Any, narrow: Potentials, target: Labeling, bound: Tensor, rows: Tensor) -> bool:
        """Compare the examples ``rows`` on the CPU where numbers are few: it takes less time than to start so many
        kernels. False where they are many, or the head or the structure does not run there.
        """
        assert self._owner is not None
        held, size = _held(self._owner), narrow.batch_size
        tensors = [*tree_tensors((inputs, target)), *narrow.tensors.values(), *held.values()]
        if sum(once(t)[: len(rows) if t.shape[:1] == (size,) else None].numel() for t in tensors) > _FEW:
            return False
        read = bring([tensor.detach() for tensor in tensors], rows, size)
        names, weights = list(narrow.tensors), dict(zip(held, read[-len(held) :], strict=True))
        inputs, target = tree_replace((inputs, target), read)
        scores = read[-len(held) - len(names) : -len(held)]
        narrow = Potentials({n: t.expand(len(rows), *t.shape[1:]) for n, t in zip(names, scores, strict=True)})
        found = self._widen(inputs, narrow, weights, leave=False)
        fine = None if found is None else self._decode(found[0], target, leave=False)
        if found is None or fine is None:
            return False
        self._learn(found[0], narrow, target, fine, bound)
        return True

    def _learn(self, wide: Potentials, narrow: Potentials, target: Labeling, fine: OracleResult, bound: Tensor) -> None:
        """What rounding does, from a sample: ``fine`` was found in ``wide``, hinges of the ``bound`` in ``narrow``."""
        parts = conform(self._structure.parts(target), wide, "parts(target)")
        every = [(once(tensor), once(narrow[name])) for name, tensor in wide.tensors.items()]
        assert fine.read is not None
        moved = float((fine.read[1] - bound).square().mean())
        looked_at, *sums = scalars(
            inner(parts, parts).mean(),
            *(number for a, b in every for number in ((a - b).square().sum(), a.count_nonzero())),
        )
        error = max(square / max(count, 1.0) for square, count in zip(sums[::2], sums[1::2], strict=True))
        error *= 2.0 * max(1.0, looked_at)
        self._rounding = max(self._rounding, math.sqrt(max(error, moved)))

    def _widen(
        self, inputs: Any, like: Potentials, held: dict[str, Tensor] | None = None, *, leave: bool = True
    ) -> tuple[Potentials, list[Tensor]] | None:
        """The potentials in float64 and the weights that they depend on, where ``like`` differs by rounding alone.

        Else it is None, and the rest of the pass stays in float32 if ``leave``. ``held`` are parameters and buffers
        that are taken in place of the head's.
        """
        owner, (args, kwargs) = self._owner, tree_map(_double, inputs)
        if owner is None:
            return None
        held = {name: _double(t) for name, t in (held or _held(owner)).items()}
        weights = [held[name].requires_grad_(like.requires_grad) for name in self._names]
        try:
            with state_kept(owner), full_precision(like.device), torch.set_grad_enabled(like.requires_grad):
                for name in _HOOKS:  # the inputs have been through them
                    setattr(owner, name, OrderedDict())
                found: Potentials | None = as_potentials(functional_call(owner, held, args, kwargs))
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a head of one's own may know float32 alone
            found = None
        if found is None or not _differ_by_rounding(found.detach().tensors, like.detach().tensors):
            if leave:
                self._leave()
            return None
        found.index = like.index
        return found, weights


def _made(potentials: Potentials, output: Any) -> bool:
    """Whether the potentials are what the head has returned, as it returned them."""
    if output is potentials:
        return True
    if isinstance(output, Tensor):
        return all(tensor is output for tensor in potentials.tensors.values())
    return isinstance(output, dict) and all(output.get(name) is t for name, t in potentials.tensors.items())


def _differ_by_rounding(numbers: Parts, like: Parts) -> bool:
    sums = []
    for name, tensor in like.items():
        other = numbers.get(name)
        if other is None or other.shape != tensor.shape or other.dtype is not torch.float64:
            return False
        other = once(other)
        sums += [(other - once(tensor)).abs().sum(), other.abs().sum()]
    known = scalars(*sums)
    return all(error <= 1e-2 * size + 1e-30 for error, size in zip(known[::2], known[1::2], strict=True))


def _held(owner: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return dict((*owner.named_parameters(), *owner.named_buffers()))


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().double() if tensor.is_floating_point() else tensor


def _square(tensor: Tensor) -> Tensor:
    """Of all numbers: the errors of a mean of hinges are no larger than the root of the mean square."""
    numbers = tensor.detach().reshape(-1)
    with full_precision(numbers.device):
        return numbers.dot(numbers)


def _sizes(potentials: Potentials) -> list[Tensor]:
    """Sums of absolute potentials, ``[B]`` or ``[1]`` for each tensor."""
    return [once(t.detach()).flatten(1).norm(p=1, dim=1) for t in potentials.tensors.values() if t.numel()]


def _filled(numbers: Any) -> list[Tensor]:
    """The tensors that hold floating-point numbers."""
    return [tensor for tensor in tree_tensors(numbers) if tensor.is_floating_point() and tensor.numel()]


def _owner(head: Any, weights: list[Tensor]) -> tuple[nn.Module | None, list[str]]:
    """The module of ``head`` that trains these weights, or copies of them, and no others; and their names, in order."""
    for module in head.modules() if isinstance(head, nn.Module) else ():
        every = dict(module.named_parameters())
        for held in (every, {name: weight for name, weight in every.items() if weight.requires_grad}):
            if len(held) != len(weights):
                continue
            places = {_place(weight): name for name, weight in held.items()}
            if all(_place(weight) in places for weight in weights):
                return module, [places[_place(weight)] for weight in weights]
            pairs = zip(held.values(), weights, strict=True)
            if all(a.shape == b.shape and torch.equal(a, b.to(a.device)) for a, b in pairs):
                return module, list(held)
    return None, []


def _place(weight: Tensor) -> tuple[int, torch.Size]:
    return weight.data_ptr(), weight.shape  # weights without numbers are all in one place
