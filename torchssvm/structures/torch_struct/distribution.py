"""Calls of torch-struct's distributions on padded batches, so that a result depends on its own example only.

torch-struct, the extra ``torchssvm[torch-struct]``, is not imported here; the user passes one of its classes. These
behaviours are worked around:

* torch-struct scores impossible parts -1e5 or -1e9; potentials of that size make them possible, and the result may be
  empty or not an output. The potentials of each example are scaled by a power of two that keeps every output's score
  well below 1e5; this is exact in floating point and changes no maximiser.
* One of the lengths must be the padded length: the batch is cropped to its longest example, and the result padded.
* ``SemiMarkovCRF`` forbids long segments beyond the end of the batch's shortest example: it gets no lengths, but
  potentials with a path of score 0 through the padding.
* ``DependencyCRF`` sets ``multiroot`` on a class that all its instances share: the old value is restored.
* Decoding computes a gradient: gradients are enabled for it, also under ``no_grad`` and ``inference_mode``, on a copy.

``torch.max`` breaks ties: it takes the first of equal scores and passes the gradient to that one alone. So the result
is a single output even if all potentials are equal, and it is the same with and without padding.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchssvm.core.extras import needs
from torchssvm.core.naming import row_name
from torchssvm.structures.torch_struct.conventions import convention_of

SCORE_LIMIT = 2.0**14
"""Largest absolute score of an output after scaling; torch-struct's smallest penalty is -1e5."""

FORBIDDEN = -(2.0**16)
"""Score of a forbidden part: no other parts can make up for it."""


class PaddedDistribution:
    """A distribution, called with padded potentials ``[B, *event]`` and lengths ``[B]`` int64 (None: no padding).

    Args:
        kind: The class of the distribution.
        arguments: Its further arguments.
        axes: The padded axes, for a class that is not torch-struct's.
        offset: The size of these axes minus the length, likewise.

    Attributes:
        convention: How the distribution pads its events.

    Raises:
        TypeError: ``kind`` is not a class with ``argmax``, or does not take ``arguments``.
        ValueError: torch-struct cannot decode with ``kind``, or its padding is unknown.
    """

    def __init__(
        self, kind: type[Any], arguments: dict[str, Any], axes: Sequence[int] | None, offset: int | None
    ) -> None:
        if not isinstance(kind, type) or not hasattr(kind, "argmax"):
            # The repr of a torch-struct instance raises an error.
            got = f"the class {kind.__name__}" if isinstance(kind, type) else f"a {type(kind).__name__}"
            raise TypeError(f"distribution must be a class with argmax, as torch_struct.LinearChainCRF is; got {got}")
        self.convention = convention_of(kind, axes, offset)
        if reserved := arguments.keys() & {"log_potentials", "lengths"}:
            raise TypeError(f"{sorted(reserved)[0]} comes with the potentials, not with the constructor")
        try:
            inspect.signature(kind).bind(None, lengths=None, **arguments)
        except TypeError as error:
            raise TypeError(f"{kind.__name__} does not take {arguments}: {error}") from None
        self.kind: Any = kind  # mypy takes no type[Any] for Hashable
        self.arguments = arguments

    def __repr__(self) -> str:
        """As users write it."""
        arguments = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        return f"TorchStruct({self.kind.__name__}{arguments})"

    def argmax(self, scores: Tensor, lengths: Tensor | None) -> Tensor:
        """The highest-scoring event of every example, ``[B, *event]`` in the dtype of ``scores``.

        Raises:
            ValueError: Shape, dtype or lengths do not fit the distribution, or a number is not finite.
            RuntimeError: The distribution returned something that is not an indicator.
        """
        extents = self.extents(scores, lengths)
        with torch.inference_mode(False), torch.enable_grad():
            found = torch.zeros(scores.shape, dtype=scores.dtype, device=scores.device)
            if len(scores):
                box, cropped, real = self._crop(scores, extents)
                cropped = cropped * per_row(self._scale(cropped), cropped)
                with self._instance(cropped, extents) as distribution:
                    events = distribution.argmax.detach().to(scores.dtype)
                if events.shape != cropped.shape or not bool((events == events.round()).all()):
                    raise RuntimeError(
                        f"argmax of {self.kind.__name__} must be an indicator shaped like the potentials "
                        f"{list(cropped.shape)}; got {list(events.shape)} with numbers {events.unique()[:8].tolist()}"
                    )
                found[box] = events * real
        return found

    def marginals(self, scores: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """The marginals ``[B, *event]`` in the dtype of ``scores``, and the log-partition ``[B]`` float64.

        Raises:
            ValueError: As ``argmax``; or the potentials are so large that an output could score as much as
                torch-struct's penalties of impossible parts.
            TypeError: The distribution has no marginals.
        """
        if not hasattr(self.kind, "marginals"):
            raise TypeError(
                f"{self.kind.__name__} has no marginals: use StructuredHinge, which needs a max oracle only"
            )
        extents = self.extents(scores, lengths)
        with torch.inference_mode(False), torch.enable_grad():
            mean = torch.zeros(scores.shape, dtype=scores.dtype, device=scores.device)
            log_partition = torch.zeros(len(scores), dtype=torch.float64, device=scores.device)
            if len(scores):
                box, cropped, real = self._crop(scores, extents)
                if bool((self._scale(cropped) < 1.0).any()):
                    raise ValueError(
                        f"potentials reach {float(cropped.abs().max()):.3g}, too large for marginals of {self}: an "
                        f"output could score more than {SCORE_LIMIT:g}, and torch-struct uses -1e5 for impossible parts"
                    )
                with self._instance(cropped, extents) as distribution:
                    mean[box] = distribution.marginals.detach().to(scores.dtype) * real
                    log_partition[:] = distribution.partition.detach()
        return mean, log_partition

    def extents(self, scores: Tensor, lengths: Tensor | None) -> Tensor:
        """The size of the padded axes without padding, ``[B]``.

        Raises:
            ValueError: Shape, dtype or lengths do not fit the distribution.
        """
        axes, offset, name, layout, ndims, square = self.convention
        sizes = {scores.shape[axis] for axis in axes if axis < scores.ndim}
        fits = len(sizes) == 1 and max(axes) < scores.ndim
        if layout:
            fits = fits and scores.ndim in ndims and (not square or scores.shape[-1] == scores.shape[-2])
            fits = fits and all(scores.shape[1:]) and (name != "SemiMarkovCRF" or scores.shape[2] > 1)
        if not fits:
            shape = layout or f"[B, *event] with equal sizes of the padded axes {axes}"
            raise ValueError(f"potentials of {self} must be {shape}; got {list(scores.shape)}")
        if scores.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"potentials of {self} must be float32 or float64, got {scores.dtype}")
        (size,) = sizes
        if lengths is None:
            return torch.full(scores.shape[:1], size, device=scores.device)
        extents = lengths.to(scores.device) + offset
        if bool(((extents < 1) | (extents > size)).any()):
            raise ValueError(
                f"lengths of {self} must lie between {1 - offset} and {size - offset} for potentials "
                f"{list(scores.shape)}; got {int(lengths.min())} to {int(lengths.max())}"
            )
        return extents

    def real(self, scores: Tensor, extents: Tensor) -> Tensor:
        """Mask of the parts that are not padding; broadcasts to ``scores``."""
        real = torch.ones_like(extents, dtype=torch.bool).view(-1, *[1] * (scores.ndim - 1))
        for axis in self.convention.axes:
            shape = [-1 if other == axis else 1 for other in range(scores.ndim)]
            position = torch.arange(scores.shape[axis], device=scores.device).view(shape)
            real = real & (position < per_row(extents, scores))
        return real

    def _crop(self, scores: Tensor, extents: Tensor) -> tuple[tuple[slice, ...], Tensor, Tensor]:
        """The slices of the longest example, the scores there (zero in the padding), and the mask of real parts.

        Raises:
            ValueError: A score that is not padding is not finite.
        """
        size = int(extents.max())
        box = tuple(slice(size) if axis in self.convention.axes else slice(None) for axis in range(scores.ndim))
        cropped = scores.detach()[box]
        real = self.real(cropped, extents)
        cropped = cropped.masked_fill(~real, 0.0)
        if not bool(torch.isfinite(cropped).all()):
            row = int((~torch.isfinite(cropped)).nonzero()[0, 0])
            raise ValueError(
                f"potentials of {row_name(row)} are not finite; a part that must not be chosen can "
                f"have a large negative number, such as -1e6"
            )
        return box, cropped, real

    def _scale(self, scores: Tensor) -> Tensor:
        """Powers of two, at most 1, that keep the score of any output within ``SCORE_LIMIT``: ``[B]``."""
        parts = 1
        for axis in self.convention.axes:
            parts *= scores.shape[axis]
        highest = scores.abs().flatten(1).amax(1).to(torch.float64) * parts
        exponent = torch.frexp(highest / SCORE_LIMIT).exponent.clamp(min=0)
        return torch.exp2(-exponent.to(torch.float64)).to(scores.dtype)

    @contextmanager
    def _instance(self, scores: Tensor, extents: Tensor) -> Iterator[Any]:
        """The distribution with cropped potentials."""
        if self.convention.name == "SemiMarkovCRF":
            lengths, scores = None, _bridge_padding(scores, extents)
        else:
            lengths = extents - self.convention.offset
        with _multiroot_put_back(self.convention.name):
            yield _silent(self.kind)(scores.requires_grad_(), lengths=lengths, **self.arguments)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """``values`` ``[B]`` with an axis of size 1 for every other axis of ``like``."""
    return values.view(-1, *[1] * (like.ndim - 1))


def _bridge_padding(scores: Tensor, extents: Tensor) -> Tensor:
    """Semi-Markov potentials in which every path ends a segment where the example ends, and then scores 0.

    Args:
        scores: ``[B, N-1, K, C, C]``, zero in the padding.
        extents: ``[B]``, where each example ends.
    """
    _, longest, durations, states, _ = scores.shape
    start = torch.arange(longest, device=scores.device).view(1, -1, 1)
    duration = torch.arange(durations, device=scores.device).view(1, 1, -1)
    end = extents.view(-1, 1, 1)
    idle = (start >= end) & (duration == 1)  # [B, N-1, K]
    crosses = (start + duration > end) & ~idle
    same = torch.eye(states, dtype=torch.bool, device=scores.device)
    return scores.masked_fill(crosses[..., None, None] | (idle[..., None, None] & ~same), FORBIDDEN)


@cache
def _silent(kind: type[Any]) -> type[Any]:
    """The same distribution without torch's warning that it declares no ``arg_constraints``."""
    if not isinstance(getattr(kind, "arg_constraints", None), property):
        return kind
    return type(kind.__name__, (kind,), {"arg_constraints": {}, "__module__": kind.__module__})


_multiroot_lock = threading.RLock()


@contextmanager
def _multiroot_put_back(name: str) -> Iterator[None]:
    """Restore ``multiroot``, which a DependencyCRF sets on a class shared by all instances."""
    if name != "DependencyCRF":
        yield
        return
    with needs("TorchStruct needs torch-struct: pip install 'torchssvm[torch-struct]'", "torch_struct"):
        from torch_struct.deptree import DepTree

    with _multiroot_lock:
        before = vars(DepTree).get("multiroot")
        try:
            yield
        finally:
            if before is not None:
                DepTree.multiroot = before
            elif "multiroot" in vars(DepTree):
                del DepTree.multiroot
