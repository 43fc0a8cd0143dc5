"""Checkpoints: what was saved comes back to the bit, all of it or nothing, and a killed process loses none."""

from __future__ import annotations

import copy
import errno
import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases.kernel_problems import kernel_svm
from cases.problem_data import Items
from cases.problems import assert_same, chain, multiclass
from torch import nn
from torch.utils.data import DataLoader

from torchssvm import GDMM, CompiledBCFW, GapBatchSampler, Labelings, Solver, certify, load_checkpoint, save_checkpoint
from torchssvm.core.files import damage, previous
from torchssvm.path import PathRun
from torchssvm.solvers import WeightedAverage
from torchssvm.solvers.kernel import RBF


def loop_of_torch() -> tuple[dict[str, Any], Callable[[], Any]]:
    training = chain(1).train(storage=Labelings())
    sampler = GapBatchSampler(training.dual, batch_size=2, seed=1)
    average = WeightedAverage.following(training.dual)
    network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    adam = torch.optim.Adam(network.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 20)

    def go_on() -> None:
        for rows in sampler:
            training.step(rows)
            adam.zero_grad()
            network(torch.randn(4, 2)).square().sum().backward()
            adam.step()
        scheduler.step()
        certify(training.head, training.dual, training.problem.everything())

    # The average comes first here, and is loaded after its dual.
    kept = {"average": average, "optim": training.optim, "sampler": sampler}
    return {**kept, "network": network, "adam": adam, "scheduler": scheduler}, go_on


def compiled() -> tuple[dict[str, Any], Callable[[], Any]]:
    problem = chain(2, dtype=torch.float32)
    training = problem.train(storage=Labelings())
    loop = CompiledBCFW(problem.head, training.dual, problem.everything(), seed=1)
    return {"loop": loop, "dual": training.dual}, lambda: loop.step(7)


def gdmm() -> tuple[dict[str, Any], Callable[[], Any]]:
    problem = chain(3, boundary=False)
    optim = GDMM(problem.head, problem.everything(), num_examples=problem.n, lam=problem.lam)
    return {"optim": optim}, optim.step


def kernel() -> tuple[dict[str, Any], Callable[[], Any]]:
    svm = kernel_svm(chain(4), RBF(0.3))
    sampler = GapBatchSampler(svm.dual, batch_size=2)
    return {"svm": svm, "sampler": sampler}, lambda: [svm.visit(rows) for rows in sampler]


def path() -> tuple[dict[str, Any], Callable[[], Any]]:
    problem = multiclass(4)

    run = PathRun(problem.head, Items(problem), epsilon=0.1, lam_min=0.05, solver=Solver(batch_size=2))
    return {"run": run}, run.advance


EVERYTHING = [loop_of_torch, compiled, gdmm, kernel, path]


def states(objects: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy({name: value.state_dict() for name, value in objects.items()})
    for state in result.values():
        if "path" in state and state["path"] is not None:  # wall-clock seconds
            del state["path"]["columns"]["seconds"], state["path"]["seal"]
    return {name: dict(state) for name, state in result.items()}


@pytest.mark.parametrize("make", EVERYTHING, ids=lambda make: make.__name__)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_what_was_saved_goes_on_to_the_same_bits(make, before, tmp_path):
    torch.manual_seed(0)
    objects, go_on = make()
    for _ in range(before):
        go_on()
    save_checkpoint(tmp_path / "run.pt", **objects, epoch=before, name="a", scale=torch.tensor([0.5]), rest=[None, 1])
    saved = states(objects)
    for _ in range(2):
        go_on()

    torch.manual_seed(1)
    others, others_go_on = make()
    values = load_checkpoint(tmp_path / "run.pt", **others)
    assert_same(values, {"epoch": before, "name": "a", "scale": torch.tensor([0.5]), "rest": [None, 1]})
    assert_same(states(others), saved)
    for _ in range(2):
        others_go_on()
    assert_same(states(others), states(objects))


@pytest.mark.parametrize("make", EVERYTHING, ids=lambda make: make.__name__)
def test_a_state_that_is_refused_changes_nothing(make, tmp_path):
    """The damaged state comes last: whatever had been loaded before it is as it was."""
    torch.manual_seed(0)
    objects, go_on = make()
    go_on()
    other = nn.Linear(3, 4)
    save_checkpoint(tmp_path / "run.pt", **objects, zz=other)
    go_on()
    smaller = nn.Linear(3, 2)
    before, random = states(objects), torch.get_rng_state()
    weights = {name: value.clone() for name, value in smaller.state_dict().items()}
    with pytest.raises(ValueError, match=r"run\.pt has a state that zz refuses: .*\n.*size mismatch"):
        load_checkpoint(tmp_path / "run.pt", **objects, zz=smaller)
    assert_same(states(objects), before)
    assert_same(dict(smaller.state_dict()), weights)
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("make", [loop_of_torch, compiled, gdmm, kernel])
def test_a_head_that_is_saved_too_does_not_stop_its_training(make, tmp_path):
    """Its weights are loaded before the duals that they belong to, whatever the order of the names."""

    def head_of(objects: dict[str, Any]) -> nn.Module:
        trained = next(iter(v for n, v in objects.items() if n in ("optim", "svm", "solver", "dual")))
        if hasattr(trained, "head"):
            return trained.head
        dual = getattr(trained, "dual", trained)
        return nn.ParameterList(dual.parameters)

    objects, go_on = make()
    go_on()
    save_checkpoint(tmp_path / "run.pt", **objects, zz=head_of(objects))
    go_on()
    others, others_go_on = make()
    others_go_on()
    load_checkpoint(tmp_path / "run.pt", **others, zz=head_of(others))
    others_go_on()
    assert_same(states(others), states(objects))


def test_the_random_state_comes_back_unless_told_otherwise(tmp_path):
    head = nn.Linear(1, 1)
    save_checkpoint(tmp_path / "run.pt", head=head)
    drawn = torch.rand(3)
    load_checkpoint(tmp_path / "run.pt", head=head)
    assert torch.equal(torch.rand(3), drawn)
    load_checkpoint(tmp_path / "run.pt", head=head, random_state=False)
    assert not torch.equal(torch.rand(3), drawn)
    save_checkpoint(tmp_path / "run.pt", head=head, random_state=False)
    state = torch.get_rng_state()
    load_checkpoint(tmp_path / "run.pt", head=head)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on_with_the_random_state_of_its_middle(workers, tmp_path):
    """The loader draws a number whenever it is iterated, which a resumed epoch is once more."""

    def start() -> tuple[Any, GapBatchSampler, DataLoader]:
        training = multiclass(1, n=12).train()
        sampler = GapBatchSampler(training.dual, batch_size=2)
        return training, sampler, DataLoader(range(12), batch_sampler=sampler, num_workers=workers)

    torch.manual_seed(0)
    training, sampler, loader = start()
    drawn = []
    for _ in range(2):
        for rows in loader:
            training.step(rows.tolist())
            drawn.append(float(torch.rand(())))
            if len(drawn) == 3:
                save_checkpoint(tmp_path / "run.pt", optim=training.optim, sampler=sampler)
    torch.manual_seed(1)
    resumed, sampler, loader = start()
    load_checkpoint(tmp_path / "run.pt", optim=resumed.optim, sampler=sampler)
    again = []
    for _ in range(2):
        for rows in loader:
            resumed.step(rows.tolist())
            again.append(float(torch.rand(())))
    assert again == drawn[3:]
    assert_same(resumed.optim.state_dict(), training.optim.state_dict())


@pytest.mark.parametrize(
    ("given", "error", "argument"),
    [
        (lambda head: {"head": head}, ValueError, "other"),
        (lambda head: {"head": head, "other": head, "more": head}, ValueError, "more"),
        (lambda head: {"head": head, "other": head, "epoch": head}, ValueError, "epoch"),
        (lambda head: {"head": head, "other": 3}, TypeError, "other"),
        (lambda head: {"head": head, "other": nn.Linear}, TypeError, "other"),
    ],
)
def test_names_that_do_not_fit(given, error, argument, tmp_path):
    file, head, other = tmp_path / "run.pt", nn.Linear(1, 1), nn.Linear(1, 1)
    save_checkpoint(file, head=head, other=other, epoch=3)
    with pytest.raises(error, match=argument):
        load_checkpoint(file, **given(head))
    before = other.weight.clone()
    assert load_checkpoint(file, head=head, other=None) == {"epoch": 3}
    assert torch.equal(other.weight, before)


def test_what_belongs_to_a_dual_is_not_saved_without_it(tmp_path):
    objects, _ = loop_of_torch()
    with pytest.raises(ValueError, match="sampler needs its dual"):
        save_checkpoint(tmp_path / "run.pt", sampler=objects["sampler"], network=objects["network"])
    save_checkpoint(tmp_path / "run.pt", sampler=objects["sampler"], dual=objects["optim"].dual)
    objects, _ = compiled()
    with pytest.raises(ValueError, match="loop needs its dual"):
        save_checkpoint(tmp_path / "run.pt", loop=objects["loop"])


@pytest.mark.parametrize(
    "value",
    [np.zeros(3), np.float64(1.0), {"deep": [np.int64(1)]}, Path("x"), lambda: 0, object(), {"set": range(3)}],
    ids=lambda value: type(value).__name__,
)
def test_what_could_not_be_loaded_is_not_saved(value, tmp_path):
    file, head = tmp_path / "run.pt", nn.Linear(1, 1)
    save_checkpoint(file, head=head, epoch=1)
    content = file.read_bytes()
    with pytest.raises(ValueError, match=r"\['wrong'\] cannot be loaded without running code"):
        save_checkpoint(file, head=head, wrong=value, epoch=2)
    assert file.read_bytes() == content
    assert [results.name for results in tmp_path.iterdir()] == ["run.pt"]


def test_the_one_before_is_kept_and_nothing_else(tmp_path):
    file, head = tmp_path / "deep" / "run.pt", nn.Linear(1, 1)
    for epoch in range(4):
        save_checkpoint(file, head=head, epoch=epoch)
    assert sorted(results.name for results in file.parent.iterdir()) == ["run.pt", "run.pt.previous"]
    assert load_checkpoint(file, head=head) == {"epoch": 3}
    assert load_checkpoint(previous(file), head=head) == {"epoch": 2}


def damaged_files(content: bytes) -> dict[str, bytes]:
    flipped = bytearray(content)
    flipped[content.index(b"weights of a head")] ^= 1
    return {"empty": b"", "cut off": content[: len(content) // 2], "cut short": content[:-1], "flipped": bytes(flipped)}


@pytest.mark.parametrize("kind", ["missing", "empty", "cut off", "cut short", "flipped"])
def test_a_damaged_file_gives_way_to_the_one_before(kind, tmp_path):
    file, head = tmp_path / "run.pt", nn.Linear(1, 1)
    text = torch.frombuffer(bytearray(b"weights of a head"), dtype=torch.uint8)
    for epoch in range(2):
        save_checkpoint(file, head=head, epoch=epoch, text=text)

    def spoil(path: Path) -> None:
        if kind == "missing":
            path.unlink()
        else:
            path.write_bytes(damaged_files(path.read_bytes())[kind])

    spoil(file)
    what = "there is no checkpoint" if kind == "missing" else "is damaged"
    with pytest.warns(UserWarning, match=rf"{what}.*: loaded the checkpoint before it, .*run\.pt\.previous") as said:
        assert load_checkpoint(file, head=head)["epoch"] == 0
    assert said[0].filename == __file__
    spoil(previous(file))
    before = {name: value.clone() for name, value in head.state_dict().items()}
    wrong = FileNotFoundError if kind == "missing" else ValueError
    with pytest.raises(wrong, match=r"run\.pt.*run\.pt\.previous"):
        load_checkpoint(file, head=head)
    previous(file).unlink(missing_ok=True)
    with pytest.raises(wrong, match=r"run\.pt"):
        load_checkpoint(file, head=head)
    assert_same(dict(head.state_dict()), before)
    save_checkpoint(file, head=head, epoch=2)
    assert load_checkpoint(file, head=head)["epoch"] == 2


def test_a_save_onto_a_damaged_file_keeps_the_whole_one_until_it_is_done(tmp_path, monkeypatch):
    """What is damaged must not take the place of the one before it while there is no other whole file."""
    file, head = tmp_path / "run.pt", nn.Linear(1, 1)
    for epoch in range(2):
        save_checkpoint(file, head=head, epoch=epoch)
    file.write_bytes(b"")
    whole = []
    replace = os.replace

    def watched(source: Any, target: Any) -> None:
        replace(source, target)
        whole.append([path.name for path in (file, previous(file)) if path.exists() and damage(path) is None])

    monkeypatch.setattr(os, "replace", watched)
    save_checkpoint(file, head=head, epoch=2)
    assert whole == [["run.pt", "run.pt.previous"], ["run.pt"]]


@pytest.mark.parametrize("content", [{"head": 1}, [1, 2], 3, {"kind": "torchssvm checkpoint", "format": 99}])
def test_files_that_are_something_else(content, tmp_path):
    file, head = tmp_path / "run.pt", nn.Linear(1, 1)
    save_checkpoint(tmp_path / "other.pt", head=head)
    previous(file).write_bytes((tmp_path / "other.pt").read_bytes())  # is not fallen back on
    torch.save(content, file)
    with pytest.raises(ValueError, match=r"run\.pt"):
        load_checkpoint(file, head=head)
    with pytest.raises(IsADirectoryError):
        save_checkpoint(tmp_path, head=head)


@pytest.mark.skipif(os.name == "nt", reason="Windows has one of the bits, and links need a privilege")
def test_permission_bits_and_symbolic_links_stay(tmp_path):
    head, file = nn.Linear(1, 1), tmp_path / "folder" / "run.pt"
    save_checkpoint(file, head=head, epoch=0)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask
    file.chmod(0o640)
    link = tmp_path / "link.pt"
    link.symlink_to(file)
    save_checkpoint(link, head=head, epoch=1)
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert load_checkpoint(link, head=head) == {"epoch": 1}
    file.unlink()
    with pytest.warns(UserWarning, match="no checkpoint"):
        assert load_checkpoint(link, head=head) == {"epoch": 0}


def test_leftovers_of_killed_saves_go_with_the_next_one(tmp_path):
    head, file = nn.Linear(1, 1), tmp_path / "run.pt"
    ours, others = [".run.pt.0123abcd.partial"], [".run.pt.x.0123abcd.partial", "run.pt.partial", ".run.pt.partial"]
    for name in ours + others:
        (tmp_path / name).write_bytes(b"x")
    save_checkpoint(file, head=head)
    assert {results.name for results in tmp_path.iterdir()} == {"run.pt", *others}


def test_without_hard_links_the_one_before_is_copied(tmp_path, monkeypatch):
    def link(*args: Any) -> None:
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr(os, "link", link)
    test_the_one_before_is_kept_and_nothing_else(tmp_path)


def test_a_save_that_fails_leaves_what_was_there(tmp_path):
    file, head = tmp_path / "run.pt", nn.Linear(1, 1)
    for epoch in range(2):
        save_checkpoint(file, head=head, epoch=epoch)
    contents = file.read_bytes(), previous(file).read_bytes()

    def full(parameters: Any = None) -> Any:
        raise OSError(errno.ENOSPC, "no space left on device")

    for broken in ("write", "fsync"):
        with pytest.MonkeyPatch.context() as patch:
            if broken == "fsync":
                patch.setattr(os, "fsync", full)
            else:
                patch.setattr(torch, "save", lambda content, file: full())
            with pytest.raises(OSError, match="no space left"):
                save_checkpoint(file, head=head, epoch=2)
        assert (file.read_bytes(), previous(file).read_bytes()) == contents
        assert len(list(tmp_path.iterdir())) == 2


def save_until_killed(file: Path, number: int, pipe: int) -> None:
    """Save numbers from ``number`` on, each with two megabytes that follow from it, and tell of every save."""
    head = nn.Linear(1, 1)
    while True:
        save_checkpoint(file, head=head, number=number, data=content_of(number))
        os.write(pipe, number.to_bytes(4, "big"))
        number += 1


def content_of(number: int) -> torch.Tensor:
    return torch.full((500_000,), number, dtype=torch.int32)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.filterwarnings("ignore:.*loaded the checkpoint before it")
def test_a_process_killed_while_it_saves_loses_nothing(tmp_path):
    kills = int(os.environ.get("TORCHSSVM_KILLS", "40"))
    draw, head, file = torch.Generator().manual_seed(time.time_ns() % 2**31), nn.Linear(1, 1), tmp_path / "a.pt"
    save_checkpoint(file, head=head, number=0, data=content_of(0))
    done = in_the_middle = 0
    for _ in range(kills):
        read, write = os.pipe()
        process = os.fork()
        if not process:
            try:
                save_until_killed(file, done + 1, write)
            finally:
                os._exit(1)
        os.close(write)
        told = os.read(read, 4)  # the first save has returned
        time.sleep(float(torch.rand((), generator=draw)) * 0.06)
        os.kill(process, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
        with open(read, "rb") as pipe:
            told += pipe.read()
        told_last = int.from_bytes(told[-4:], "big")
        in_the_middle += any(results.name.endswith(".partial") for results in tmp_path.iterdir())
        values = load_checkpoint(file, head=head)
        assert values["number"] in (told_last, told_last + 1)  # killed after the rename and before it told
        assert torch.equal(values["data"], content_of(values["number"]))
        done = values["number"]
    assert done >= kills
    assert in_the_middle > kills // 5
    save_checkpoint(file, head=head, number=0, data=content_of(0))
    assert sorted(results.name for results in tmp_path.iterdir()) == ["a.pt", "a.pt.previous"]
