"""Several ranks: processes that talk through gloo, or threads of one process that stand for any number of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from torchssvm import CompiledBCFW, TorchLoop
from torchssvm.core.ranks import Ranks
from torchssvm.distributed.exchange import Exchange, Figures, Round

TIMEOUT = timedelta(minutes=10)


def in_processes(number: int, measure: Callable[..., Any], **options: Any) -> list[Any]:
    """What ``measure(**options)`` returns in each of ``number`` processes, in their order; one is this process."""
    if number == 1:
        return [measure(**options)]
    with TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            _process, (number, folder, measure, options, torch.get_num_threads()), nprocs=number
        )
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(number)]


def _process(
    rank: int, number: int, folder: str, measure: Callable[..., Any], options: dict[str, Any], threads: int
) -> None:
    torch.set_num_threads(threads)
    place = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=number, timeout=TIMEOUT)
    try:
        (Path(folder) / f"{rank}.json").write_text(json.dumps(measure(**options)))
        dist.barrier()
    finally:
        dist.destroy_process_group()


class Room:
    """Where simulated ranks meet.

    Attributes:
        collectives: Exchanges of any kind, each of which sends a message to every other rank.
        sent: Bytes that the first rank sends to others.
    """

    def __init__(self, size: int) -> None:
        self.collectives = self.sent = 0
        self.barrier = threading.Barrier(size)
        self._lists: list[list[Any]] = [[None] * size, [None] * size]
        self._turn = [0] * size

    def share(self, rank: int, value: Any, sent: int) -> list[Any]:
        """The values of all ranks; two lists by turns, so that no rank overwrites what another still reads."""
        turn = self._turn[rank]
        self._turn[rank] = 1 - turn
        values = self._lists[turn]
        values[rank] = value
        if not rank:
            self.collectives += 1
            self.sent += sent
        self.barrier.wait()
        return list(values)


@dataclass(frozen=True)
class Simulated(Ranks):
    """A rank that is a thread: the library's rounds, with memory in place of messages."""

    room: Room | None = None

    def gather(self, numbers: Tensor) -> Tensor:
        """As in ``Ranks``."""
        assert self.room is not None
        return torch.stack(self.room.share(self.rank, numbers, (self.size - 1) * numbers.nbytes))

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """As in ``Ranks``."""
        assert self.room is not None
        away = (sum(sent) - sent[self.rank]) * rows[:1].nbytes
        every = self.room.share(self.rank, rows.split(list(sent)), away)
        return torch.cat([parts[self.rank] for parts in every])


_local = threading.local()


def in_threads(number: int, measure: Callable[..., Any], **options: Any) -> tuple[list[Any], Room]:
    """What ``measure(**options)`` returns on each of ``number`` simulated ranks, and the room where they met."""
    room = Room(number)
    if number == 1:
        return [measure(**options)], room
    results: list[Any] = [None] * number
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        _local.ranks = Simulated(rank, number, room)
        try:
            results[rank] = measure(**options)
        except BaseException as error:
            errors.append(error)
            room.barrier.abort()

    before = Ranks.here
    Ranks.here = classmethod(lambda _: getattr(_local, "ranks", Ranks()))  # type: ignore[method-assign, assignment]
    try:
        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        Ranks.here = before  # type: ignore[method-assign]
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    return results, room


class Counted(Exchange):
    """An exchange that keeps the rho of every round, and counts the bytes ``sent`` to other ranks."""

    def __init__(self, ranks: Ranks, parameters: Sequence[Tensor]) -> None:
        counted = self

        class Counting(type(ranks)):  # type: ignore[misc]
            def gather(self, numbers: Tensor) -> Tensor:
                counted.sent += (self.size - 1) * numbers.nbytes
                return super().gather(numbers)

            def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
                counted.sent += (sum(sent) - sent[self.rank]) * rows[:1].nbytes
                return super().exchange(rows, sent, received)

        super().__init__(Counting(**vars(ranks)), parameters)
        self.rho: list[float] = []
        self.sent = 0

    def __call__(
        self, make: Callable[[], tuple[list[Tensor], Figures]], lam: float, *, farthest: bool = False
    ) -> Round:
        """As in ``Exchange``."""
        results = super().__call__(make, lam, farthest=farthest)
        self.rho.append(results.rho)
        return results

    @classmethod
    def into(cls, loop: CompiledBCFW | TorchLoop) -> Counted | None:
        """Count the rounds of a loop; None in a single process."""
        owner: Any = loop._rounds if isinstance(loop, CompiledBCFW) else loop.optimizer
        if not loop.dual.ranks:
            return None
        owner._exchange = cls(loop.dual.ranks, loop.dual.parameters)
        return owner._exchange
