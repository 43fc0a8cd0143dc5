"""The check that every ``pytest.raises`` makes can fail: whatever a refusal changes, it finds."""

from __future__ import annotations

import copy
import importlib
import pkgutil

import pytest
import refusals
import torch
from kernel_problems import kernel_svm
from problems import Training, chain
from refusals import changes_state

import torchssvm
from torchssvm import GDMM, CompiledBCFW, DualState, GapBatchSampler, Labelings, WeightedAverage, Weights
from torchssvm.solvers.kernel import RBF


def trained(storage=None) -> Training:
    return chain(0).train(storage=storage).run([[0, 1], [2]])


def refuse(change) -> None:
    change()
    raise ValueError("refused, but not before")


def change_a_block(training: Training) -> None:
    storage = training.dual.storage
    if isinstance(storage, Labelings):
        tensor = storage.rest_loss
    else:
        tensor = storage._blocks[0] if isinstance(storage, Weights) else next(iter(storage.buffers.values())).values
    tensor.view(-1)[0] += 1e-12


def change_a_weight(head: torch.nn.Module) -> None:
    next(head.parameters()).data.view(-1)[0] += 1e-12


def of_a_training(change, storage=None):
    def make():
        training = trained(storage() if storage is not None else None)
        return lambda: change(training)

    return make


def of_a_sampler():
    training = trained()
    sampler = GapBatchSampler(training.dual, batch_size=2)
    next(iter(sampler))
    return lambda: torch.randperm(3, generator=sampler._generator)


def of_an_average():
    training = trained()
    average = WeightedAverage.following(training.dual)
    training.step([0])
    return lambda: average._means[0].add_(1e-12)


def of_a_compiled_loop():
    problem = chain(0)
    dual = DualState.for_head(problem.head, problem.n, problem.lam)
    loop = CompiledBCFW(problem.head, dual, problem.everything())
    return lambda: loop.draws.generator.manual_seed(5)


def of_gdmm():
    problem = chain(0)
    gdmm = GDMM(problem.head, problem.everything(), num_examples=problem.n, lam=problem.lam)
    return lambda: change_a_weight(gdmm.head)


def of_a_kernel_model():
    svm = kernel_svm(chain(0), RBF())
    svm.visit([0])
    return lambda: svm.support.mass.add_(1e-12)


def of_a_copy():
    training = copy.deepcopy(trained())
    return lambda: change_a_weight(training.head)


def add_a_step(training: Training) -> None:
    training.dual.steps += 1


def restart(training: Training) -> None:
    training.dual.restarts += 1


CHANGES = {
    "a weight": of_a_training(lambda training: change_a_weight(training.head)),
    "a block": of_a_training(change_a_block),
    "a block of weights": of_a_training(change_a_block, Weights),
    "a block of labelings": of_a_training(change_a_block, Labelings),
    "a loss": of_a_training(lambda training: training.dual.loss.mul_(1.0 + 1e-15)),
    "the step count": of_a_training(add_a_step),
    "what averages go by": of_a_training(restart),
    "a gap": of_a_training(lambda training: training.dual.gap_estimates.fill_(torch.inf)),
    "a step size that is shown": of_a_training(lambda training: training.optim.param_groups[0].update(lr=9.0)),
    "a sampler": of_a_sampler,
    "an average": of_an_average,
    "a compiled loop's draws": of_a_compiled_loop,
    "GDMM": of_gdmm,
    "a kernel model": of_a_kernel_model,
    "a copy": of_a_copy,
}


@pytest.mark.parametrize("make", CHANGES.values(), ids=CHANGES)
def test_what_a_refusal_changes_is_found(make):
    change = make()
    with (
        pytest.raises(pytest.fail.Exception, match="refused with ValueError, but a state has changed"),
        pytest.raises(ValueError, match="refused"),
    ):
        refuse(change)
    change = make()
    with changes_state("this test says so"), pytest.raises(ValueError, match="refused"):
        refuse(change)


def test_a_mark_that_says_too_much_is_found():
    trained()
    with (
        pytest.raises(pytest.fail.Exception, match="nothing has changed: take it out"),
        changes_state("this test says so"),
        pytest.raises(ValueError, match="refused"),
    ):
        refuse(lambda: None)


def test_looking_changes_nothing_and_finds_nothing():
    training = trained(Labelings())
    sampler = GapBatchSampler(training.dual, batch_size=2)
    average = WeightedAverage.following(training.dual)
    training.head.bias.data[0] = torch.nan  # the same bits
    before = copy.deepcopy([training.snapshot(), sampler.state_dict(), average.state_dict()])
    with pytest.raises(ValueError, match="refused") as caught:
        refuse(lambda: None)
    assert str(caught.value) == "refused, but not before"
    after = [training.snapshot(), sampler.state_dict(), average.state_dict()]
    assert refusals.difference(refusals._copied(before), refusals._copied(after), "state") is None


def test_half_an_object_is_left_alone():
    with pytest.raises(ValueError, match="lam") as caught:
        DualState.for_head(chain(0).head, 3, -1.0)
    with pytest.raises(ValueError, match="refused"):
        refuse(lambda: None)
    assert caught.value.__traceback__ is not None  # which keeps it alive


def test_every_class_with_a_state_is_followed():
    """All of the package, whatever the other tests import."""
    for module in pkgutil.walk_packages(torchssvm.__path__, "torchssvm."):
        if not module.name.startswith(("torchssvm.lightning", "torchssvm.__main__")) and "triton" not in module.name:
            importlib.import_module(module.name)
    kinds = refusals.classes_with_state()
    assert all(any(base in refusals._followed for base in kind.__mro__) for kind in kinds)
    wanted = {"DualState", "BCFW", "GDMM", "KernelSSVM", "Average", "GapBatchSampler", "CompiledBCFW", "PathRun"}
    assert wanted <= {kind.__name__ for kind in refusals._followed}
