"""Structures: the parts, the loss and the decoding of an output."""

from __future__ import annotations

import functools
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from torchssvm.core.arguments import check_tensor, check_whole, naming, row_names
from torchssvm.core.batch import tree_replace, tree_tensors
from torchssvm.core.decoding import Decoding, Labeling, OracleResult, as_decoding, each_labeling, shifted
from torchssvm.core.likelihood import entropy, log_prob, where_present
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


def gated(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """Make an oracle take any output of a head, and check it once: names, shapes, and that no score is NaN or +inf."""

    @functools.wraps(oracle)
    def call(self: Structure, potentials: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(potentials, Potentials) and potentials.examined:  # by training, a certificate, or another oracle
            return oracle(self, potentials, *args, **kwargs)
        potentials = as_potentials(potentials)
        if plain() or transformed():
            return oracle(self, potentials, *args, **kwargs)
        with naming(potentials.index):
            self._check_potentials(potentials)
            check_scores_finite(potentials, self.places, self.signed)
            potentials.examined = True
            try:
                return oracle(self, potentials, *args, **kwargs)
            finally:
                potentials.examined = False

    return call


def _with_potentials(check: Callable[..., Any]) -> Callable[..., Any]:
    """Make a check of targets take any output of a head, check that first, and name examples in errors."""

    @functools.wraps(check)
    def call(self: Structure, target: Any, potentials: Potentials, *args: Any, **kwargs: Any) -> Any:
        potentials = as_potentials(potentials)
        with naming(potentials.index):
            self._check_potentials(potentials)
            return check(self, target, potentials, *args, **kwargs)

    return call


def _on_cpu(init: Callable[..., None]) -> Callable[..., None]:
    """Make a constructor put its tensors on the CPU where the default device is meta."""

    @functools.wraps(init)
    def call(self: Structure, *args: Any, **kwargs: Any) -> None:
        # Before torch 2.8, get_default_device() does not see a context `with torch.device("meta")`.
        with torch.device("cpu") if torch.empty(0).is_meta else nullcontext():
            init(self, *args, **kwargs)

    return call


class Structure(ABC):
    """A kind of output: its parts, its loss, and its decoder.

    A subclass defines ``argmax``, ``parts``, ``loss`` and ``loss_potentials``. Score and loss must be linear in the
    parts: ``score(y) = <parts(y), potentials>`` and ``loss(y, t) = <parts(y), delta(t)> + constant(t)``. All other
    methods have defaults. A subclass may replace these:

    * ``check_target``, if targets have another form than labelings, or if some targets are not outputs;
    * ``enumerate``, to test small problems;
    * ``augmented_argmax``, if the loss is not linear in the parts, or if the oracle is approximate;
    * ``padding``, ``places`` and ``resize``, if the outputs of a batch differ in size;
    * ``signed``, if parts may be negative;
    * ``known_scores``, if a part of the scores is not learned;
    * ``marginals``, for ``SoftmaxMargin``, ``log_prob`` and ``entropy``;
    * ``task_loss``, ``by_position`` and ``unit``, for evaluation and messages;
    * ``relative_scores`` and ``mean_difference``, to make a storage of labelings faster.

    Users call the others: ``decode``, ``log_prob``, ``entropy``, ``sample``, ``max_marginals``, ``plain_decoder`` and
    ``same_as``. A subclass seldom replaces them.

    ``decode`` takes any output of a head: :class:`Potentials`, a tensor, or tensors by name. A score of -inf forbids a
    part. ``decode``, training and certificates refuse scores that are NaN or +inf. The methods of a subclass that
    decode get :class:`Potentials`. ``check_target`` gets the target that the user gives. All other methods get the
    target that ``check_target`` returned.

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
    """The value that stands in labelings beyond the size of an example."""

    unit: str = "token"
    """What messages call one position of a labeling, such as a token or a node."""

    _quick_to_decode: bool = False
    """Whether decoding takes no longer than the rest of a step; labelings are then not reused."""

    _target_is_labeling: bool = False
    """Whether targets that are tensors have the shape and the dtype of a labeling."""

    _not_plain: str = ""
    """Why plain torch operators cannot decode it, as a clause; empty where they can."""

    _state_parts: tuple[float, float] = (0.0, 1.0)
    """Part values of an absent and of a present state."""

    _pairwise_if_few: bool = False
    """Whether pairwise steps are faster with fewer examples than weights, although decoding is quick."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not is_ours(cls):  # a user's methods stay as they are: decode, training and certificates check
            return
        for name in ("argmax", "augmented_argmax", "marginals", "max_marginals", "_sample"):
            if name in vars(cls):
                setattr(cls, name, gated(vars(cls)[name]))
        if "__init__" in vars(cls):
            cls.__init__ = _on_cpu(vars(cls)["__init__"])  # type: ignore[method-assign]
        if "check_target" in vars(cls):
            cls.check_target = _with_potentials(vars(cls)["check_target"])  # type: ignore[method-assign]

    @abstractmethod
    def argmax(self, potentials: Potentials) -> Decoding | Labeling:
        """The output with the highest score, for every example.

        Args:
            potentials: The batch. ``potentials.single`` is its tensor if there is only one, ``potentials["name"]`` is
                one of several tensors, and ``potentials.lengths`` are the lengths.

        Returns:
            A :class:`Decoding`, or only a labeling, which is then taken as exact.
        """

    @abstractmethod
    def parts(self, labeling: Labeling) -> Tensor | Mapping[str, Tensor]:
        """The parts of ``labeling``, shaped like the potentials. They must be zero in the padding."""

    @abstractmethod
    def loss(self, labeling: Labeling, target: Labeling) -> Tensor:
        """The loss of ``labeling`` against ``target``, ``[B]``: zero if the two are equal, and never negative."""

    @abstractmethod
    def loss_potentials(self, target: Labeling) -> tuple[Tensor | Mapping[str, Tensor], Tensor]:
        """The loss as potentials: ``(delta, constant)`` with ``loss(y, target) = <parts(y), delta> + constant``.

        ``delta`` is shaped like the potentials, and ``constant`` is ``[B]``. Names that ``delta`` leaves out are zero.
        A structure that overrides ``augmented_argmax`` may raise NotImplementedError. Certificates then do not compare
        the losses of its blocks.
        """

    @gated
    def augmented_argmax(self, potentials: Potentials, target: Labeling) -> Decoding | Labeling:
        """The output with the highest ``score + loss``, for every example: the max oracle of training.

        The default decodes ``potentials + loss_potentials``. If you return a :class:`Decoding`, its ``value`` and its
        ``bound`` include the loss.
        """
        delta, constant = loss_by_name(self, target, potentials)
        return shifted(as_decoding(self.argmax(augmented(potentials, delta))), constant.to(torch.float64))

    def _mean_loss(self, psi: Parts, target: Labeling, potentials: Potentials) -> tuple[Tensor, Tensor] | None:
        """The mean loss of dual blocks, computed from the blocks; the dual's stored losses are compared with it.

        Losses are linear in the parts and zero at the target, so that ``psi = p(y_i) - mu_i`` has the mean loss
        ``-<psi, delta>``.

        Args:
            psi: ``sum_y alpha_i(y) (-difference(y))`` of every example.

        Returns:
            ``[B]`` float64 each: the mean losses, and the sums of the absolute values of their terms. None if psi does
            not determine them.
        """
        try:
            delta, _ = loss_by_name(self, target, potentials)
        except NotImplementedError:
            return None
        counted = {name: tensor for name, tensor in psi.items() if name in delta}
        costs = {name: delta[name].to(tensor.dtype).expand_as(tensor) for name, tensor in counted.items()}
        if not counted:
            return None
        mean, sizes = inner_and_sizes(counted, costs)
        return -mean, sizes

    def known_scores(self, potentials: Potentials) -> Parts | None:
        """Scores that are not learned, shaped like the potentials; None by default.

        They are added wherever outputs are decoded. The potentials do not include them, and so stay linear in the
        weights. In training, ``check_target`` keeps known scores with the target, and ``loss`` and ``loss_potentials``
        include them. A loss may then be negative, but the largest sum of loss and score is not.
        """
        return None

    def task_loss(self, labeling: Labeling, target: Labeling) -> Tensor:
        """The loss by which predictions are evaluated, ``[B]``. It is the training loss without known scores."""
        return self.loss(labeling, target)

    def by_position(self, labeling: Labeling) -> Labeling:
        """What :func:`torchssvm.evaluate` compares position by position; by default the labeling itself."""
        return labeling

    def plain_decoder(self) -> nn.Module | None:
        """A module that decodes by plain torch operators, so that torch can export and compile it.

        It takes ``(tensors, lengths)`` and returns labelings. Its attribute ``ragged`` says whether examples have
        lengths. If the method returns None, torch traces ``decode`` itself: for example if a subclass defines
        ``argmax`` or ``decode``.

        Raises:
            TypeError: Plain operators cannot decode the structure.
        """
        for cls in type(self).__mro__:
            if reason := vars(cls).get("_not_plain"):
                raise TypeError(
                    f"{cls.__name__} cannot be decoded in plain torch operators: {reason}. Call "
                    "head.structure.decode(head(x))"
                )
            if "_plain" in vars(cls):
                return self._plain()
            if {"argmax", "decode"} & vars(cls).keys():
                return None
        return None

    def _plain(self) -> nn.Module | None:
        return None

    def places(self, potentials: Potentials) -> dict[str, Tensor]:
        """Masks that say which entries of the potentials are real and which are padding; none by default.

        They are for tensors whose padding ``potentials.ragged`` does not describe.

        Returns:
            A bool tensor by name, True at real entries; it broadcasts to the potentials. ``ragged`` describes the
            tensors that are left out.
        """
        return {}

    def _check_potentials(self, potentials: Potentials) -> None:  # noqa: B027
        """Raise ValueError unless the potentials have the names and shapes that outputs of this structure need."""

    def signed(self, name: str) -> bool:
        """Whether parts of this name may be negative. Scores of -inf are then refused too."""
        return False

    def same_as(self, other: Structure) -> bool:
        """Whether ``other`` is the same structure: it has the same class and the same ``repr``."""
        return type(self) is type(other) and repr(self) == repr(other)

    def _extends(self, other: Structure) -> bool:
        """Whether every output of ``other`` is an output of this structure, with the same labels and losses."""
        return self.same_as(other)

    def _fingerprint(self) -> str:
        """The settings that dual blocks depend on; exact passes refuse a structure in which they have changed.

        The default is the ``repr`` of a structure of this package, and the class name of any other, whose attributes
        may be counters or caches. Settings of the decoder are left out: they may change.
        """
        return repr(self) if is_ours(type(self)) else type(self).__name__

    @torch.no_grad()
    def decode(self, potentials: Potentials | Tensor | Mapping[str, Tensor]) -> Labeling:
        """The prediction: the output with the highest score, for every example.

        Args:
            potentials: What a head returned.

        Raises:
            ValueError: A score is NaN or +inf.
        """
        return as_decoding(self._gated_argmax(potentials)).labeling

    @gated
    def _gated_argmax(self, potentials: Potentials) -> Decoding | Labeling:
        return self.argmax(potentials)

    def marginals(self, potentials: Potentials) -> Marginals:
        """The mean parts under the distribution ``P(y) = exp(score(y)) / Z``, for ``SoftmaxMargin``.

        A structure need not have this expectation oracle.

        Raises:
            NotImplementedError: The structure has no expectation oracle.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no expectation oracle: define marginals(potentials), or train with BCFW"
        )

    def _target_marginals(self, potentials: Potentials, target: Labeling) -> Marginals:
        """:meth:`marginals` over the outputs that agree with the observed part of the target."""
        parts = conform(self.parts(target), potentials, "parts(target)")
        return Marginals(parts=parts, log_partition=inner(parts, where_present(parts, potentials)))

    def log_prob(self, potentials: Potentials | Tensor | Mapping[str, Tensor], target: Any) -> Tensor:
        """The log-probability of the target: ``log P(target) = score(target) - log Z``.

        If the target has hidden parts, it is the log-probability of all outputs that agree with the target.

        Args:
            potentials: What a head returned.
            target: As in training.

        Returns:
            ``[B]`` float64, with a gradient: the target's parts minus the marginals. There are no second derivatives.

        Raises:
            NotImplementedError: The structure has no marginals.
            ValueError: The target is not valid, or a score is NaN or +inf.
        """
        potentials = as_potentials(potentials)
        return log_prob(self, potentials, self.check_target(target, potentials))

    def entropy(self, potentials: Potentials | Tensor | Mapping[str, Tensor]) -> Tensor:
        """The entropy ``-sum_y P(y) log P(y)`` in nats, ``[B]`` float64; it has no gradient, and cannot be trained.

        Raises:
            RuntimeError: In backward, if potentials that need a gradient were given.
            NotImplementedError: The structure has no marginals.
            ValueError: A score is NaN or +inf.
        """
        return entropy(self, as_potentials(potentials))

    def sample(
        self,
        potentials: Potentials | Tensor | Mapping[str, Tensor],
        n: int = 1,
        generator: torch.Generator | None = None,
    ) -> Labeling:
        """Draw ``n`` independent outputs from P, for every example.

        Chains, trees, forests, classes, arborescences and hidden states have a sampler.

        Args:
            potentials: What a head returned.
            n: How many outputs to draw, at least 1.
            generator: The source of random numbers, on the device of the potentials; None is torch's default.

        Returns:
            ``[B, n, ...]`` int64, each as :meth:`decode` gives it.

        Raises:
            NotImplementedError: The structure has no sampler.
            ValueError: ``n`` is less than 1, a score is NaN or +inf, or scores of -inf forbid every output.
        """
        potentials = as_potentials(potentials).detach()
        check_whole(n, "n")
        return self._sample(potentials, n, generator)

    def _sample(self, potentials: Potentials, n: int, generator: torch.Generator | None) -> Labeling:
        raise NotImplementedError(f"{type(self).__name__} has no sampler")

    def _choose_target(self, potentials: Potentials, given: Any, target: Labeling) -> Labeling:
        """The target of the hinge: ``target``, which ``check_target`` made of ``given``.

        With hidden parts, it is the best output that agrees with the observed part.
        """
        return target

    def _check_chosen(self, given: Any, target: Labeling, index: Tensor | None) -> None:  # noqa: B027
        """Raise ValueError if a target has hidden parts that nobody has chosen: BCFW trains for one output."""

    @gated
    def max_marginals(self, potentials: Potentials) -> Tensor:
        """The margin of each part, which says how sure the decoder is of it.

        It is the best score of an output with the part, minus the best score of an output without the part. Parts are
        the states of positions, frames, nodes or labels, edges, or decisions that are 0 or 1.

        * Parts of the best output have margins of at least 0. Other parts have at most 0. A margin of 0 is a tie.
        * A part that no output can have has the margin ``-inf``. A part that all outputs have has ``inf``.
        * Margins are exact. Chains, segments, trees, forests, classes and label sets without pairs compute them
          directly. Other structures decode once more for each part. Rankings have no margins.

        Returns:
            Float64, shaped like the first potentials. It is 0 in the padding, and NaN if scores of ``-inf`` forbid
            every output.

        Raises:
            TypeError: The structure has no margins.
            ValueError: Decoding was not exact, or a part is neither absent nor present.
        """
        return margins_by_decoding(self, lambda given: as_decoding(self.argmax(given)), potentials)

    def _difference(self, labeling: Labeling, target: Labeling, potentials: Potentials) -> Parts:
        """``parts(labeling) - parts(target)``, in the shapes and the dtype of ``potentials``."""
        parts = conform(self.parts(labeling), potentials, "parts(labeling)")
        return subtract(parts, conform(self.parts(target), potentials, "parts(target)"))

    def _examine(self, labeling: Labeling, target: Labeling, potentials: Potentials) -> OracleResult:
        """Score, relative to the target's, and loss of one labeling of every example.

        The default makes the parts of the labeling. An override must return a score that is NaN or infinite if the
        potentials of an example are not finite.

        Args:
            labeling: As ``argmax`` returns it.
        """
        parts = self._difference(labeling, target, potentials)
        return OracleResult(labeling, inner(parts, potentials.tensors), self.loss(labeling, target), parts)

    def _add_difference(self, parts: Parts, labeling: Labeling, target: Labeling, potentials: Potentials) -> Parts:
        """``parts + difference(labeling, target)``; it may write into ``parts``.

        Raises:
            ValueError: The difference is not zero in the padding.
        """
        difference = self._difference(labeling, target, potentials)
        check_padding(difference, potentials)
        return {name: tensor + difference[name] for name, tensor in parts.items()}

    def relative_scores(self, labelings: Labeling, target: Labeling, potentials: Potentials) -> Tensor:
        """Scores of cached labelings minus the score of the target: ``<p(y) - p(y_i), theta_i>``.

        Args:
            labelings: C labelings of every example, ``[B, C, ...]``. Each is as ``argmax`` returns it.

        Returns:
            ``[B, C]`` float64.
        """
        columns = [
            inner(self._difference(labeling, target, potentials), potentials.tensors)
            for labeling in each_labeling(labelings)
        ]
        return torch.stack(columns, 1)

    def mean_difference(self, labelings: Labeling, mass: Tensor, target: Labeling, potentials: Potentials) -> Parts:
        """The sum ``sum_c mass_c (p(y_c) - p(y_i))``, in the shapes and the dtype of ``potentials``.

        Args:
            labelings: The outputs y_c, ``[B, C, ...]``, as in :meth:`relative_scores`.
            mass: ``[B, C]`` float64, of any sign.
        """
        total = {name: torch.zeros_like(tensor) for name, tensor in potentials.tensors.items()}
        for column, labeling in enumerate(each_labeling(labelings)):
            part = scale(self._difference(labeling, target, potentials), mass[:, column])
            total = {name: tensor + part[name] for name, tensor in total.items()}
        return total

    def _largest_gain(self, potentials: Potentials, target: Labeling) -> Tensor:
        """``max_y <difference(y), theta_i>``, or an upper bound of it: ``[B]`` float64, at least 0.

        The hinge without the loss; it determines the start of a regularisation path.
        """
        decoding = as_decoding(self.argmax(potentials))
        if decoding.bound is not None:
            score = inner(conform(self.parts(target), potentials, "parts(target)"), potentials.tensors)
            return (decoding.bound.to(torch.float64) - score).clamp(min=0.0)
        return inner(self._difference(decoding.labeling, target, potentials), potentials.tensors).clamp(min=0.0)

    def resize(self, labelings: Labeling, target: Labeling) -> Labeling:
        """Fit stored labelings ``[B, C, ...]`` to this batch, which is padded like ``target``.

        The default crops every tensor to the shape of the target's tensor, or fills it up with ``padding``.

        Raises:
            ValueError: The target has another number of tensors or axes than the labelings.
        """
        stored, like = tree_tensors(labelings), tree_tensors(target)
        if [s.ndim for s in stored] != [t.ndim + 1 for t in like]:
            raise ValueError(f"{type(self).__name__} has targets unlike its labelings: define resize()")
        return tree_replace(labelings, [fit(s, t.shape[1:], self.padding) for s, t in zip(stored, like, strict=True)])

    @_with_potentials
    def check_target(self, target: Labeling, potentials: Potentials) -> Labeling:
        """Check the user's target, and return it in the form that ``parts`` and ``loss`` take.

        The default accepts tensors whose first axis is the batch, if ``loss(target, target)`` is zero.

        Raises:
            TypeError: The target holds no tensor, or one that is sparse, complex or on the meta device.
            ValueError: The target does not fit the potentials, or ``loss(target, target)`` is not zero.
        """
        for tensor in tree_tensors(target) or [target]:
            if check_tensor(tensor, "target").shape[:1] != (potentials.batch_size,):
                raise ValueError(
                    f"target is {list(tensor.shape)}: its first axis must be the batch, {potentials.batch_size}"
                )
        loss = per_example(self.loss(target, target), potentials, "loss(target, target)")
        reject_rows(loss != 0, "loss(target, target) is not zero in {rows}: it must be 0")
        return target

    def enumerate(self, potentials: Potentials) -> Iterator[Labeling] | None:
        """All outputs of a small problem, for tests and ``torchssvm.check``; None by default.

        It yields labelings of the whole batch, as ``argmax`` returns them. Each output of every example must occur at
        least once.
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
    """The structure's ``loss_potentials``, by name; a bare tensor belongs to the first potentials."""
    delta, constant = structure.loss_potentials(target)
    named = {next(iter(potentials.tensors)): delta} if isinstance(delta, Tensor) else dict(delta)
    for name, tensor in potentials.tensors.items():
        if name in named and named[name].shape != tensor.shape:
            raise ValueError(
                f"loss_potentials(target): delta {name!r} is {list(named[name].shape)} and must be shaped like the "
                f"potentials, {list(tensor.shape)}"
            )
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
    """Raise ValueError if parts are not zero in the padding: blocks do not store it."""
    for name, tensor in parts.items():
        padding = padding_of(potentials, name)
        if padding is not None and bool(torch.where(padding, tensor, 0.0).any()):
            raise ValueError(f"parts {name!r} are not zero in the padding: set them to 0 beyond the lengths")


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


def digest(values: Tensor) -> str:
    """A short name of a tensor's contents, for the ``repr`` by which checkpoints tell structures apart."""
    return f"<{list(values.shape)} crc32 {zlib.crc32(values.detach().cpu().contiguous().numpy().tobytes()):08x}>"


def per_example(value: Tensor, potentials: Potentials, argument: str) -> Tensor:
    """The values of a batch, ``[B]`` float64; ValueError, naming ``argument``, for another shape."""
    if value.shape != (potentials.batch_size,):
        raise ValueError(f"{argument} must have shape [{potentials.batch_size}], got {list(value.shape)}")
    return value.to(torch.float64)


def reject_rows(wrong: Tensor, message: str) -> None:
    """Raise ValueError if rows are wrong; ``{rows}`` in the message names them."""
    if bool(wrong.any()):
        raise ValueError(message.format(rows=row_names(wrong.nonzero().flatten().tolist())))
