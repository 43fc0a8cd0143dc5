"""Several processes that train together, forked: what is imported and compiled here, they have."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

ENDED = "ended without an answer"


def in_processes(size: int, job: Callable[[int], Any], *, timeout: float = 20.0, seconds: float = 50.0) -> list[Any]:
    """What ``job(rank)`` returns in each of ``size`` processes of a gloo group; ``ENDED`` for one that has ended.

    One process is this one: run a job so first, and its kernels are compiled and loaded for the others.

    Args:
        size: Number of processes.
        job: What each runs.
        timeout: Seconds after which a process gives up waiting for another one.
        seconds: Seconds after which the processes are killed.

    Raises:
        AssertionError: A process raised an error, or they took too long.
    """
    if size == 1:
        return [job(0)]
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("processes are forked")
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        running, pipes = [], []
        for rank in range(size):
            here, there = context.Pipe(duplex=False)
            child = context.Process(target=_run, args=(job, rank, size, Path(folder), timeout, there), daemon=True)
            child.start()
            there.close()
            running.append(child)
            pipes.append(here)
        results: dict[int, Any] = {}
        while len(results) < size and (ready := wait([p for r, p in enumerate(pipes) if r not in results], seconds)):
            for pipe in ready:
                results[pipes.index(pipe)] = _read(pipe)  # type: ignore[arg-type]
        for child in running:
            if len(results) < size:
                child.kill()
            child.join()
    assert len(results) == size, f"processes {sorted(set(range(size)) - set(results))} did not end in {seconds} s"
    wrong = [text for answer in results.values() if answer != ENDED and (text := answer[1])]
    assert not wrong, "\n".join(wrong)
    return [results[rank] if results[rank] == ENDED else results[rank][0] for rank in range(size)]


def _read(pipe: Connection) -> Any:
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        return ENDED


def _run(job: Callable[[int], Any], rank: int, size: int, folder: Path, timeout: float, pipe: Connection) -> None:
    torch.set_num_threads(1)
    answer = None, None
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'store'}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
        answer = job(rank), None
    except BaseException:
        answer = None, f"rank {rank} of {size}:\n{traceback.format_exc()}"
    finally:
        pipe.send_bytes(pickle.dumps(answer))
        pipe.close()
        os._exit(0)  # without what the parent process would do at its end


def refused(action: Callable[[], Any]) -> tuple[str, str]:
    """The kind and the text of the error that ``action`` raises."""
    try:
        action()
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError("no error was raised")
