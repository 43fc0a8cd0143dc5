"""Bad input is refused by name before anything has changed, and training can go on."""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cases.custom import LabelSets, Scores, label_sets
from cases.problems import PROBLEMS, Problem, Training, assert_same, chain, multiclass, rng
from cases.problems import refused as unchanged
from torch import nn

from torchssvm import (
    BCFW,
    Batch,
    BlockGap,
    DualState,
    GapBatchSampler,
    Labelings,
    LinearChain,
    LinearMulticlass,
    MeanParts,
    Multiclass,
    Potentials,
    Weights,
    certify,
)
from torchssvm.core.structure import Decoding

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


# -- What comes from the data ------------------------------------------------------------------------------


def put(name: str, place: Any, value: float) -> Any:
    """The batch with one number of it changed."""

    def change(batch: Batch) -> Batch:
        changed = getattr(batch, name).clone()
        changed[place] = value
        return batch.replace(**{name: changed})

    return change


def given(**entries: Any) -> Any:
    return lambda batch: batch.replace(**entries)


LENGTHS = [3, 0], [3, -2], [3, 4], [3], [3, 3, 3], [3.0, 3.0]
LENGTHS = [3, 0], [3, -2], [3, 4], [3], [3, 3, 3], [3.0, 3.0]
BATCHES = [
    *((kind, put("x", (1, ..., 0), v), "not finite") for kind in sorted(PROBLEMS) for v in NOT_FINITE),
    ("chain", put("x", (1, 2), torch.nan), "not finite"),  # in the padding
    *(("multiclass", put("y", 1, v), f"label {v}") for v in (3, -1, 100)),
    *(("chain", put("y", (1, 0), v), f"label {v}") for v in (3, -1, 100)),
    ("chain", lambda batch: batch.replace(y=batch.y[:, :-1]), "target"),
    ("multiclass", lambda batch: batch.replace(y=batch.y.int()), "target"),
    ("multiclass", lambda batch: batch.replace(y=batch.y > 0), "target"),
    *(("chain", given(lengths=torch.tensor(v)), "lengths") for v in LENGTHS),
    (
        "chain",
        lambda batch: batch.replace(x=batch.x[:, :0], y=batch.y[:, :0], lengths=torch.tensor([0, 0])),
        "x",
    ),
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


def test_numbers_of_the_head_that_are_not_finite():
    training = started()
    batch = training.problem.batch([0, 2])
    for value in NOT_FINITE:
        scores = training.head(batch.x).single.clone()
        scores[1, 1] = value
        with refused(training, ValueError, "not finite"):
            training.loss(scores, batch.y, batch.index)
    before = float(training.head.weight[0, 0])
    with torch.no_grad():
        training.head.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        training.backward([0])
    with torch.no_grad():
        training.head.weight[0, 0] = before
    training.step([0])


@pytest.mark.parametrize("visits, storage", [(1, MeanParts()), (6, MeanParts()), (6, Labelings())])
def test_an_example_whose_length_changes(visits, storage):
    training = chain(1).train(storage=storage).run([[k % 5] for k in range(visits)])
    batch = training.problem.batch([0])
    assert int(batch.lengths) == 3
    with refused(training, ValueError, "example 0"):
        training.step(batch.replace(lengths=torch.tensor([2])))


def test_an_example_whose_length_changes_without_lengths():
    training = chain(1, ragged=False).train().run([[k] for k in range(5)])
    batch = training.problem.batch([0])
    with refused(training, ValueError, "example 0|lengths"):
        training.step(batch.replace(x=batch.x[:, :2], y=batch.y[:, :2]))


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


def test_lengths_that_come_and_go():
    """A batch of full-length examples may leave the lengths out, or is told that it may not."""
    problem = chain(1, ragged=False, n=4)
    training = problem.train().run([[0], [1]])
    before = training.snapshot()
    try:
        training.step(problem.batch([2]).replace(lengths=torch.tensor([3])))
    except ValueError as error:
        assert "lengths" in str(error)  # noqa: PT017
        assert_same(training.snapshot(), before)
    training.step([0])
    assert certify(training.head, training.dual, problem.everything()).drift < 1e-12


# -- What comes from a structure ---------------------------------------------------------------------------


def worst_output(self, potentials, target):
    return self.argmax(Potentials(-potentials.single - self.loss_potentials(target)[0]))


def bounded_below(self, potentials, target):
    labeling = self.argmax(potentials)
    value = (potentials.single * labeling).sum(1) + self.loss(labeling, target)
    return Decoding(labeling, value, value - 1.0, exact=False)


LOSS, PARTS = LabelSets.loss, LabelSets.parts
STRUCTURES = [
    ({"loss": lambda *a: LOSS(*a) + 0.25}, "loss"),
    ({"loss": lambda *a: -LOSS(*a)}, "loss|negative"),
    ({"loss": lambda _, y, target: torch.where((y == target).all(1), 0.0, torch.nan)}, "loss|not finite"),
    ({"loss": lambda *a: LOSS(*a).unsqueeze(1)}, "loss|shape"),
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


def test_only_structures_are_structures():
    head = Scores(3, 4)
    with pytest.raises(TypeError, match="structure="):
        DualState.for_head(head, 5, 0.1, structure="chain")
    with pytest.raises(TypeError, match="structure=None"):
        DualState.for_head(head, 5, 0.1)


# -- Heads that are not linear -----------------------------------------------------------------------------


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


def test_a_product_of_two_weights_is_not_linear():
    class Product(nn.Module):
        structure = Multiclass(3)

        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(2, 3))

        def forward(self, x):
            return x @ self.a @ self.b

    problem = multiclass(1, dtype=torch.float32)
    with pytest.raises(ValueError, match="not linear"):
        Problem(Product(), problem.x, problem.y, None, 0.5).train().backward([0])


# -- Parameters and sizes ----------------------------------------------------------------------------------


def test_parameters_must_be_the_heads():
    head, other = LinearMulticlass(3, 3), LinearMulticlass(3, 3)
    nn.init.constant_(head.weight, 2.0)
    dual = DualState.for_head(head, 6, 0.5)
    for params in [
        [head.weight],
        [*head.parameters(), other.bias],
        other.parameters(),
        [{"params": [head.weight]}, {"params": [other.bias]}],
    ]:
        with pytest.raises(ValueError, match="params"):
            BCFW(params, dual)
    with pytest.raises(ValueError, match=r"empty|params"):
        BCFW([], dual)
    assert bool((head.weight == 2.0).all())
    nn.init.zeros_(head.weight)
    BCFW(head.parameters(), dual)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"weight_decay": 0.1, "nesterov": True}, {"bounds": "0"}])
def test_unknown_options_of_a_group(options):
    head = LinearMulticlass(3, 3)
    dual = DualState.for_head(head, 6, 0.5)
    with pytest.raises(ValueError, match=re.escape(str(sorted(options)[:1])[1:-1])):
        BCFW([{"params": list(head.parameters()), **options}], dual)


def test_parameters_cannot_be_added_later():
    training = started()
    extra = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    with refused(training, ValueError, "params"):
        training.optim.add_param_group({"params": [extra]})
    assert len(training.optim.param_groups) == 1


def test_frozen_parameters():
    head = LinearChain(2, 2)
    head.bias.requires_grad_(False)
    head.start_transitions.requires_grad_(False)
    with pytest.raises(ValueError, match="'bias', 'start_transitions'"):
        DualState.for_head(head, 3, 0.1)


def test_lam():
    for lam in (np.float32(0.1), np.float64(0.1), np.int64(2)):
        dual = DualState.for_head(LinearMulticlass(3, 3), 6, lam)
        assert type(dual.lam) is float
        assert dual.lam == lam
    for lam in (0.0, -1.0, float("nan"), float("inf"), -0.0):
        with pytest.raises(ValueError, match=f"lam={lam}"):
            DualState.for_head(LinearMulticlass(3, 3), 6, lam)
    for lam in (True, np.bool_(True)):
        with pytest.raises(TypeError, match="lam="):
            DualState.for_head(LinearMulticlass(3, 3), 6, lam)


@pytest.mark.parametrize("n", [0, -1, 2.5, True, None, "6"])
def test_num_examples(n):
    kind = TypeError if n is None or isinstance(n, str) else ValueError
    with pytest.raises(kind, match=f"num_examples={n!r}"):
        DualState.for_head(LinearMulticlass(3, 3), n, 0.1)


def test_heads_without_parameters_or_of_other_dtypes():
    class Nothing(nn.Module):
        structure = Multiclass(3)

    with pytest.raises(ValueError, match="parameters"):
        DualState.for_head(Nothing(), 6, 0.1)
    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(TypeError, match=f"{dtype}"):
            DualState.for_head(LinearMulticlass(3, 3).to(dtype), 6, 0.1)
    head = LinearMulticlass(3, 3)
    head.bias = nn.Parameter(head.bias.detach().double())
    with pytest.raises(TypeError, match="dtype"):
        DualState.for_head(head, 6, 0.1)


def test_samplers_of_other_data():
    dual = multiclass(1).train().dual
    with pytest.raises(ValueError, match="num_examples=0"):
        GapBatchSampler(batch_size=4, num_examples=0)
    with pytest.raises(ValueError, match="num_examples=5"):
        GapBatchSampler(dual, batch_size=4, num_examples=5)
    with pytest.raises(ValueError, match="num_examples=7"):
        GapBatchSampler(batch_size=4, num_examples=7).bind(dual)
    with pytest.raises(TypeError, match="dual=200"):
        GapBatchSampler(200, batch_size=8)


@pytest.mark.parametrize(("storage", "words"), [(MeanParts, "Weights"), (Weights, "MeanParts")])
def test_a_dual_that_does_not_fit_into_memory(storage, words):
    problem = multiclass(1, n=1000)
    training = problem.train(storage=storage(), memory_limit=1000)
    before = training.snapshot()
    with pytest.raises(MemoryError, match=words):
        training.backward([0, 1])
    assert_same(training.snapshot(), before)
    assert not training.dual.mailbox.waiting


# -- Gradients that are not what the backward pass left ----------------------------------------------------


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


def test_gradients_of_low_precision():
    training = started("chain", dtype=torch.float32)
    training.optim.zero_grad()
    training.backward([0, 1])
    spoil(training, lambda g: g.to(torch.bfloat16).to(torch.float32))
    with refused(training, RuntimeError, "gradient"):
        training.optim.step()


def test_potentials_of_low_precision():
    """A head of one's own under autocast."""
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


def test_a_step_without_a_loss_and_a_step_taken_twice():
    training = started()
    training.optim.zero_grad()
    with refused(training, RuntimeError, "proposal"):
        training.optim.step()
    training.optim.zero_grad()
    training.backward([0])
    training.optim.step()
    with refused(training, RuntimeError, "proposal"):
        training.optim.step()


def test_a_loss_whose_gradient_was_never_computed_or_is_another():
    training = started()
    training.optim.zero_grad()
    training.forward(training.problem.batch([0]))
    with refused(training, RuntimeError, "proposal"):
        training.optim.step()
    training.optim.zero_grad()
    nn.functional.cross_entropy(training.head(training.problem.x).single, training.problem.y).backward()
    with refused(training, RuntimeError, "proposal"):
        training.optim.step()


# -- Several processes -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"weight_decay": 0.1}, "weight_decay"),
        ({"momentum": 0.9, "nesterov": True}, "momentum"),
        ({"lr": 0.1}, "lr"),
        ({"lower": 0.0}, "bounds|lower"),
    ],
)
def test_options_of_a_group_that_are_set_later(option, words):
    training = started()
    before_group = dict(training.optim.param_groups[0])
    training.optim.zero_grad()
    training.backward([0, 1])
    training.optim.param_groups[0].update(option)
    before = training.snapshot()
    with pytest.raises(RuntimeError, match=words):
        training.optim.step()
    assert_same(training.snapshot(), before)
    training.optim.param_groups[0].clear()
    training.optim.param_groups[0].update(before_group)
    training.step([0, 1])
    assert training.dual.steps == 4


def test_a_dual_made_before_the_process_group_is_refused(monkeypatch):
    head = LinearMulticlass(3, 3)
    dual = DualState.for_head(head, 6, 0.1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda *_: 1)
    with pytest.raises(ValueError, match="one process"):
        BCFW(head.parameters(), dual)


# -- Checkpoints -------------------------------------------------------------------------------------------


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


def test_classes_have_no_lengths():
    with pytest.raises(ValueError, match="lengths"):
        LinearMulticlass(3, 4)(torch.zeros(2, 3), torch.tensor([1, 1]))
