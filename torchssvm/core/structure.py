"""What a structure is, and the loss-augmented decoding that everything else is made of."""

from __future__ import annotations

import functools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_tensor, describe, naming, row_names
from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.marginals import Marginals
from torchssvm.core.max_marginals import margins_by_decoding
from torchssvm.core.operators import plain, transformed
from torchssvm.core.packages import is_ours
from torchssvm.core.potentials import (
    Parts,
    Potentials,
    as_potentials,
    check_scores_finite,
    conform,
    inner,
    inner_and_sizes,
    padding_of,
    scale,
    subtract,
)


@dataclass(eq=False)
class OracleResult:
    """One output of every example of a batch, as the max oracle, the cache or a structure's examination found it.

    Attributes:
        labeling: The outputs s_i.
        score: ``<p(s_i) - p(y_i), theta_i>``, ``[B]`` float64.
        loss: ``L_i(s_i)``, ``[B]`` float64.
        hinge: ``L_i(s_i) + <p(s_i) - p(y_i), theta_i>``, ``[B]`` float64: the structured hinge H_i of an exact oracle.
        upper: ``[B]`` float64, an upper bound of H_i; None where ``hinge`` is one.
        exact: Whether ``hinge`` is H_i.
        relaxed: Whether the outputs may lie outside of the hull of outputs.
        decoded: ``[B]`` bool, whether the max oracle was asked; None where it was for all.
        column: ``[B]`` int64, the column of ``Stored.atoms`` that holds the labeling already, 0 where none does; None
            where nobody asked.
        read: ``hinge`` and ``bound`` on the CPU, where the max oracle has read them.
        made: ``p(s_i) - p(y_i)`` if they were made to score the outputs; else None.
        make: Makes them; None where nobody may ask for them.
    """

    labeling: Any
    score: Tensor
    loss: Tensor
    made: Parts | None = None
    upper: Tensor | None = None
    exact: bool = True
    relaxed: bool = False
    decoded: Tensor | None = None
    column: Tensor | None = None
    read: tuple[Tensor, Tensor] | None = None
    make: Callable[[], Parts] | None = None

    @cached_property
    def hinge(self) -> Tensor:
        """Score plus loss."""
        return self.score + self.loss

    @property
    def bound(self) -> Tensor:
        """``upper``, or ``hinge`` where that is None."""
        return self.hinge if self.upper is None else self.upper

    @property
    def parts(self) -> Parts:
        """``p(s_i) - p(y_i)``, made when they are first asked for."""
        if self.made is None:
            assert self.make is not None, "these outputs came without a way to make their parts"
            self.made = self.make()
        return self.made


Labeling = Any
"""An output for each example of a batch: usually an int64 tensor ``[B, ...]``, or a tuple of tensors."""


class Decoding(NamedTuple):
    """What a max oracle returns.

    Attributes:
        labeling: The outputs found, one for each example.
        value: ``[B]``, their scores under the potentials that were decoded; None lets them be computed from the parts.
            -inf says that no output is possible, as potentials of -inf forbid each: the labeling then means nothing.
        bound: ``[B]``, no output scores higher than this; None means that ``value`` is the maximum.
        exact: Whether the labeling is a maximiser. An approximate oracle says False and gives its bound.
        relaxed: Whether labelings may lie outside of the hull of outputs, such as a fractional vertex of a linear
            program. The dual then is that of the relaxation, and so are its certificates.

    Example:
        >>> decoding = Multiclass(3).argmax(Potentials(torch.tensor([[0.0, 2.0, 1.0]])))
        >>> decoding.labeling, decoding.value, decoding.exact
        (tensor([1]), tensor([2.]), True)
    """

    labeling: Labeling
    value: Tensor | None = None
    bound: Tensor | None = None
    exact: bool = True
    relaxed: bool = False


def scored(structure: Structure, oracle: Callable[..., Any], potentials: Any, *args: Any, **kwargs: Any) -> Any:
    """What an oracle of the structure returns for the output of a head, whose scores are checked once.

    Raises:
        ValueError: A score is NaN or +inf, or a tensor that the structure needs is missing.
    """
    potentials = as_potentials(potentials)
    if potentials.examined or plain() or transformed():
        return oracle(potentials, *args, **kwargs)
    with naming(potentials.index):
        check_scores_finite(potentials, structure.places, structure.signed)
        potentials.examined = True
        try:
            return oracle(potentials, *args, **kwargs)
        except KeyError as error:
            if not is_ours(type(structure)) or not error.args or error.args[0] in potentials.tensors:
                raise  # others have dictionaries of their own
            message = f"{structure}: {error} is none of the potentials {sorted(potentials.tensors)}"
            raise ValueError(message + ": give what a head returned") from error
        finally:
            potentials.examined = False


def gated(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """An oracle that takes any output of a head, and checks the scores; see :func:`scored`."""

    @functools.wraps(oracle)
    def call(self: Structure, potentials: Any, *args: Any, **kwargs: Any) -> Any:
        return scored(self, functools.partial(oracle, self), potentials, *args, **kwargs)

    return call


def _naming(check: Callable[..., Any]) -> Callable[..., Any]:
    """A structure's check of targets that names examples, where the potentials know them."""

    @functools.wraps(check)
    def call(self: Structure, target: Any, potentials: Potentials, *args: Any, **kwargs: Any) -> Any:
        with naming(getattr(potentials, "index", None)):
            return check(self, target, potentials, *args, **kwargs)

    return call


def _of_labelings(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A loss that refuses by name what holds no tensor."""

    @functools.wraps(loss)
    def call(self: Structure, labeling: Any, target: Any) -> Any:
        for name, given in (("labeling", labeling), ("target", target)):
            if not tree_tensors(given):
                raise TypeError(f"loss: {name} must hold tensors, as a labeling of decode does, not {describe(given)}")
        return loss(self, labeling, target)

    return call


def _on_cpu(init: Callable[..., None]) -> Callable[..., None]:
    """A constructor whose tensors hold numbers, also of a model that is made on the meta device."""

    @functools.wraps(init)
    def call(self: Structure, *args: Any, **kwargs: Any) -> None:
        with torch.device("cpu") if torch.get_default_device().type == "meta" else nullcontext():
            init(self, *args, **kwargs)

    return call


class Structure(ABC):
    """What an output is: its parts, its loss, and how the best one is found.

    A subclass defines ``argmax``, ``parts``, ``loss`` and ``loss_potentials``; the rest has defaults. Score and loss
    are linear in the parts: ``score(y) = <parts(y), potentials>``, ``loss(y, t) = <parts(y), delta(t)> + constant(t)``.

    ``decode`` takes whatever a head returns: :class:`Potentials`, a tensor, or tensors by name. It refuses scores that
    are NaN or +inf, as training and certificates do; -inf stands for what is forbidden. A subclass's own methods are
    called as they are: oracles with :class:`Potentials`, and methods other than ``check_target`` with targets as that
    returned them.

    Example:
        >>> from torchssvm.core.structure import Decoding
        >>> class Sign(Structure):
        ...     def argmax(self, potentials):
        ...         return Decoding((potentials.single > 0).long())
        ...     def parts(self, labeling):
        ...         return labeling.to(torch.get_default_dtype())
        ...     def loss(self, labeling, target):
        ...         return (labeling != target).double()
        ...     def loss_potentials(self, target):
        ...         return 1.0 - 2.0 * target, target.double()
        >>> Sign().decode(torch.tensor([0.5, -1.0]))
        tensor([1, 0])
    """

    padding: int = -1
    """What stands in a labeling beyond an example's length."""

    unit: str = "token"
    """What a labeling has one number of, in words about errors."""

    quick_to_decode: bool = False
    """Whether decoding takes no longer than the rest of a step, so that to reuse labelings does not pay."""

    target_is_labeling: bool = False
    """Whether a target that is a tensor has the shape and dtype of a labeling; subclasses say it anew."""

    not_plain: str = ""
    """Why plain torch operators do not decode it, as a clause; empty where they do."""

    state_parts: tuple[float, float] = (0.0, 1.0)
    """The part of a single state that an output has not, and of one that it has: max-marginals are for two values."""

    pairwise_if_few: bool = False
    """Whether pairwise steps are quicker where there are fewer examples than weights, although decoding is quick."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not is_ours(cls):  # a user's methods stay as they are: decode, training and certificates check
            return
        for name in ("argmax", "augmented_argmax", "marginals", "max_marginals"):
            if name in vars(cls):
                setattr(cls, name, gated(vars(cls)[name]))
        if "__init__" in vars(cls):
            cls.__init__ = _on_cpu(vars(cls)["__init__"])  # type: ignore[method-assign]
        if "loss" in vars(cls):
            cls.loss = _of_labelings(vars(cls)["loss"])  # type: ignore[method-assign]
        if "check_target" in vars(cls):
            cls.check_target = _naming(vars(cls)["check_target"])  # type: ignore[method-assign]

    @abstractmethod
    def argmax(self, potentials: Potentials) -> Decoding | Labeling:
        """The highest-scoring output of every example.

        Args:
            potentials: The batch; ``potentials.single`` is its only tensor, ``potentials["name"]`` one of several,
                ``potentials.lengths`` the lengths.

        Returns:
            A labeling (taken as exact), or a :class:`Decoding`.
        """

    @abstractmethod
    def parts(self, labeling: Labeling) -> Tensor | Mapping[str, Tensor]:
        """The parts of ``labeling``, shaped like the potentials; zero where an example is padded."""

    @abstractmethod
    def loss(self, labeling: Labeling, target: Labeling) -> Tensor:
        """Task loss of ``labeling`` against ``target``: ``[B]``, non-negative, zero where they are equal."""

    @abstractmethod
    def loss_potentials(self, target: Labeling) -> tuple[Tensor | Mapping[str, Tensor], Tensor]:
        """The loss as potentials: ``(delta, constant)`` with ``loss(y, target) = <parts(y), delta> + constant``.

        ``delta`` is shaped like the potentials (names left out are zero); ``constant`` is ``[B]``. A structure whose
        own ``augmented_argmax`` does without raises NotImplementedError: the losses of its blocks are not compared.
        """

    @gated
    def augmented_argmax(self, potentials: Potentials, target: Labeling) -> Decoding | Labeling:
        """The output with the highest ``score + loss`` of every example: the max oracle of training.

        A :class:`Decoding`'s value and bound include the loss. The default decodes ``potentials + loss_potentials``.
        """
        delta, constant = loss_by_name(self, target, potentials)
        found = as_decoding(self.argmax(augmented(potentials, delta)))
        constant = constant.to(torch.float64)
        return found._replace(
            value=None if found.value is None else found.value + constant,
            bound=None if found.bound is None else found.bound + constant,
        )

    def mean_loss(self, psi: Parts, target: Labeling, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        """The mean loss of blocks, from the blocks: whether the dual's losses are those of what it holds.

        Losses are linear in the parts and zero at the target, so that ``psi = p(y_i) - mu_i`` has the mean loss
        ``-<psi, delta>``.

        Args:
            psi: ``sum_y alpha_i(y) (-difference(y))`` of every example.

        Returns:
            ``[B]`` float64 each: the mean losses, and the sum of the absolute values that they were summed from. None
            where they do not follow from psi.
        """
        try:
            delta, _ = loss_by_name(self, target, potentials)
        except NotImplementedError:  # an oracle of its own may do without
            return None
        known = {name: tensor for name, tensor in psi.items() if name in delta}
        costs = {name: delta[name].to(tensor.dtype).expand_as(tensor) for name, tensor in known.items()}
        if not known:
            return None
        mean, sizes = inner_and_sizes(known, costs)
        return -mean, sizes

    def known_scores(self, potentials: Potentials) -> Parts | None:
        """Scores that are known and not trained: they are added to the potentials wherever outputs are decoded.

        The potentials themselves stay linear in the weights, so ``check_target`` keeps such scores with the target, and
        ``loss`` and ``loss_potentials`` of checked targets hold them: a loss may then be negative. The maximum of loss
        and score is not, as the target has 0. The default knows of none.

        Returns:
            Scores shaped like the potentials, or None.
        """
        return None

    def task_loss(self, labeling: Labeling, target: Labeling) -> Tensor:
        """The loss by which predictions are judged, ``[B]``: that of training, without known scores."""
        return self.loss(labeling, target)

    def by_position(self, labeling: Labeling) -> Labeling:
        """What :func:`torchssvm.evaluate` compares at each position of a labeling and a target: by default these."""
        return labeling

    def plain_decoder(self) -> nn.Module | None:
        """A module ``(tensors, lengths) -> labelings`` of plain torch operators, which torch can export and compile.

        Its attribute ``ragged`` says whether examples have lengths. None where ``decode`` itself is to be traced, as it
        is where a subclass has an ``argmax`` or a ``decode`` of its own.

        Raises:
            TypeError: Plain operators cannot decode the structure.
        """
        for cls in type(self).__mro__:
            if reason := vars(cls).get("not_plain"):
                raise TypeError(
                    f"{cls.__name__} cannot be decoded in plain torch operators: {reason}. Call "
                    "head.structure.decode(head(x)) instead; load_head(path) reads such a model from a file"
                )
            if "_plain" in vars(cls):
                return self._plain()
            if {"argmax", "decode"} & vars(cls).keys():
                return None
        return None

    def _plain(self) -> nn.Module | None:
        """What :meth:`plain_decoder` returns."""
        return None

    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        """Where the potentials can matter, for tensors that are padded in other ways than ``ragged`` says: masks.

        ``Weights()`` looks at the features there, to see whether they have moved. The default knows of no such tensor.

        Returns:
            Bool by name, which broadcasts to the tensor; names left out matter wherever ``ragged`` says.
        """
        return {}

    def signed(self, name: str) -> bool:
        """Whether outputs may have negative parts of these potentials: -inf is then refused, as +inf is."""
        return False

    def same_as(self, other: Structure) -> bool:
        """Whether ``other`` is of this very class, with the same settings as far as ``repr`` shows them."""
        return type(self) is type(other) and repr(self) == repr(other)

    def extends(self, other: Structure) -> bool:
        """Whether every output of ``other`` is one of this structure, of the same number and the same losses."""
        return self.same_as(other)

    def settings(self) -> str:
        """What the blocks of a dual depend on: exact passes refuse a structure in which it has changed.

        The default is the name of a class of one's own, whose attributes may count or cache, and the ``repr`` of one of
        this package. Structures leave out how the best output is found, which may change.
        """
        return repr(self) if is_ours(type(self)) else type(self).__name__

    @torch.no_grad()
    def decode(self, potentials: Potentials | Tensor | Mapping[str, Tensor]) -> Labeling:
        """The highest-scoring output of every example, from what a head returned.

        Raises:
            ValueError: A score is NaN or +inf.
        """
        return as_decoding(scored(self, self.argmax, potentials)).labeling

    def marginals(self, potentials: Potentials) -> Marginals:
        """The mean parts under ``P(y) = exp(score(y)) / Z``: the expectation oracle of ``SoftmaxMargin``.

        Optional; nothing else needs it.

        Raises:
            NotImplementedError: The structure has none.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no expectation oracle: define marginals(potentials), or train with BCFW"
        )

    def target_marginals(self, potentials: Potentials, target: Labeling) -> Marginals:
        """:meth:`marginals` among the outputs that show the target: the target alone, where no part of it is hidden."""
        parts = conform(self.parts(target), potentials, "parts(target)")
        return Marginals(parts=parts, log_partition=inner(parts, potentials.tensors))

    def choose_target(self, potentials: Potentials, given: Any, target: Labeling) -> Labeling:
        """The output that the hinge compares with: ``target``, which ``check_target`` made of ``given``.

        Where parts of it are hidden, it is the output of the highest score that shows it.
        """
        return target

    @gated
    def max_marginals(self, potentials: Potentials) -> Tensor:
        """Margins as confidences: the best score of an output with a part, less the best of one without it.

        Parts are the states of single positions, frames, nodes or labels, edges, or decisions that are 0 or 1. Those of
        the best output have no margin below 0, and the others none above: 0 says that another output scores as well. A
        part that no output can have has ``-inf``, and one that all have ``inf``. They are exact. Chains, segments,
        trees, forests, classes and label sets without pairs have a way of their own; others decode the batch once more
        for each part. Rankings have none.

        Returns:
            Float64, shaped like the first potentials, those of single states; 0 where an example is padded, and else
            NaN where scores of ``-inf`` forbid every output.

        Raises:
            TypeError: The structure has none.
            ValueError: Decoding was not exact, or parts have other values than ``state_parts``.
        """
        return margins_by_decoding(self, lambda given: as_decoding(self.argmax(given)), potentials)

    def difference(self, labeling: Labeling, target: Labeling, potentials: Potentials) -> Parts:
        """``parts(labeling) - parts(target)``, in the shapes and the dtype of ``potentials``."""
        parts = conform(self.parts(labeling), potentials, "parts(labeling)")
        return subtract(parts, conform(self.parts(target), potentials, "parts(target)"))

    def examine(self, labeling: Labeling, target: Labeling, potentials: Potentials) -> OracleResult:
        """Score, relative to the target's, and loss of one labeling of every example.

        The default makes the parts of the labeling. A structure that can do without them is faster; it must give NaN
        or an infinite score where the potentials of an example are not finite.

        Args:
            labeling: As ``argmax`` returns it.
        """
        parts = self.difference(labeling, target, potentials)
        return OracleResult(labeling, inner(parts, potentials.tensors), self.loss(labeling, target), parts)

    def add_difference(self, parts: Parts, labeling: Labeling, target: Labeling, potentials: Potentials) -> Parts:
        """``parts + difference(labeling, target)``, padding checked; it may write into ``parts``.

        Raises:
            ValueError: The difference is not zero beyond an example's length.
        """
        difference = self.difference(labeling, target, potentials)
        check_padding(difference, potentials)
        return {name: tensor + difference[name] for name, tensor in parts.items()}

    def relative_scores(self, labelings: Labeling, target: Labeling, potentials: Potentials) -> Tensor:
        """Scores of several labelings of every example, less the target's: ``<p(y) - p(y_i), theta_i>``.

        This is how cached labelings are scored without decoding. The default makes their parts one after another; a
        structure whose parts are sparse gathers from the potentials instead.

        Args:
            labelings: As ``argmax`` returns them, with an axis of C labelings after the batch: ``[B, C, ...]``.

        Returns:
            ``[B, C]`` float64.
        """
        columns = [
            inner(self.difference(labeling, target, potentials), potentials.tensors)
            for labeling in each_labeling(labelings)
        ]
        return torch.stack(columns, 1)

    def mean_difference(self, labelings: Labeling, mass: Tensor, target: Labeling, potentials: Potentials) -> Parts:
        """``sum_c mass_c (p(y_c) - p(y_i))`` in the shapes and the dtype of ``potentials``.

        Args:
            labelings: ``[B, C, ...]``, as in :meth:`relative_scores`.
            mass: ``[B, C]`` float64, of any sign.
        """
        total = {name: torch.zeros_like(tensor) for name, tensor in potentials.tensors.items()}
        for column, labeling in enumerate(each_labeling(labelings)):
            part = scale(self.difference(labeling, target, potentials), mass[:, column])
            total = {name: tensor + part[name] for name, tensor in total.items()}
        return total

    def largest_gain(self, potentials: Potentials, target: Labeling) -> Tensor:
        """``max_y <difference(y), theta_i>``, or an upper bound of it: ``[B]`` float64, at least 0.

        The hinge without the loss; where a regularisation path begins follows from it. The default decodes plainly.
        """
        found = as_decoding(self.argmax(potentials))
        if found.bound is not None:
            own = inner(conform(self.parts(target), potentials, "parts(target)"), potentials.tensors)
            return (found.bound.to(torch.float64) - own).clamp(min=0.0)
        return inner(self.difference(found.labeling, target, potentials), potentials.tensors).clamp(min=0.0)

    def resize(self, labelings: Labeling, target: Labeling) -> Labeling:
        """Stored labelings ``[B, C, ...]`` with the padding of this batch's ``target``.

        The default crops every tensor to the shape of the target's, or fills it up with ``padding``.

        Raises:
            ValueError: Labelings and targets are of different kinds, so that the target's shape says nothing.
        """
        held, like = tree_tensors(labelings), tree_tensors(target)
        if len(held) != len(like) or any(h.ndim != t.ndim + 1 for h, t in zip(held, like, strict=True)):
            raise ValueError(
                f"{type(self).__name__} has targets unlike its labelings: define resize(labelings, target)"
            )
        return tree_replace(labelings, [fit(h, t.shape[1:], self.padding) for h, t in zip(held, like, strict=True)])

    @_naming
    def check_target(self, target: Labeling, potentials: Potentials) -> Labeling:
        """The target in the form that ``parts`` and ``loss`` take, or an error that says what is wrong with it.

        The default takes any target whose tensors have the batch as first axis and whose own loss is zero. A structure
        with its own check, and a loss that is zero at the target by construction, need not look at the loss.

        Raises:
            TypeError: The target holds no tensor, or one that is sparse, complex or on the meta device.
            ValueError: The target does not fit the potentials, or its own loss is not zero.
        """
        tensors = tree_tensors(target)
        if not tensors:
            raise TypeError(f"target must be tensors with the batch as first axis; it is {describe(target)}")
        for tensor in tensors:
            check_tensor(tensor, "target")
        if isinstance(target, Tensor) and (not target.ndim or target.shape[0] != potentials.batch_size):
            raise ValueError(
                f"target is {list(target.shape)}; its first axis must be the batch, {potentials.batch_size}"
            )
        own = per_example(self.loss(target, target), potentials, "loss(target, target)")
        reject_rows(own != 0, "the target's own loss is not zero in {rows}: loss(target, target) must be 0")
        return target

    def enumerate(self, potentials: Potentials) -> Iterator[Labeling] | None:
        """All outputs of a small problem; None if that is not offered.

        It yields labelings of the whole batch, as ``argmax`` returns them, one output at a time. Every example must
        meet each of its own outputs at least once. Used by tests and by ``torchssvm.check``.
        """
        return None

    def __repr__(self) -> str:
        """The class and its simple attributes: checkpoints tell structures apart by it."""
        shown = []
        for name, value in sorted(vars(self).items()):
            if isinstance(value, Tensor):
                shown.append(f"{name}={digest(value)}")
            elif value is None or isinstance(value, bool | int | float | str):
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def loss_by_name(structure: Structure, target: Labeling, potentials: Potentials) -> tuple[Parts, Tensor]:
    """The structure's ``loss_potentials``, by name; a bare tensor is that of the first potentials."""
    found = structure.loss_potentials(target)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise TypeError(f"loss_potentials(target) must return (delta, constant), got {describe(found)}")
    delta, constant = found
    named = {next(iter(potentials.tensors)): delta} if isinstance(delta, Tensor) else dict(delta)
    for name, tensor in potentials.tensors.items():
        if name in named and named[name].shape != tensor.shape:
            shapes = f"must have the shape of the potentials, {list(tensor.shape)}, got {list(named[name].shape)}"
            raise ValueError(f"loss_potentials(target): delta of {name!r} {shapes}")
    return named, constant


def augmented(potentials: Potentials, delta: Parts) -> Potentials:
    """The potentials plus the loss, ``delta`` of :func:`loss_by_name`."""
    return potentials.replace(
        {
            name: tensor + delta[name].to(tensor.dtype) if name in delta else tensor
            for name, tensor in potentials.tensors.items()
        }
    )


def check_padding(parts: Parts, potentials: Potentials) -> None:
    """Raise ValueError if parts are not zero beyond an example's rows: nothing is stored there."""
    for name, tensor in parts.items():
        padding = padding_of(potentials, name)
        if padding is not None and bool(torch.where(padding, tensor, 0.0).any()):
            raise ValueError(f"parts {name!r} are not zero in the padding, beyond the examples' lengths")


def fit(tensor: Tensor, trailing: Sequence[int], padding: int) -> Tensor:
    """``tensor`` with its last axes cropped, or filled up with ``padding``, to the sizes ``trailing``."""
    first = tensor.ndim - len(trailing)
    if list(tensor.shape[first:]) == list(trailing):
        return tensor
    cropped = tensor
    for axis, size in enumerate(trailing, first):
        cropped = cropped.narrow(axis, 0, min(size, cropped.shape[axis]))
    missing = [size - have for size, have in zip(trailing, cropped.shape[first:], strict=True)]
    if not any(missing):
        return cropped
    return torch.nn.functional.pad(cropped, [n for size in reversed(missing) for n in (0, size)], value=padding)


def each_labeling(labelings: Labeling) -> Iterator[Labeling]:
    """The labelings ``[B, ...]`` of ``[B, C, ...]``, one after another."""
    for column in range(tree_tensors(labelings)[0].shape[1]):
        yield tree_map(lambda tensor, column=column: tensor[:, column], labelings)


def digest(values: Tensor) -> str:
    """A short name of a tensor's contents, for the ``repr`` by which checkpoints tell structures apart."""
    return f"<{list(values.shape)} crc32 {zlib.crc32(values.detach().cpu().contiguous().numpy().tobytes()):08x}>"


def as_decoding(found: Decoding | Labeling) -> Decoding:
    """Wrap a bare labeling as an exact decoding."""
    return found if isinstance(found, Decoding) else Decoding(found)


def per_example(value: Tensor, potentials: Potentials, argument: str) -> Tensor:
    """The values of a batch, ``[B]`` float64; ValueError names ``argument`` if the shape is another."""
    if value.shape != (potentials.batch_size,):
        raise ValueError(f"{argument} must have shape [{potentials.batch_size}], got {list(value.shape)}")
    return value.to(torch.float64)


def reject_rows(wrong: Tensor, message: str) -> None:
    """Raise ValueError if rows are wrong; ``{rows}`` in the message names them."""
    if bool(wrong.any()):
        raise ValueError(message.format(rows=row_names(wrong.nonzero().flatten().tolist())))
