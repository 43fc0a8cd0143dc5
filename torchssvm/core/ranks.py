"""The processes that train one model together, and their messages."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

if dist.is_available():
    # Its functions keep the default group, as it is when they are imported, as a default argument. Torch imports them
    # with the first optimizer: after init_process_group, Gloo's threads would outlive destroy_process_group, and may
    # end the process by std::terminate while Python finalises. Imported here, before there is a group, they keep none.
    import torch.distributed.nn

_TEXT = 600  # bytes of an error's text that the other ranks are told
_SMALL = 1 << 16  # so many numbers of all ranks together go in one message: it is mostly latency

T = TypeVar("T")


class RankError(RuntimeError):
    """Another process has refused a call, or cannot be reached.

    After a refusal nothing has changed, and all processes may go on; the text says which process refused, and why. If a
    process cannot be reached, start all again from the last checkpoint.

    Example:
        >>> try:
        ...     certificate = solve(LinearMulticlass(4, 3), data, lam=0.1)
        ... except RankError as error:
        ...     raise SystemExit(f"start again: {error}") from error
        >>> certificate.exact
        True
    """


@dataclass(frozen=True)
class Ranks:
    """The ranks of torch's default process group; a process without one is alone.

    Every method that sends something is collective: all ranks call it, in the same order, and it raises RankError where
    one cannot be reached. Sums are taken in the order of the ranks, so that all of them get the same bits.

    Attributes:
        rank: The number of this process, 0 to ``size - 1``.
        size: Number of processes.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> Ranks:
        """The ranks of the default process group, if it has been initialised."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def __bool__(self) -> bool:
        """Whether there are several processes."""
        return self.size > 1

    def own(self, n: int, rank: int | None = None) -> range:
        """The examples of a rank, this one by default: the ranks divide 0 .. n - 1 into contiguous parts.

        ValueError if there are fewer examples than ranks.
        """
        if n < self.size:
            raise ValueError(f"num_examples={n} is below the number of processes, {self.size}: start fewer")
        rank = self.rank if rank is None else rank
        return range(rank * n // self.size, (rank + 1) * n // self.size)

    def gather(self, numbers: Tensor) -> Tensor:
        """The tensors of all ranks in their order, ``[P, *shape]``; they have one shape and dtype."""
        if not self:
            return numbers.unsqueeze(0)
        sent = numbers.to(_device(numbers)).contiguous()
        received = [torch.empty_like(sent) for _ in range(self.size)]
        with _reaching(self):
            dist.all_gather(received, sent)
        return torch.stack(received).to(numbers.device)

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send ``sent[q]`` rows to rank q, one rank after another; returns the ``received`` ones, likewise."""
        if not self:
            return rows
        given = rows.to(_device(rows)).contiguous()
        gathered = given.new_empty(sum(received), *rows.shape[1:])
        with _reaching(self):
            dist.all_to_all_single(gathered, given, list(received), list(sent))
        return gathered.to(rows.device)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks; of a large tensor, each rank adds up a slice, and the slices are gathered."""
        if not self:
            return tensor
        if self.is_small(tensor.numel()):
            return sum_in_order(self.gather(tensor))
        flat = tensor.reshape(-1)
        padded = torch.nn.functional.pad(flat, (0, -flat.numel() % self.size))
        one_each = [1] * self.size
        total = sum_in_order(self.exchange(padded.view(self.size, -1), one_each, one_each))
        return self.gather(total).reshape(-1)[: flat.numel()].view(tensor.shape)

    def collect(self, state: dict[str, Any], to: int = 0) -> list[dict[str, Any]] | None:
        """The states of all ranks in their order, as in checkpoints, at the rank ``to``; None elsewhere."""
        if not self:
            return [state]
        file = io.BytesIO()
        torch.save(state, file)
        packed = torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8)
        sizes = self.gather(torch.tensor([len(packed)])).flatten().tolist()
        sent = [len(packed) if q == to else 0 for q in range(self.size)]
        gathered = self.exchange(packed, sent, sizes if self.rank == to else [0] * self.size)
        if self.rank != to:
            return None
        files = (io.BytesIO(part.cpu().numpy().tobytes()) for part in gathered.split(sizes))
        return [torch.load(part, map_location="cpu", weights_only=True) for part in files]

    def run_on_all(self, action: Callable[[], T]) -> T:
        """What ``action`` returns, once no rank has raised an error; RankError if another one has."""
        return self.share(lambda: (action(), torch.zeros(0)), 0)[0] if self else action()

    def is_small(self, numbers: int) -> bool:
        """Whether so many numbers of every rank should go to all ranks in one message, and not in slices."""
        return self.size * numbers <= _SMALL

    def share(self, action: Callable[[], tuple[T, Tensor]], length: int) -> tuple[T, Tensor]:
        """What ``action`` returns, once no rank has raised an error, and the numbers of all ranks.

        ``action`` returns a result and ``[length]`` numbers for the others; these come back as ``[P, length]`` float64
        on the CPU. RankError if ``action`` raised an error in another rank.
        """
        if not self:
            result, numbers = action()
            return result, numbers.unsqueeze(0)
        message = torch.zeros(1 + length, dtype=torch.float64)
        try:
            result, message[1:] = action()
        except Exception as error:
            self.refuse(error, length)
        every = self.gather(message)
        self._raise_if_refused(every[:, 0])
        return result, every[:, 1:]

    def refuse(self, error: Exception, length: int) -> NoReturn:
        """Tell the others, who :meth:`share` ``length`` numbers at this moment, that this rank refuses."""
        message = torch.zeros(1 + length, dtype=torch.float64)
        message[0] = 1.0
        with suppress(RankError):
            self._raise_if_refused(self.gather(message)[:, 0], error)
        raise error

    def _raise_if_refused(self, refused: Tensor, error: Exception | None = None) -> None:
        """Raise RankError if a rank ``refused``, ``[P]``; ``error`` is the reason of this rank."""
        where = refused.nonzero().flatten().tolist()
        if not where:
            return
        texts = self._texts("" if error is None else f"{type(error).__name__}: {error}")
        raise RankError(
            f"rank {where[0]} of {self.size} refuses, so that rank {self.rank} does too; nothing has changed: "
            f"{texts[where[0]]}"
        )

    def check_same(self, **facts: Any) -> None:
        """Raise ValueError on every rank if the ``repr`` of a fact differs between ranks."""
        if not self:
            return
        told = [repr(value) for value in facts.values()]
        every = self.gather(torch.tensor([zlib.crc32(text.encode()) for text in told]))
        for place, name in enumerate(facts):
            if len(others := (every[:, place] != every[0, place]).nonzero()):
                texts = self._texts(told[place])
                raise ValueError(
                    f"{name} must be the same in all processes: it is {texts[0]} on rank 0 of {self.size}, and "
                    f"{texts[other := int(others[0])]} on rank {other}"
                )

    def _texts(self, text: str) -> list[str]:
        """The texts of all ranks, cut off after ``_TEXT`` bytes."""
        sent = torch.frombuffer(bytearray(text.encode()[:_TEXT].ljust(_TEXT)), dtype=torch.uint8)
        return [bytes(row.tolist()).decode(errors="ignore").strip() for row in self.gather(sent)]

    def refuse_several(self, what: str, advice: str) -> None:
        """Raise ValueError if there are several processes."""
        if self:
            raise ValueError(f"world size {self.size}: {what} runs in one process. {advice}")


@contextmanager
def _reaching(ranks: Ranks) -> Iterator[None]:
    """Raise RankError where torch reports a failed exchange."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(
            f"rank {ranks.rank} of {ranks.size} cannot reach the others. Start again from the last checkpoint; torch "
            f"says: {str(error).split('. ')[0]}"
        ) from error


def _device(tensor: Tensor) -> torch.device:
    """Where the group's backend takes tensors."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return tensor.device


def sum_in_order(every: Tensor) -> Tensor:
    """The sum over the first axis, the ranks, in their order."""
    total = every[0].clone()
    for other in every[1:]:
        total += other
    return total
