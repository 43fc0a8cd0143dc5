"""Hinges of float32 weights, made again in float64 where rounding would show in the primal.

A hinge is a difference of scores: in float32 it is wrong by 1e-7 of the scores, which may be many times the primal (a
small lambda on separable examples, features far from zero, long sequences). A sample of the examples is scored and
decoded in both precisions; where the difference is not negligible beside the primal, the float64 results count. The
dual's weights are sums over the same features, and cancel as the scores do: the float64 potentials make them too.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.gradients import state_kept
from torchssvm.core.max_oracle import find_corner
from torchssvm.core.operators import Reading, bring, full_precision, pick, read_together, scalars, upload
from torchssvm.core.potentials import Parts, Potentials, as_potentials, conform, inner
from torchssvm.core.row_sparse import flat
from torchssvm.core.structure import Labeling, OracleResult, Structure
from torchssvm.core.threads import once

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
        """What ``find_corner`` finds in ``potentials``, just returned by the head, or in float64 ones in their place."""
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
