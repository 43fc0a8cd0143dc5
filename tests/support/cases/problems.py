"""Small training problems whose outputs can all be listed, and a reference that knows nothing of the dual's code."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import qpsolvers
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    Chain,
    DualState,
    LinearChain,
    LinearMulticlass,
    Multiclass,
    Potentials,
    certify,
)
from torchssvm.core.batch import apply_head
from torchssvm.solvers import Certificate
from torchssvm.steps import BlockSteps, BoxQP, CommonStep
from torchssvm.structures.chain import Transitions

# Inherited property tests run under several classes, and the device fixture holds no state.
CHECKS = [HealthCheck.differing_executors, HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


THOROUGH = int(os.environ.get("TORCHSSVM_THOROUGH") or 0)
"""0, 1 as in CI, or how many problems of each kind the independent checker takes."""


def examples(count: int) -> settings:
    """So many random examples for each property: half of them in CI, a fifth where THOROUGH is 0, all where it is 2."""
    share = {0: 5, 1: 2}.get(THOROUGH, 1)
    return settings(max_examples=max(-(-count // share), 2), deadline=None, suppress_health_check=CHECKS)


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class WithoutAdjoint(nn.Module):
    """The same potentials, and no per-example gradients: ``torch.func`` cannot follow what depends on numbers."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        self.structure = head.structure

    def forward(self, *args: Tensor) -> Potentials:
        result = self.head(*args)
        float(next(iter(result.tensors.values())).detach().sum())
        return Potentials(result.tensors, result.lengths, ragged=result.ragged)


@dataclass
class Problem:
    head: nn.Module
    x: Tensor
    y: Tensor
    lengths: Tensor | None
    lam: float

    @property
    def n(self) -> int:
        return len(self.x)

    @property
    def structure(self) -> Any:
        return self.head.structure

    def batch(self, rows: Sequence[int]) -> Batch:
        """The examples ``rows``, cropped to the longest of them."""
        index = torch.tensor(list(rows), dtype=torch.int64)
        if self.lengths is None:
            return Batch(self.x[index], self.y[index], index)
        lengths = self.lengths[index]
        longest = int(lengths.max())
        return Batch(self.x[index, :longest], self.y[index, :longest], index, lengths)

    def everything(self, batch_size: int | None = None) -> list[Batch]:
        return [self.batch(rows) for rows in torch.arange(self.n).split(batch_size or self.n)]

    def to(self, device: torch.device) -> Problem:
        lengths = None if self.lengths is None else self.lengths.to(device)
        return Problem(self.head.to(device), self.x.to(device), self.y.to(device), lengths, self.lam)

    def copy(self) -> Problem:
        """The same problem, with a head of its own (taken before a dual is made for the head)."""
        result = copy.copy(self)
        result.head = copy.deepcopy(self.head)
        return result

    def train(self, **options: Any) -> Training:
        return Training(self, **options)


def steps_of(sweeps: int) -> BlockSteps:
    """The box QP with so many sweeps; without any, one common step."""
    return BoxQP(sweeps) if sweeps else CommonStep()


class Training:
    def __init__(
        self,
        problem: Problem,
        *,
        storage: Any = None,
        direction: Any = None,
        oracle: Any = None,
        sweeps: int = 5,
        memory_limit: int | None = None,
    ) -> None:
        self.problem = problem
        self.head = problem.head
        self.dual = DualState.for_head(problem.head, problem.n, problem.lam, storage=storage, memory_limit=memory_limit)
        self.loss = BlockGap(self.dual, direction, oracle=oracle, block_steps=steps_of(sweeps))
        self.optim = BCFW(problem.head.parameters(), self.dual)

    def forward(self, batch: Batch) -> Tensor:
        return self.loss(apply_head(self.head, batch), batch.y, batch.index)

    def backward(self, rows: Sequence[int] | Batch, scale: float = 1.0) -> float:
        batch = rows if isinstance(rows, Batch) else self.problem.batch(rows)
        value = self.forward(batch)
        (scale * value).backward()
        return float(value.detach())

    def step(self, rows: Sequence[int] | Batch, scale: float = 1.0) -> float:
        self.optim.zero_grad()
        value = self.backward(rows, scale)
        self.optim.step()
        return value

    def run(self, batches: Iterable[Sequence[int]]) -> Training:
        for rows in batches:
            self.step(rows)
        return self

    def until(self, tolerance: float, *, passes: int) -> Certificate:
        """Passes in batches of two, until a certificate has this gap; the last certificate."""
        random = rng(1)
        for _ in range(passes):
            self.run(torch.randperm(self.problem.n, generator=random).split(2))
            certificate = certify(self.head, self.dual, self.problem.everything())
            if certificate.gap <= tolerance:
                break
        return certificate

    def weights(self) -> Tensor:
        return flat(self.dual.parameters)

    def snapshot(self) -> dict[str, Any]:
        """Everything that training depends on."""
        state = {name: value for name, value in self.dual.state_dict().items() if name != "seal"}
        return copy.deepcopy({"dual": state, "weights": [p.detach() for p in self.dual.parameters]})


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])


def through_a_file(state: Any) -> Any:
    """The state after it was saved and loaded."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def assert_same(a: Any, b: Any, where: str = "state") -> None:
    """Equal to the bit, dtypes included."""
    assert type(a) is type(b), f"{where}: {type(a)} and {type(b)}"
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a, b), f"{where}: {a} and {b}"
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for place, (left, right) in enumerate(zip(a, b, strict=True)):
            assert_same(left, right, f"{where}[{place}]")
    else:
        assert a == b, where


@contextlib.contextmanager
def refused(training: Training, kind: type[Exception], words: str) -> Iterator[None]:
    """The error comes, and the state stays to the bit."""
    before = training.snapshot()
    with pytest.raises(kind, match=words):
        yield
    assert_same(training.snapshot(), before)


def multiclass(
    seed: int = 0,
    *,
    n: int = 6,
    features: int = 3,
    classes: int = 3,
    lam: float = 0.5,
    bias: bool = True,
    cost: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    adjoint: bool = True,
) -> Problem:
    random = rng(seed)
    x = torch.randn(n, features, generator=random, dtype=torch.float64).to(dtype)
    y = torch.randint(0, classes, (n,), generator=random)
    head: nn.Module = LinearMulticlass(features, classes, bias=bias, structure=Multiclass(classes, cost)).to(dtype)
    return Problem(head if adjoint else WithoutAdjoint(head), x, y, None, lam)


def chain(
    seed: int = 0,
    *,
    n: int = 5,
    features: int = 2,
    states: int = 2,
    longest: int = 3,
    lam: float = 0.5,
    ragged: bool = True,
    shared: bool = True,
    bias: bool = True,
    boundary: bool = True,
    transitions: Transitions | None = None,
    dtype: torch.dtype = torch.float64,
    adjoint: bool = True,
) -> Problem:
    random = rng(seed)
    structure = Chain(states, shared=shared, transitions=transitions)
    lengths = torch.randint(1, longest + 1, (n,), generator=random)
    lengths[0] = longest
    real = torch.arange(longest) < lengths.unsqueeze(1)
    x = torch.randn(n, longest, features, generator=random, dtype=torch.float64).to(dtype)
    y = torch.randint(0, states, (n, longest), generator=random)
    if transitions is not None:  # outputs that are allowed, and some of the random labels
        emission = torch.nn.functional.one_hot(y, states).double()
        pairs = torch.zeros(n, states, states, dtype=torch.float64)
        y = structure.decode(Potentials({"emission": emission, "transition": pairs}, lengths if ragged else None))
    if ragged:
        x, y = x * real.unsqueeze(2), y.masked_fill(~real, -1)
    head: nn.Module = LinearChain(
        features, states, bias=bias, boundary=boundary, positions=None if shared else longest, structure=structure
    ).to(dtype)
    return Problem(head if adjoint else WithoutAdjoint(head), x, y, lengths if ragged else None, lam)


PROBLEMS: dict[str, Callable[..., Problem]] = {"multiclass": multiclass, "chain": chain}


def with_weights(kind: str, seed: int, **options: Any) -> Problem:
    problem, random = PROBLEMS[kind](seed, **options), rng(seed)
    with torch.no_grad():
        for p in problem.head.parameters():
            p.copy_(torch.randn(p.shape, generator=random, dtype=torch.float64))
    return problem


@dataclass
class Reference:
    """Every example's outputs: their loss and their feature difference, in float64.

    Attributes:
        losses: For each example ``[Y_i]``.
        changes: For each example ``[Y_i, d]``, phi(x_i, y) - phi(x_i, y_i).
        parts: For each example ``[Y_i, p_i]``, p(y) - p(y_i), without padding.
        lam: Regularisation.
    """

    losses: list[np.ndarray]
    changes: list[np.ndarray]
    parts: list[np.ndarray]
    lam: float
    outputs: list[list[tuple[int, ...]]] = field(default_factory=list)

    @property
    def n(self) -> int:
        return len(self.losses)

    def hinges(self, w: Tensor | np.ndarray) -> np.ndarray:
        w = np.asarray(w, dtype=np.float64)
        pairs = zip(self.losses, self.changes, strict=True)
        return np.array([(losses + changes @ w).max() for losses, changes in pairs])

    def tied(self, w: Tensor | np.ndarray, rows: Iterable[int]) -> bool:
        """Whether rounding decides which output is best. After an exact step that is common, and no error."""
        w = np.asarray(w, dtype=np.float64)
        best = [np.sort(self.losses[i] + self.changes[i] @ w)[-2:] for i in rows]
        return bool(w.any()) and any(b - a < 1e-9 for a, b in best)

    def primal(self, w: Tensor | np.ndarray) -> float:
        w = np.asarray(w, dtype=np.float64)
        return self.lam / 2 * float(w @ w) + float(self.hinges(w).mean())

    def weights(self, alphas: list[np.ndarray]) -> np.ndarray:
        pairs = zip(alphas, self.changes, strict=True)
        return -sum(alpha @ changes for alpha, changes in pairs) / (self.lam * self.n)

    def dual(self, alphas: list[np.ndarray]) -> float:
        w = self.weights(alphas)
        pairs = zip(alphas, self.losses, strict=True)
        return sum(float(alpha @ losses) for alpha, losses in pairs) / self.n - self.lam / 2 * float(w @ w)

    def optimum(self) -> float:
        """By a QP solver, with its own certificate."""
        sizes = [len(losses) for losses in self.losses]
        matrix = np.concatenate(self.changes) / self.n
        equal = np.zeros((self.n, sum(sizes)))
        for row, (start, size) in enumerate(zip(itertools.accumulate([0, *sizes]), sizes, strict=False)):
            equal[row, start : start + size] = 1.0
        result = qpsolvers.solve_qp(
            P=matrix @ matrix.T / self.lam + 1e-8 * np.eye(sum(sizes)),
            q=-np.concatenate(self.losses) / self.n,
            A=equal,
            b=np.ones(self.n),
            lb=np.zeros(sum(sizes)),
            solver="quadprog",
        )
        assert result is not None
        alphas = [np.clip(a, 0.0, None) / np.clip(a, 0.0, None).sum() for a in np.split(result, np.cumsum(sizes)[:-1])]
        value = self.dual(alphas)
        assert self.primal(self.weights(alphas)) - value < 2e-7, "the reference itself is not solved"
        return value


def reference(problem: Problem) -> Reference:
    """List all outputs; nothing here calls a structure, and the head is used one example and one weight at a time."""
    head = copy.deepcopy(problem.head)
    parameters = list(head.parameters())
    size = sum(p.numel() for p in parameters)
    result = Reference([], [], [], problem.lam)
    for i in range(problem.n):
        length = None if problem.lengths is None else problem.lengths[i : i + 1]
        x = problem.x[i : i + 1] if length is None else problem.x[i : i + 1, : int(length)]
        batch = Batch(x, None, torch.tensor([i]), length)
        columns = []
        with torch.no_grad():
            for j in range(size):
                nn.utils.vector_to_parameters(torch.eye(size, dtype=parameters[0].dtype)[j], parameters)
                tensors = apply_head(head, batch).tensors
                columns.append(torch.cat([t.flatten() for t in tensors.values()]).double().numpy())
        linear = np.stack(columns, 1)  # [p_i, d]
        shapes = [tuple(t.shape[1:]) for t in tensors.values()]
        y = problem.y[i].numpy()
        if isinstance(problem.structure, Multiclass):
            outputs = [(k,) for k in range(shapes[0][0])]
            target = (int(y),)
            losses = [float(problem.structure.cost[target[0], k]) for (k,) in outputs]
        else:
            steps, states = shapes[0]
            rules = problem.structure.transitions
            outputs = [
                o for o in itertools.product(range(states), repeat=steps) if rules is None or is_allowed(rules, o)
            ]
            target = tuple(y[:steps].tolist())
            losses = [sum(a != b for a, b in zip(o, target, strict=True)) / steps for o in outputs]
        all_parts = np.stack([listed_parts(o, shapes) for o in outputs])
        difference = all_parts - listed_parts(target, shapes)
        result.outputs.append(outputs)
        result.losses.append(np.array(losses))
        result.parts.append(difference)
        result.changes.append(difference @ linear)
    return result


def is_allowed(rules: Transitions, states: Sequence[int]) -> bool:
    """Whether a sequence is an output, straight from the definition."""
    pairs = all(bool(rules.pairs[a, b]) for a, b in itertools.pairwise(states))
    return pairs and bool(rules.first[states[0]]) and bool(rules.last[states[-1]])


def listed_parts(output: tuple[int, ...], shapes: list[tuple[int, ...]]) -> np.ndarray:
    """The parts of one output, flattened, straight from the definition."""
    first = np.zeros(shapes[0])
    if len(shapes) == 1:
        first[output[0]] = 1.0
        return first
    pairs = np.zeros(shapes[1])
    for t, state in enumerate(output):
        first[t, state] += 1.0
        if t + 1 < len(output):
            place = (state, output[t + 1])
            pairs[place if pairs.ndim == 2 else (t, *place)] += 1.0
    return np.concatenate([first.ravel(), pairs.ravel()])
