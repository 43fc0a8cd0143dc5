"""Warnings name the line of the caller, whichever way leads to them, and never a line of the library."""

import inspect
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lightning as L
import torch
from cases.problem_data import Items
from cases.problems import Problem, chain, multiclass
from torch.utils.data import DataLoader

from torchssvm import BCFW, GDMM, BlockGap, CompiledBCFW, DualState, certify
from torchssvm.lightning import DualityGap, StructuredSVM
from torchssvm.solvers.kernel import RBF, KernelMulticlass, KernelSSVM

PACKAGES = [Path(__file__).parents[2] / name for name in ("torchssvm", "datasets/src", "models/src")]


@contextmanager
def warned_here(words: str) -> Iterator[None]:
    """Lines of the function that has the ``with`` block are named, in this file."""
    lines = {line for *_, line in inspect.currentframe().f_back.f_back.f_code.co_lines()}
    with warnings.catch_warnings(record=True) as result:
        warnings.simplefilter("always")
        yield
    chosen = [w for w in result if re.search(words, str(w.message))]
    assert chosen, [str(w.message) for w in result]
    for warning in chosen:
        assert warning.filename == __file__
        assert warning.category is UserWarning
        assert warning.lineno in lines


def not_zero(problem: Problem) -> Problem:
    torch.nn.init.ones_(next(problem.head.parameters()))
    return problem


def test_in_a_plain_loop():
    problem = not_zero(multiclass(1))
    dual = DualState.for_head(problem.head, problem.n, problem.lam)
    with warned_here("BCFW has set them"):
        BCFW(problem.head.parameters(), dual)


def edited() -> tuple[Problem, DualState, BlockGap, BCFW]:
    """A dual some of whose weights were changed in a way that torch does not see."""
    problem = multiclass(1)
    training = problem.train().run([[0, 1], [2, 3]])
    problem.head.weight.data.mul_(1.5)
    return problem, training.dual, training.loss, training.optim


def test_in_a_certificate():
    problem, dual, _, _ = edited()
    with warned_here("the weights differ from the dual's"):
        certify(problem.head, dual, problem.everything())


def test_in_a_compiled_loop():
    problem = not_zero(multiclass(1))
    dual = DualState.for_head(problem.head, problem.n, problem.lam)
    with warned_here("were not zero"):
        CompiledBCFW(problem.head, dual, problem.everything())


def test_in_gdmm():
    problem = not_zero(chain(1))
    with warned_here("GDMM has set them"):
        GDMM(problem.head, problem.everything(), num_examples=problem.n, lam=0.1)


def test_in_a_kernel_model():
    problem = multiclass(1, dtype=torch.float32)
    svm = KernelSSVM(KernelMulticlass(RBF(), 3, 3), problem.x, problem.y, lam=0.1)
    svm.visit([0, 1])
    svm.head.linear.bias.data.add_(1.0)
    with warned_here("the explicit weights differed"):
        svm.certify()


def test_under_lightning(tmp_path):
    problem = multiclass(1, dtype=torch.float32)
    items = Items(problem)
    loader = DataLoader(items, batch_size=2, collate_fn=items.collate)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    model = StructuredSVM(problem.head, lam=0.1)
    first = L.Trainer(max_epochs=1, default_root_dir=tmp_path, callbacks=[DualityGap(every_n_epochs=1)], **options)
    first.fit(model, loader)
    again = L.Trainer(max_epochs=1, default_root_dir=tmp_path, **options)
    with warned_here("not zero"):
        again.fit(model, loader)


def test_no_other_way_to_warn():
    bare = re.compile(r"warnings\.warn\(|stacklevel")
    result = [
        f"{file.name}:{number}"
        for package in PACKAGES
        for file in package.rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if bare.search(line) and "``" not in line
    ]
    assert not result, f"use torchssvm.core.packages.warn, which names the caller's line: {result}"
