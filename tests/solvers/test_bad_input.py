"""Bad input is refused by name before anything has changed, and training can go on."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cases.problems import PROBLEMS, Problem, Training, assert_same, chain, multiclass, rng
from cases.problems import refused as unchanged
from cases.top_label_sets import LabelSets, Scores, label_sets
from torch import nn

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    CacheOracle,
    Corrective,
    DualState,
    GapBatchSampler,
    Labelings,
    LinearMulticlass,
    MeanParts,
    Multiclass,
    Potentials,
    Weights,
    certify,
)
from torchssvm.core.decoding import Decoding

STORAGES = [MeanParts, Weights]
NOT_FINITE = [torch.nan, torch.inf, -torch.inf]


@contextlib.contextmanager
def refused(training: Training, kind: type[Exception], words: str) -> Iterator[None]:
    """The error comes, the state stays to the bit, no step is pending, and the next steps work."""
    with unchanged(training, kind, words):
        yield
    assert not training.dual.mailbox.waiting
    value = training.dual.value()
    training.step([0, 1])
    training.step([2])
    assert training.dual.value() >= value
    assert certify(training.head, training.dual, training.problem.everything()).drift < 1e-5


def started(kind: str = "multiclass", storage: Any = MeanParts, steps: int = 3, **options: Any) -> Training:
    return PROBLEMS[kind](1, **options).train(storage=storage()).run([[k % 4, k % 3] for k in range(steps)])


def put(name: str, place: Any, value: float) -> Any:
    """The batch with one number of it changed."""

    def change(batch: Batch) -> Batch:
        changed = getattr(batch, name).clone()
        changed[place] = value
        return batch.replace(**{name: changed})

    return change


def given(**entries: Any) -> Any:
    return lambda batch: batch.replace(**entries)


BATCHES = [
    *((kind, put("x", (1, ..., 0), v), "not finite") for kind in sorted(PROBLEMS) for v in NOT_FINITE),
    ("chain", put("x", (1, 2), torch.nan), "not finite"),  # in the padding
    *(("multiclass", put("y", 1, v), f"label {v}") for v in (3, -1, 100)),
    *(("chain", put("y", (1, 0), v), f"label {v}") for v in (3, -1, 100)),
    ("chain", lambda batch: batch.replace(y=batch.y[:, :-1]), "target"),
    ("multiclass", lambda batch: batch.replace(y=batch.y.int()), "target"),
    ("multiclass", lambda batch: batch.replace(y=batch.y > 0), "target"),
    *(("chain", given(lengths=torch.tensor(v)), "lengths") for v in ([3, 0], [3, 4], [3], [3.0, 3.0])),
    ("chain", lambda batch: batch.replace(x=batch.x[:, :0], y=batch.y[:, :0], lengths=torch.tensor([0, 0])), "x"),
    ("multiclass", given(index=torch.tensor([0, 6])), "index"),
    ("multiclass", given(index=torch.tensor([-1, 0])), "index"),
    ("multiclass", given(index=torch.tensor([0, 1], dtype=torch.int32)), "index"),
    ("multiclass", given(index=torch.tensor([0.0, 1.0])), "index"),
    ("multiclass", given(index=torch.tensor([True, False])), "index"),
    ("multiclass", given(index=torch.tensor([0, 1, 2])), "index"),
    ("multiclass", given(index=torch.tensor([[0, 1]])), "index"),
    ("multiclass", given(index=torch.tensor(0)), "index"),
    ("multiclass", given(index=[0, 1]), "index"),
    ("multiclass", given(index=None), "index"),
]


@pytest.mark.parametrize(("storage", "steps"), [(MeanParts, 3), (Weights, 0)])
@pytest.mark.parametrize(("kind", "change", "words"), BATCHES)
def test_batches(storage, steps, kind, change, words):
    training = started(kind, storage, steps)
    with refused(training, ValueError, words):
        training.step(change(training.problem.batch([0, 2])))


@pytest.mark.parametrize("visits, storage", [(1, MeanParts()), (6, MeanParts()), (6, Labelings())])
def test_an_example_whose_length_changes(visits, storage):
    training = chain(1).train(storage=storage).run([[k % 5] for k in range(visits)])
    batch = training.problem.batch([0])
    assert int(batch.lengths) == 3
    with refused(training, ValueError, "example 0"):
        training.step(batch.replace(lengths=torch.tensor([2])))


def test_an_example_whose_length_changes_in_an_accumulated_batch():
    """Both batches are gathered before the first one is stored."""
    training = chain(1).train().run([[1]])
    batch = training.problem.batch([0])
    training.optim.zero_grad()
    training.backward(batch)
    before = training.weights()
    with pytest.raises(ValueError, match="example 0"):
        training.backward(batch.replace(lengths=torch.tensor([2])))
        training.optim.step()
    assert torch.equal(training.weights(), before)


def worst_output(self, potentials, target):
    return self.argmax(Potentials(-potentials.single - self.loss_potentials(target)[0]))


def bounded_below(self, potentials, target):
    labeling = self.argmax(potentials)
    value = (potentials.single * labeling).sum(1) + self.loss(labeling, target)
    return Decoding(labeling, value, value - 1.0, exact=False)


LOSS, PARTS = LabelSets.loss, LabelSets.parts
STRUCTURES = [
    ({"loss": lambda *a: LOSS(*a) + 0.25}, "loss"),
    ({"loss": lambda *a: -LOSS(*a)}, "loss"),
    ({"loss": lambda _, y, target: torch.where((y == target).all(1), 0.0, torch.nan)}, "loss|not finite"),
    ({"loss": lambda *a: LOSS(*a).unsqueeze(1)}, "loss"),
    ({"parts": lambda *a: PARTS(*a)[:, 1:]}, "potentials"),
    ({"parts": lambda *a: {"scores": PARTS(*a), "more": PARTS(*a)}}, "potentials"),
    ({"augmented_argmax": worst_output}, "target"),
    ({"augmented_argmax": bounded_below}, "bound"),
    ({"augmented_argmax": lambda self, p, y: Decoding(self.argmax(p), exact=False)}, "bound"),
]


@pytest.mark.parametrize("steps", [0, 6])
@pytest.mark.parametrize(("wrong", "words"), STRUCTURES)
def test_structures(wrong, words, steps):
    head, structure, batch = label_sets(3)
    dual = DualState.for_head(head, 5, 0.1, structure=structure)
    optim, loss = BCFW(head.parameters(), dual), BlockGap(dual)

    def step(rows):
        index = torch.tensor(rows)
        optim.zero_grad()
        loss(head(batch.x[index]), batch.y[index], index).backward()
        optim.step()

    for k in range(steps):
        step([k % 5])
    before = copy.deepcopy(optim.state_dict())
    if words != "target" or steps:  # at w = 0 the worst output is the target itself, and may be returned
        dual.structure = type("Wrong", (LabelSets,), wrong)(4, 2)
        with pytest.raises(ValueError, match=words):
            step([2, 4])
        dual.structure = structure
        assert_same(optim.state_dict(), before)
    step([2, 4])
    assert dual.steps == steps + 1


class Hidden(LinearMulticlass):
    """A head with something between the weights and the potentials."""

    def __init__(self, change: Any) -> None:
        super().__init__(3, 3)
        self.change = change

    def forward(self, x):
        return Potentials(self.change(super().forward(x).single))


@pytest.mark.parametrize(
    "change",
    [
        torch.relu,
        torch.square,
        nn.functional.dropout,
        lambda scores: nn.functional.layer_norm(scores, (3,)),
        lambda scores: scores + torch.tensor([0.1, 0.0, -0.1]),
        lambda scores: scores.softmax(1),
    ],
)
def test_heads_that_are_not_linear_are_caught_at_the_first_call(change):
    torch.manual_seed(0)
    problem = multiclass(1, dtype=torch.float32)
    training = Problem(Hidden(change), problem.x, problem.y, None, 0.5).train()
    before = training.snapshot()
    for _ in range(2):  # the second call is no way around it
        with pytest.raises(ValueError, match=r"not linear|not zero"):
            training.backward([0, 1])
    assert_same(training.snapshot(), before)
    assert not training.dual.mailbox.waiting
    with pytest.raises(RuntimeError, match="proposal"):
        training.optim.step()


def dual_of(head: Any = None, n: Any = 6, lam: Any = 0.5, **options: Any) -> DualState:
    return DualState.for_head(LinearMulticlass(3, 3) if head is None else head, n, lam, **options)


def optimizer_of(params: Any) -> BCFW:
    head = LinearMulticlass(3, 3)
    return BCFW(params(head), dual_of(head))


def frozen() -> nn.Module:
    head = LinearMulticlass(3, 3)
    head.bias.requires_grad_(False)
    return head


def two_dtypes() -> nn.Module:
    head = LinearMulticlass(3, 3)
    head.bias = nn.Parameter(head.bias.detach().double())
    return head


DOORS = [
    *((lambda n=n: dual_of(n=n), ValueError, "num_examples") for n in (0, -1, 2.5, True)),
    *((lambda n=n: dual_of(n=n), TypeError, "num_examples") for n in (None, "6")),
    *((lambda lam=lam: dual_of(lam=lam), ValueError, "lam") for lam in (0.0, -1.0, *NOT_FINITE)),
    (lambda: dual_of(lam=True), TypeError, "lam"),
    (lambda: dual_of(structure="chain"), TypeError, "structure"),
    (lambda: dual_of(Scores(3, 4)), ValueError, "structure"),
    (lambda: dual_of(nn.Module(), structure=Multiclass(3)), ValueError, "parameters"),
    (lambda: dual_of(frozen()), ValueError, "bias"),
    (lambda: dual_of(LinearMulticlass(3, 3).half()), TypeError, "float16"),
    (lambda: dual_of(two_dtypes()), TypeError, "dtype"),
    (lambda: optimizer_of(lambda head: [head.weight]), ValueError, "params"),
    (lambda: optimizer_of(lambda head: [*head.parameters(), nn.Parameter(torch.zeros(2))]), ValueError, "params"),
    (lambda: optimizer_of(lambda _: LinearMulticlass(3, 3).parameters()), ValueError, "params"),
    (lambda: optimizer_of(lambda head: [{"params": head.parameters(), "momentum": 0.9}]), ValueError, "momentum"),
    (lambda: started().optim.add_param_group({"params": [nn.Parameter(torch.zeros(2))]}), ValueError, "params"),
    (
        lambda: BCFW((head := LinearMulticlass(3, 3)).parameters(), dual_of(head), line_search="exact"),
        TypeError,
        "line_search",
    ),
    (lambda: GapBatchSampler(batch_size=4, num_examples=0), ValueError, "num_examples"),
    (lambda: GapBatchSampler(dual_of(), batch_size=4, num_examples=5), ValueError, "num_examples"),
    (lambda: GapBatchSampler(200, batch_size=8), TypeError, "dual"),
    (lambda: BlockGap(dual_of(), Corrective()), ValueError, "direction"),
    (lambda: BlockGap(dual_of(), oracle=CacheOracle()), ValueError, "oracle"),
]


@pytest.mark.parametrize(("call", "error", "argument"), DOORS)
def test_doors(call, error, argument):
    with pytest.raises(error, match=argument):
        call()


@pytest.mark.parametrize(("storage", "words"), [(MeanParts, "Weights"), (Weights, "MeanParts")])
def test_a_dual_that_does_not_fit_into_memory(storage, words):
    problem = multiclass(1, n=1000)
    training = problem.train(storage=storage(), memory_limit=1000)
    before = training.snapshot()
    with pytest.raises(MemoryError, match=words):
        training.backward([0, 1])
    assert_same(training.snapshot(), before)
    assert not training.dual.mailbox.waiting


def spoil(training: Training, change: Any) -> None:
    for p in training.dual.parameters:
        p.grad = change(p.grad)


def first(value: float) -> Any:
    return lambda g: (
        g.index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(value, dtype=g.dtype)) if g.dim() > 1 else g
    )


CHANGES = {
    "norm clipped": lambda g: g / 3,
    "values clipped": lambda g: g.clamp(-g.abs().max() / 2, g.abs().max() / 2),
    "rescaled": lambda g: 1.01 * g,
    "zero": torch.zeros_like,
    "none": lambda g: None,
    "noise": lambda g: g + 0.1 * g.abs().max() * torch.randn(g.shape, generator=rng(0), dtype=g.dtype),
    "another loss": lambda g: g + 1.0,
    "low precision": lambda g: g.to(torch.bfloat16).to(g.dtype),
    "not a number": first(torch.nan),
    "infinite": first(torch.inf),
}


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("change", CHANGES)
def test_gradients_that_were_changed(change, steps, adjoint, storage):
    """With and without per-example gradients of the head; also at the first step, where w = 0 hides everything."""
    for dtype in (torch.float64, torch.float32):
        training = started("chain", storage, steps=steps, adjoint=adjoint, dtype=dtype)
        training.optim.zero_grad()
        training.backward([1, 2, 4])
        spoil(training, CHANGES[change])
        with refused(training, RuntimeError, "gradient"):
            training.optim.step()


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("steps", [0, 3])
def test_small_gradients_that_were_changed(adjoint, steps):
    """The features are small, or the loss was scaled down: the check is relative."""
    for dtype in (torch.float64, torch.float32):
        for features, lam, scale in ((1e-5, 1e-9, 1.0), (1.0, 0.5, 1e-6)):
            problem = multiclass(1, adjoint=adjoint, dtype=dtype, lam=lam)
            problem.x = problem.x * features
            training = problem.train().run([[k % 4, k % 3] for k in range(steps)])
            training.optim.zero_grad()
            training.backward([1, 2, 4], scale)
            spoil(training, lambda g: 0.5 * g)
            with refused(training, RuntimeError, "gradient"):
                training.optim.step()


@pytest.mark.parametrize(("adjoint", "steps"), [(adjoint, steps) for adjoint in (True, False) for steps in (0, 3)])
def test_gradients_of_accumulated_batches_that_were_changed(adjoint, steps):
    training = started("chain", steps=steps, adjoint=adjoint)
    training.optim.zero_grad()
    training.backward([0])
    training.backward([1, 2])
    spoil(training, lambda g: g / 3)
    with refused(training, RuntimeError, "gradient"):
        training.optim.step()


@pytest.mark.parametrize("adjoint", [True, False])
def test_stale_gradients(adjoint):
    """zero_grad() was forgotten: the old gradient is still in .grad."""
    training = started("chain", steps=1, adjoint=adjoint)
    training.backward([1, 2])
    with refused(training, RuntimeError, "zero_grad"):
        training.optim.step()


@pytest.mark.parametrize(
    ("adjoint", "loaded"), [(adjoint, loaded) for adjoint in (True, False) for loaded in (True, False)]
)
def test_a_forward_pass_from_before_another_step_or_state(adjoint, loaded):
    """The directions start from blocks that have moved since."""
    training = started("chain", steps=4, adjoint=adjoint)
    state = copy.deepcopy(training.optim.state_dict())
    if loaded:
        training.run([[1], [3]])
    training.optim.zero_grad()
    early = training.forward(training.problem.batch([1, 2]))
    training.optim.load_state_dict(state) if loaded else training.step([1, 2])
    training.optim.zero_grad()
    early.backward()
    with refused(training, RuntimeError, "dual has changed"):
        training.optim.step()


def test_potentials_of_low_precision():
    """A user's head under autocast."""
    head, structure, batch = label_sets(dtype=torch.float32)
    dual = DualState.for_head(head, 5, 0.1, structure=structure)
    optim, loss = BCFW(head.parameters(), dual), BlockGap(dual)
    before = copy.deepcopy(optim.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = head(batch.x)
        assert scores.dtype == torch.bfloat16
        with pytest.raises(TypeError, match="potentials"):
            loss(scores, batch.y, batch.index)
    assert_same(optim.state_dict(), before)
    with pytest.raises(TypeError, match="float64"):
        loss(head(batch.x).double(), batch.y, batch.index)
    loss(head(batch.x), batch.y, batch.index).backward()
    optim.step()


def test_autocast_reaches_neither_our_heads_nor_the_loss():
    a, b = chain(2, dtype=torch.float32).train(), chain(2, dtype=torch.float32).train()
    for rows in ([0], [1, 2], [3]):
        a.step(rows)
        b.optim.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = b.forward(b.problem.batch(rows))
        value.backward()
        b.optim.step()
    assert torch.equal(a.weights(), b.weights())


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_scaled_loss_is_fine_and_an_unscaled_gradient_is_not(steps, adjoint):
    scale = 65536.0
    a, b = (started("chain", steps=steps, adjoint=adjoint) for _ in range(2))
    a.step([0, 1])
    b.step([0, 1], scale)
    torch.testing.assert_close(a.weights(), b.weights())
    b.optim.zero_grad()
    b.backward([2, 3], scale)
    spoil(b, lambda g: g / scale)  # what GradScaler.unscale_ does
    with refused(b, RuntimeError, "gradient"):
        b.optim.step()


@pytest.mark.parametrize(
    ("scale", "steps"), [(s, k) for s in (-1.0, 0.0, float("nan"), float("inf"), -1e-3) for k in (0, 3)]
)
def test_upstream_factors_that_make_no_sense(scale, steps):
    training = started("chain", steps=steps)
    training.optim.zero_grad()
    training.backward([0, 1], scale)
    with refused(training, RuntimeError, f"{scale}"):
        training.optim.step()


@pytest.mark.parametrize("kind", ["multiclass", "chain"])
@pytest.mark.parametrize("steps", [0, 3])
def test_an_index_that_names_two_examples_of_one_batch(kind, steps):
    training = started(kind, steps=steps)
    y = training.problem.y
    other = next(i for i in range(1, training.problem.n) if not torch.equal(y[i], y[0]))
    batch, repeated = training.problem.batch([0, other]), training.problem.batch([0, 0])
    training.optim.zero_grad()
    with refused(training, ValueError, "index"):
        training.forward(batch.replace(index=torch.tensor([3, 3])))
    training.optim.zero_grad()
    training.forward(repeated).backward()  # the same example twice is none
    training.optim.step()


def test_a_step_needs_one_backward_pass_of_the_loss():
    training = started()
    for prepare in (
        lambda: None,
        lambda: training.forward(training.problem.batch([0])),
        lambda: nn.functional.cross_entropy(training.head(training.problem.x).single, training.problem.y).backward(),
    ):
        training.optim.zero_grad()
        prepare()
        with refused(training, RuntimeError, "proposal"):
            training.optim.step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("when", ["before the first step", "later", "between backward and step"])
@pytest.mark.parametrize("kind", sorted(PROBLEMS))
def test_heads_that_are_converted_after_the_dual_was_made(kind, when, dtype):
    training = started(kind, steps=3 if when == "later" else 0, dtype=torch.float32)
    training.optim.zero_grad()
    if when == "between backward and step":
        training.backward([0, 1])
    training.head.to(dtype)
    before = training.snapshot()
    with pytest.raises(TypeError, match=f"{dtype}"):
        training.optim.step() if when == "between backward and step" else training.step([0])
    with pytest.raises(TypeError, match=f"{dtype}"):
        certify(training.head, training.dual, training.problem.everything())
    assert_same(training.snapshot(), before)
    assert training.dual.steps == (3 if when == "later" else 0)


@pytest.mark.parametrize("option", ["weight_decay", "momentum", "lr", "lower"])
def test_options_of_a_group_that_are_set_later(option):
    training = started()
    training.optim.zero_grad()
    training.backward([0, 1])
    training.optim.param_groups[0][option] = 0.1
    before = training.snapshot()
    with pytest.raises(RuntimeError, match=option):
        training.optim.step()
    assert_same(training.snapshot(), before)


def test_a_dual_made_before_the_process_group_is_refused(monkeypatch):
    head = LinearMulticlass(3, 3)
    dual = DualState.for_head(head, 6, 0.1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 1)
    with pytest.raises(ValueError, match="one process"):
        BCFW(head.parameters(), dual)


def saved(**options: Any) -> dict[str, Any]:
    training = started(**options)
    certify(training.head, training.dual, training.problem.everything())
    return copy.deepcopy(training.optim.state_dict())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"n": 7}, "num_examples"),
        ({"lam": 0.25}, "lam"),
        ({"classes": 4}, "structure"),
        ({"features": 4}, "weights|parameter"),
        ({"bias": False}, "weights|parameter"),
        ({"dtype": torch.float32}, "weights|dtype"),
        ({"storage": Weights}, "storage"),
        ({"kind": "chain", "n": 6}, "structure|parameter"),
        ({"cost": torch.tensor([[0.0, 1, 2], [1, 0, 1], [5, 1, 0]])}, "structure"),
    ],
)
def test_checkpoints_of_another_problem(options, name):
    training = started()
    state = saved(**options)
    with refused(training, ValueError, name):
        training.optim.load_state_dict(state)


@pytest.mark.parametrize("state", [torch.optim.SGD([torch.zeros(1)], lr=0.1).state_dict(), {}, None, [1], "state"])
def test_checkpoints_of_another_optimizer(state):
    training = started()
    with refused(training, ValueError, "BCFW"):
        training.optim.load_state_dict(state)
