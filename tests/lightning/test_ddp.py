"""Two processes under Trainer(strategy="ddp"): each stores the blocks of its examples."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import ddp_runs
from cases.lightning_letters import WORDS, loader, some_words

pytest.importorskip("lightning")


pytestmark = pytest.mark.slow

FITS = ("torch", "compiled", "shuffled", "joint", "statistics", "plain module")


def run(folder: Path, environment: dict[str, str]) -> None:
    """One of the processes; what it writes goes to a file."""
    os.environ.update(environment)
    status = 1
    with (folder / f"{environment['RANK']}.txt").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        try:
            ddp_runs.main(folder)
            status = 0
        except BaseException:
            traceback.print_exc()
    os._exit(status)  # without what the parent process would do at its end


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes leave behind, in the environment that torchrun gives them."""
    folder = tmp_path_factory.mktemp("ddp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "test"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    context = multiprocessing.get_context("fork")  # what is imported and compiled here, they have
    processes = []
    for rank in range(2):
        its = {k: str(v) for k, v in {**group, **where, "RANK": rank, "LOCAL_RANK": rank}.items()}
        processes.append(context.Process(target=run, args=(folder, its)))
        processes[-1].start()
    try:
        for process in processes:
            process.join(timeout=200)
    finally:
        for process in processes:
            process.kill()
    for rank, process in enumerate(processes):
        assert process.exitcode == 0, (folder / f"{rank}.txt").read_text()[-5000:]
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return max(one["dual"], other["dual"]) <= min(one["primal"], other["primal"])


def test_the_processes_divide_the_examples_and_agree_on_all_else(results):
    for name in (*FITS, "torch resumed", "compiled resumed", "statistics resumed"):
        first, second = (run[name] for run in results)
        assert first.pop("own") == list(range(WORDS // 2))
        assert second.pop("own") == list(range(WORDS // 2, WORDS))
        assert first == second, name


def test_certificates_bracket_the_optimum_of_one_process(results):
    alone = ddp_runs.fit(ddp_runs.in_torch(), loader(some_words()), max_epochs=12)
    for name in ("torch", "compiled", "shuffled", "plain module"):
        assert overlap(results[0][name], alone), name


def test_a_module_of_the_plain_objects_takes_the_same_steps(results):
    for key in ("primal", "dual", "calls", "rho"):
        assert results[0]["plain module"][key] == results[0]["torch"][key]


def test_a_resumed_run_ends_with_the_same_bits(results):
    """From the middle of an epoch, with an average or while features are trained, and from the end of one."""
    for name in ("torch", "compiled", "statistics"):
        assert results[0][f"{name} resumed"] == results[0][name]


def test_one_process_goes_on_with_the_checkpoint_of_two(results, folder):
    words = some_words()
    more = ddp_runs.fit(ddp_runs.compiled(), loader(words), ckpt_path=folder / ddp_runs.AFTER_EPOCH)
    assert more["own"] == list(range(WORDS))
    assert more["dual"] > results[0]["compiled"]["dual"] / 2
    assert overlap(more, results[0]["compiled"])
    with pytest.raises(ValueError, match="middle of an epoch of 2 processes"):
        ddp_runs.fit(ddp_runs.in_torch(), loader(words), ckpt_path=folder / ddp_runs.IN_EPOCH)


def test_features_get_the_gradient_of_all_examples(results):
    """Batches of all examples: the first stage of joint training is that of one process, up to rounding."""
    alone = ddp_runs.joint(some_words())
    first, mine = (torch.tensor(run["first"]) for run in (results[0]["joint"], alone))
    torch.testing.assert_close(first, mine, rtol=1e-3, atol=1e-4)
    assert results[0]["joint"]["choice"][1] == pytest.approx(alone["choice"][1], abs=0.02)


def test_the_f1_of_spans_is_that_of_all_sentences(results):
    alone = ddp_runs.span_f1(some_words())
    assert 0.0 < alone["val_f1"] < 1.0
    for run in results:
        assert run["span f1"] == pytest.approx(alone, rel=1e-6)


def test_predictions_are_divided(results, folder):
    files = sorted(folder.glob("predictions.*.jsonl"))
    written = [json.loads(line)["index"] for path in files for line in path.read_text().splitlines()]
    assert len(files) == 2
    assert sorted(written) == list(range(WORDS))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sampler", ".*WeightedRandomSampler"),
        ("few", "num_examples=1"),
        ("compiled", "compiled=True"),
        ("factorwise", "GDMM runs in one process"),
    ],
)
def test_what_several_processes_cannot_do_is_refused_in_all_of_them(results, name, text):
    for run in results:
        assert re.match("ValueError: .*" + text, run["refusals"][name]), run["refusals"][name]
