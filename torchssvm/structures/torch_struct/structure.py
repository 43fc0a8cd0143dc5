"""A torch-struct distribution as a structure for max-margin training.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from torchssvm.core.arguments import check_flags, check_number, needs
from torchssvm.core.decoding import Decoding
from torchssvm.core.marginals import Marginals
from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import Structure, reject_rows
from torchssvm.structures.common import check_shape, reject_entries

SCORE_LIMIT = 2.0**14
"""Largest absolute score of an output after scaling; torch-struct's smallest penalty is -1e5."""

FORBIDDEN = -(2.0**16)
"""Score of a forbidden part: no other parts can make up for it."""


class Convention(NamedTuple):
    """How a distribution pads its events."""

    axes: tuple[int, ...]  # the axes of ``[B, *event]`` that are padded
    offset: int  # size of these axes minus the length, e.g. -1 for an axis of pairs of neighbours
    name: str = ""  # the name of the class in torch-struct; empty for other classes
    layout: str = ""  # the potentials' shape in words; empty if it is not checked
    ndims: tuple[int, ...] = ()  # the numbers of axes that potentials may have
    square: bool = False  # whether the last two axes are the next and the previous state


_KNOWN = {
    known.name: known
    for known in (
        Convention(
            (1,), -1, "LinearChainCRF", "[B, N-1, C, C] (position, next state, previous state)", (4,), square=True
        ),
        Convention(
            (1,),
            -1,
            "SemiMarkovCRF",
            "[B, N-1, K, C, C] (start, duration < K, next state, previous state) with K > 1",
            (5,),
            square=True,
        ),
        Convention(
            (1, 2), 0, "DependencyCRF", "[B, N, N] or [B, N, N, L] (head, child; roots on the diagonal)", (3, 4)
        ),
        Convention((1, 2), 0, "TreeCRF", "[B, N, N, NT] (first token, last token, nonterminal)", (4,)),
    )
}


def convention_of(kind: type[Any], axes: Sequence[int] | None, offset: int | None) -> Convention:
    """The convention of a class of torch-struct or of a subclass; ``axes`` and ``offset`` give it for other classes."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "torch_struct":
            if base.__name__ not in _KNOWN:
                if base is not kind and base.__name__ == "StructDistribution":
                    break  # a user's distribution
                raise TypeError(f"distribution={base.__name__} cannot be decoded: give one of {', '.join(_KNOWN)}")
            if axes is not None or offset is not None:
                raise ValueError(
                    f"padded_axes={axes} and length_offset={offset} of {base.__name__} are known: give neither"
                )
            return _KNOWN[base.__name__]
    if offset is None or not axes or min(axes) < 1 or len(set(axes)) != len(axes):
        raise ValueError(
            f"padded_axes={axes} and length_offset={offset} must say how {kind.__name__} pads its events: give "
            "different axes from 1 on, and their size minus the length"
        )
    return Convention(tuple(axes), offset)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """``values`` ``[B]`` with an axis of size 1 for every other axis of ``like``."""
    return values.view(-1, *[1] * (like.ndim - 1))


def bridge_padding(scores: Tensor, extents: Tensor) -> Tensor:
    """Semi-Markov potentials in which every path ends a segment where the example ends, and then scores 0.

    ``scores`` ``[B, N-1, K, C, C]`` are zero in the padding; ``extents`` ``[B]`` is where each example ends.
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
def silent(kind: type[Any]) -> type[Any]:
    """The same distribution without torch's warning that it declares no ``arg_constraints``."""
    if not isinstance(getattr(kind, "arg_constraints", None), property):
        return kind
    return type(kind.__name__, (kind,), {"arg_constraints": {}, "__module__": kind.__module__})


_multiroot_lock = threading.RLock()


@contextmanager
def multiroot_put_back(name: str) -> Iterator[None]:
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


LossPotentials = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps a target ``[B, *event]`` to ``(delta, constant)``, ``[B, *event]`` and ``[B]``."""


class TorchStruct(Structure):
    """A torch-struct distribution as a structure: ``TorchStruct(torch_struct.LinearChainCRF)``.

    Potentials: one float32 or float64 tensor ``[B, *event]`` of finite log-potentials in the distribution's
    layout, and ``lengths`` in tokens. Potentials in the padding are ignored. Labelings and targets are the
    distribution's events: indicators of the parts, ``[B, *event]``, zero in the padding. (torch-struct's
    ``to_event`` and some of its ``to_parts`` ignore the lengths and write into the padding.) Parts and lengths:

    * ``LinearChainCRF`` ``[B, N-1, C, C]``: position n, state at n+1, state at n. Lengths 2 to N.
    * ``SemiMarkovCRF`` ``[B, N-1, K, C, C]``: position n, duration k from 1 to K-1 (index 0 is unused),
      state at n+k, state at n. Lengths 2 to N.
    * ``DependencyCRF`` ``[B, N, N]`` or ``[B, N, N, L]``: head, child, label of a projective tree's arc; the
      root's arcs are on the diagonal. Lengths 1 to N.
    * ``TreeCRF`` ``[B, N, N, NT]``: first token, last token (inclusive), nonterminal of a binary tree's span,
      single tokens included. Lengths 1 to N.

    The loss counts the parts of y that the target lacks, ``L(y) = weight * sum_p y_p [target_p = 0]``, unless
    ``loss_potentials`` is given.

    Args:
        distribution: A class of torch-struct, or a class with the same interface: called with
            ``(log_potentials, lengths=...)``, with an ``argmax`` that is an indicator ``[B, *event]``.
        loss_potentials: Replaces the default loss: maps a target ``[B, *event]`` to ``delta`` ``[B, *event]`` and
            ``constant`` ``[B]``; the loss is ``<y, delta> + constant``, which must be non-negative, and zero at
            the target. Values that are zero up to rounding count as zero.
        weight: Cost of a part that the target lacks; not with ``loss_potentials``.
        normalize: Divide the default loss by the number of the target's parts; not with ``loss_potentials``.
        verify_targets: Whether ``check_target`` decodes to verify that targets are outputs.
        padded_axes: For other classes: the axes of ``[B, *event]`` that are padded, e.g. ``(1, 2)``.
        length_offset: For other classes: the size of these axes minus the length.
        **arguments: Passed to ``distribution``, e.g. ``multiroot=False``.

    Raises:
        TypeError: ``distribution`` is not a class with ``argmax``, or one of torch-struct that is not listed above, or
            does not take ``arguments``.
        ValueError: The padding of ``distribution`` is unknown, or an argument of the loss is wrong.

    Example:
        >>> import torch_struct
        >>> chain = TorchStruct(torch_struct.LinearChainCRF)
        >>> potentials = Potentials(torch.randn(2, 4, 3, 3), torch.tensor([5, 4]))  # up to five tokens, three states
        >>> chain.argmax(potentials).labeling.sum((1, 2, 3))  # one part for each pair of neighbours
        tensor([4., 3.])
    """

    _not_plain = "torch-struct decodes by gradients"

    padding = 0

    def __init__(
        self,
        distribution: type[Any],
        *,
        loss_potentials: LossPotentials | None = None,
        weight: float = 1.0,
        normalize: bool = False,
        verify_targets: bool = False,
        padded_axes: Sequence[int] | None = None,
        length_offset: int | None = None,
        **arguments: Any,
    ) -> None:
        weight = check_number(weight, "weight", 0.0)
        check_flags(normalize=normalize, verify_targets=verify_targets)
        if loss_potentials is not None and (weight != 1.0 or normalize):
            raise ValueError("loss_potentials replaces the loss: leave weight and normalize out")
        if not isinstance(distribution, type) or not hasattr(distribution, "argmax"):
            # The repr of a torch-struct instance raises an error.
            name = distribution.__name__ if isinstance(distribution, type) else f"a {type(distribution).__name__}"
            raise TypeError(f"distribution must be a class with argmax, as torch_struct.LinearChainCRF; got {name}")
        self.convention = convention_of(distribution, padded_axes, length_offset)
        try:
            inspect.signature(distribution).bind(None, lengths=None, **arguments)
        except TypeError as error:
            raise TypeError(
                f"distribution={distribution.__name__} does not take {sorted(arguments)}: {error}"
            ) from None
        self.distribution: Any = distribution  # mypy takes no type[Any] for Hashable
        self.arguments = arguments
        self.custom_loss = loss_potentials
        self.weight = weight
        self.normalize = normalize
        self.verify_targets = verify_targets

    def argmax(self, potentials: Potentials) -> Decoding:
        """The highest-scoring event of every example, ``[B, *event]`` in the dtype of the potentials.

        Ties are always broken in the same way.

        Raises:
            ValueError: Shape, dtype or lengths do not fit the distribution, or a number is not finite.
            RuntimeError: The distribution returned something that is not an indicator.
        """
        scores = potentials.single
        extents = self._extents(scores, potentials.lengths)
        with torch.inference_mode(False), torch.enable_grad():
            labeling = torch.zeros(scores.shape, dtype=scores.dtype, device=scores.device)
            if len(scores):
                box, cropped, real = self._crop(scores, extents)
                cropped = cropped * per_row(self._scale(cropped), cropped)
                with self._instance(cropped, extents) as distribution:
                    events = distribution.argmax.detach().to(scores.dtype)
                if events.shape != cropped.shape or not bool((events == events.round()).all()):
                    raise RuntimeError(
                        f"argmax of {self.distribution.__name__} must be an indicator {list(cropped.shape)}; got "
                        f"{list(events.shape)} with numbers {events.unique()[:8].tolist()}"
                    )
                labeling[box] = events * real
        return Decoding(labeling)

    def marginals(self, potentials: Potentials) -> Marginals:
        """The distribution's marginals ``[B, *event]`` and log-partition.

        Raises:
            ValueError: As ``argmax``; or the potentials are so large that an output could score as much as
                torch-struct's penalties of impossible parts.
        """
        scores, (name,) = potentials.single, potentials.tensors
        extents = self._extents(scores, potentials.lengths)
        with torch.inference_mode(False), torch.enable_grad():
            mean = torch.zeros(scores.shape, dtype=scores.dtype, device=scores.device)
            log_partition = torch.zeros(len(scores), dtype=torch.float64, device=scores.device)
            if len(scores):
                box, cropped, real = self._crop(scores, extents)
                if bool((self._scale(cropped) < 1.0).any()):
                    raise ValueError(
                        f"potentials reach {float(cropped.abs().max()):.3g}, too large for marginals: outputs must "
                        f"score at most {SCORE_LIMIT:g}"
                    )
                with self._instance(cropped, extents) as distribution:
                    mean[box] = distribution.marginals.detach().to(scores.dtype) * real
                    log_partition[:] = distribution.partition.detach()
        return Marginals({name: mean}, log_partition)

    def parts(self, labeling: Tensor) -> Tensor:
        """The events themselves, ``[B, *event]``; integers and bools are cast to the default floating dtype."""
        return labeling if labeling.is_floating_point() else labeling.to(torch.get_default_dtype())

    def loss(self, labeling: Tensor, target: Tensor) -> Tensor:
        """``<labeling, delta> + constant`` of ``loss_potentials(target)``: ``[B]`` float64."""
        delta, constant = self.loss_potentials(target)
        costs = (labeling.to(torch.float64) * delta).flatten(1)
        loss = costs.sum(1) + constant
        if self.custom_loss is None:
            return loss
        # At the target delta and constant cancel, but rounding could leave a small loss.
        rounding = 100 * torch.finfo(delta.dtype).eps * (costs.abs().sum(1) + constant.abs())
        return loss.masked_fill(loss.abs() <= rounding, 0.0)

    def loss_potentials(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """``weight`` where the target has no part (``[B, *event]`` float64) and 0, or the given ``loss_potentials``.

        Raises:
            ValueError: The user's function did not return two tensors ``[B, *event]`` and ``[B]``.
        """
        if self.custom_loss is None:
            delta = (target == 0).to(torch.float64) * self.weight
            if self.normalize:
                counts = target.flatten(1).sum(1, dtype=torch.float64).clamp(min=1.0)
                delta = delta / per_row(counts, delta)
            return delta, delta.new_zeros(len(delta))
        delta, constant = self.custom_loss(target)
        check_shape(delta, "delta of loss_potentials(target)", *target.shape)
        return delta, check_shape(constant, "constant of loss_potentials(target)", len(target))

    def check_target(self, target: Tensor, potentials: Potentials) -> Tensor:
        """Check a target's shape, numbers, padding and lengths; cast it to the dtype of the potentials.

        Raises:
            TypeError: ``target`` is not a tensor.
            ValueError: It is not shaped like the potentials; a number is not 0 or 1 (for other classes: not a
                count); a part lies in the padding; an example has no part; a length is out of
                range; or, with ``verify_targets``, a target is not an output.
        """
        scores = potentials.single
        extents = self._extents(scores, potentials.lengths)
        check_shape(target, "target", *scores.shape)
        if not target.is_floating_point():
            target = target.to(torch.int64)  # bool has no arithmetic
        known = bool(self.convention.layout)
        most = 1 if known else torch.finfo(scores.dtype).max
        wrong = ~((target >= 0) & (target <= most) & (target == target.round()))
        reject_entries(wrong, target, "target has", f"give {'zeros and ones' if known else 'counts'}")
        outside = (target != 0) & ~self._real(target, extents)
        reject_entries(outside, target, "target has", "parts must lie within the length")
        if known:
            reject_rows(~target.flatten(1).any(1), "target has no part in {rows}: leave these examples out")
        target = target.to(scores.dtype)
        if self.verify_targets:
            valid = self.is_output(target, potentials.lengths)
            reject_rows(~valid, "target of {rows} is not an output of the distribution: leave these examples out")
        return target

    @override
    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        (name,), scores = potentials.tensors, potentials.single
        return {name: self._real(scores, self._extents(scores, potentials.lengths))}

    def is_output(self, labeling: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Whether each event is an output of the distribution: ``[B]`` bool, at the cost of one ``argmax``.

        An output is the only maximiser of the potentials that are 1 at its parts and -1 elsewhere.

        Args:
            labeling: ``[B, *event]``, zeros and ones.
            lengths: ``[B]`` int64, or None.
        """
        events = self.parts(labeling)
        best = self.argmax(Potentials(2 * events - 1, lengths)).labeling
        return (best == events).flatten(1).all(1)

    def _extents(self, scores: Tensor, lengths: Tensor | None) -> Tensor:
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
        (size,) = sizes
        if lengths is None:
            return torch.full(scores.shape[:1], size, device=scores.device)
        extents = lengths.to(scores.device) + offset
        if bool(((extents < 1) | (extents > size)).any()):
            low, high = int(lengths.min()), int(lengths.max())
            raise ValueError(f"lengths must lie between {1 - offset} and {size - offset}, got {low} to {high}")
        return extents

    def _real(self, scores: Tensor, extents: Tensor) -> Tensor:
        """Mask of the parts that are not padding; broadcasts to ``scores``."""
        real = per_row(torch.ones_like(extents, dtype=torch.bool), scores)
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
        real = self._real(cropped, extents)
        cropped = cropped.masked_fill(~real, 0.0)
        wrong = ~cropped.isfinite().flatten(1).all(1)
        reject_rows(wrong, "potentials of {rows} are not finite: forbid a part by large negative numbers, as -1e6")
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
            lengths, scores = None, bridge_padding(scores, extents)
        else:
            lengths = extents - self.convention.offset
        with multiroot_put_back(self.convention.name):
            yield silent(self.distribution)(scores.requires_grad_(), lengths=lengths, **self.arguments)

    def __repr__(self) -> str:
        arguments = "".join(f", {name}={value!r}" for name, value in self.arguments.items())
        return f"TorchStruct({self.distribution.__name__}{arguments})"
