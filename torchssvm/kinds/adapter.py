"""The interface of a head in the compiled loop: examples, model and scratch arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torchssvm.compiler.jit import njit
from torchssvm.compiler.vectors import exact_dot
from torchssvm.core.batch import Batch, apply_head, device_of, tree_tensors
from torchssvm.core.gradients import is_check
from torchssvm.core.potentials import Potentials
from torchssvm.core.sparse_features import Lists
from torchssvm.core.structure import Labeling, Structure
from torchssvm.kinds.long import Long


class Examples(NamedTuple):
    """The training set: labels of all examples, one after another, and rows of features, which make the emissions.

    Attributes:
        dense: Whether features are in ``x``, or in ``value`` and ``column``.
        x: ``[rows, F]``, or empty.
        value: ``[nonzeros]`` nonzero features, or empty.
        column: ``[nonzeros]`` int32, the index of each feature in ``value``.
        row: ``[rows + 1]`` int64, where each row's features begin in ``value``.
        y: ``[labels]`` int64 targets.
        cost: ``[labels]`` float64, the cost of a wrong label, or a factor of it.
        added: ``cost`` in the dtype of the weights.
        weight: ``[n]`` float64, 0 or above, a factor of each example's loss and features, not yet applied.
        start: ``[n + 1]`` int64, where each example's labels begin.
        line: ``[n + 1]`` int64, where each example's rows of features begin.
        length: ``[n]`` int64, each example's rows of emissions: as many, unless an adapter's ``complete`` says more.
        pair_rows: ``[n]`` int64, each example's rows of pairs.
        distinct: ``[*]`` int32, the distinct features of each example, if ``column`` numbers features within the
            example; else empty.
        distinct_start: ``[n + 1]`` int64, where each example's distinct features begin.
        pair_scale: The largest sum of the absolute features of a row of pairs; 1 where pairs are weights.
        inner: ``[sum R (R + 1) / 2]`` inner products of each example's rows, with the bias as a feature: row t with
            rows 0 to t, for all t. Examples of more than ``stored`` rows have none, see :mod:`.long`.
        inner_start: ``[n]`` int64, where each example's inner products begin.
        stored: The most rows of an example whose inner products are kept.
        kind: A named tuple with further data of the kind. Its class selects the functions of :mod:`.block`.
        reach: None if no example has more than ``stored`` rows, so that kernels for long examples are not compiled.
        form: The form of the features: dense rows, or lists with values or of ones. Its class selects the kernels.
    """

    dense: bool
    x: Any
    value: Any
    column: Any
    row: Any
    y: Any
    cost: Any
    added: Any
    weight: Any
    start: Any
    line: Any
    length: Any
    pair_rows: Any
    inner: Any
    inner_start: Any
    stored: int
    distinct: Any
    distinct_start: Any
    pair_scale: float = 1.0
    kind: Any = None
    reach: Any = None
    form: Any = None


class Dense(NamedTuple):
    """Dense features, in ``Examples.x``."""

    features: int


class Listed(NamedTuple):
    """Features as lists."""

    values: Any  # ``Examples.value``, or None where all are 1


def with_types(examples: Examples) -> Examples:
    """Set ``reach`` and ``form``, whose types select the compiled code."""
    rows = int(np.diff(examples.line).max(initial=0))
    form = Dense(examples.x.shape[1]) if examples.dense else Listed(examples.value if len(examples.value) else None)
    return examples._replace(form=form, reach=Long(rows) if rows > examples.stored else None)


class Model(NamedTuple):
    """Weights: emissions ``[F, W]``, pairs ``[K, K]`` or ``[0, K]`` where there are none, and three biases ``[W]``.

    W is at least K; rows are padded with zeros, see :mod:`.adapter`.

    ``has_bias`` and ``has_boundary`` say which of the three biases are used.
    """

    emission: Any
    transition: Any
    bias: Any
    first: Any
    last: Any
    has_bias: bool
    has_boundary: bool


class Scratch(NamedTuple):
    """Scratch arrays for one block: potentials, Viterbi's transitions and maxima, responses, directions, the atoms.

    ``used`` and ``rows`` say which rows of ``delta_pairs`` may not be zero; the others are not read. ``step`` gets the
    sum of all steps, and the change of ``|w|^2``. ``sums_of_label``, zero before and after, has the weights of one
    label, for chains longer than ``STORED``; else it is empty. ``slack`` gets the difference between an approximate
    oracle's bound and the value of its labeling. ``room`` has further arrays of the kind.
    """

    emission: Any
    transition: Any
    into: Any
    prefixes: Any
    response: Any
    pairs: Any
    delta: Any
    delta_pairs: Any
    used: Any
    rows: Any
    squares: Any
    sums: Any
    corner: Any
    labels: Any
    mass: Any
    hinge: Any
    score_loss: Any
    change: Any
    gram: Any
    work: Any
    step: Any
    sums_of_label: Any
    slack: Any
    room: Any = None


def make_scratch(
    longest: int,
    states: int,
    width: int,
    pairs: int,
    pair_width: int,
    atoms: int,
    dtype: np.dtype,
    long_features: int,
    labels: int,
    make_room: Any = None,
) -> Scratch:
    """Scratch for blocks of up to ``longest`` rows, ``labels`` labels, ``pairs`` rows of pairs and ``atoms`` atoms.

    Rows have ``states`` and ``pair_width`` numbers.
    Rows that are combined with rows of the weights have the same ``width``. ``long_features`` is the size of
    ``sums_of_label``, see :func:`.long_features`. ``make_room`` makes ``room``, if any.
    """
    return Scratch(
        emission=np.zeros((longest, width), dtype),
        transition=np.zeros((pairs, pair_width), dtype),
        into=np.zeros((longest, states), dtype),
        prefixes=np.zeros((longest, states), dtype),
        response=np.zeros((longest, states)),
        pairs=np.zeros((pairs, pair_width)),
        delta=np.zeros((longest, width), dtype),
        delta_pairs=np.zeros((pairs, pair_width), dtype),
        used=np.zeros(pairs, np.bool_),
        rows=np.zeros(pairs, np.int64),
        squares=np.zeros(longest),
        sums=np.zeros((longest, 3)),
        corner=np.zeros(labels, np.int64),
        labels=np.zeros(labels, np.int64),
        mass=np.zeros(atoms),
        hinge=np.zeros(atoms),
        score_loss=np.zeros(atoms),
        change=np.zeros(atoms),
        gram=np.zeros((atoms, atoms)),
        work=np.zeros(atoms),
        step=np.zeros(2),
        sums_of_label=np.zeros(long_features),
        slack=np.zeros(1),
        room=None if make_room is None else make_room(),
    )


@njit
def fill_inner(examples, has_bias):
    """``x_t . x_u`` for u <= t, plus 1 where there is a bias; summed in float64. Long examples have none.

    Examples whose first product is not -1 have theirs, as ``|x_0|^2`` is not negative.
    """
    extra = 1.0 if has_bias else 0.0
    for i in range(len(examples.start) - 1):
        place = examples.inner_start[i]
        count = examples.line[i + 1] - examples.line[i]
        if count == 0 or count > examples.stored or examples.inner[place] != -1.0:
            continue
        for t in range(examples.line[i], examples.line[i + 1]):
            for u in range(examples.line[i], t + 1):
                if examples.dense:
                    examples.inner[place] = exact_dot(examples.x[t], examples.x[u]) + extra
                else:
                    examples.inner[place] = _sparse_product(examples, t, u) + extra
                place += 1


@njit
def _sparse_product(examples, t, u):
    """Both lists are in the order of their columns."""
    p, q = examples.row[t], examples.row[u]
    total = 0.0
    while p < examples.row[t + 1] and q < examples.row[u + 1]:
        a, b = examples.column[p], examples.column[q]
        if a == b:
            total += np.float64(examples.value[p]) * np.float64(examples.value[q]) if len(examples.value) else 1.0
        p += a <= b
        q += b <= a
    return total


@njit
def list_tokens(x, gram, lengths, has_bias, value, column, row, inner):
    """The nonzero features of ``x`` ``[B, N, F]`` and the inner products of its tokens, without padding.

    ``gram`` ``[B, N, N]`` is ``x x^T`` of every example; ``[B, 0, 0]`` leaves inner products out, to which 1 is added
    for a bias. ``value``, ``column``, ``row`` and ``inner`` are filled as in ``Examples``; the first two have one place
    more than there are features.
    """
    place, token, pair = 0, 0, 0
    extra = inner.dtype.type(1.0 if has_bias else 0.0)
    for b in range(len(lengths)):
        for t in range(lengths[b]):
            for u in range(t + 1 if gram.shape[1] else 0):
                inner[pair] = gram[b, t, u] + extra
                pair += 1
            features = x[b, t]
            for f in range(len(features)):
                value[place] = features[f]  # zeros are overwritten: a branch would be mispredicted
                column[place] = f
                place += features[f] != 0.0
            token += 1
            row[token] = place


_LANES = 8  # rows of the weights are padded to a multiple of this
_COPIED = 1 << 16  # most numbers copied for the padding: 256 KB in float32


Weights = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]
Ragged = tuple[Tensor, Tensor]
"""Numbers of entries of each example of a batch, ``[B]``, and the entries of all, one example after another."""


class HeadAdapter:
    """One head with its structure.

    Attributes:
        head: The head.
        structure: Its structure.
        matrix: Name of the head's weights of features.
        table: Name of its weights of pairs; None where there are none.
        biases: Names of its biases of all rows, of the first and of the last one.
        emission: Name of the potentials that features make.
        pairs: Name of the potentials of neighbouring labels; None where there are none.
        has_bias: Whether every token has a feature that is always 1.
        limits: The limits of an approximate oracle, int64; they may change while the loop trains.
        ragged_labels: Whether longer examples have more labels.
        carries: Whether a batch's potentials carry data that targets lack, such as sizes of the other side.
        exact_labelings: Whether stored labelings are cut to the sizes of :meth:`longest_labeling`.
        notes: Whether it keeps facts about the batches it has read, such as their largest size.
    """

    matrix: str = "weight"
    table: str | None = None
    biases: tuple[str, ...] = ("bias",)
    emission: str
    pairs: str | None = None
    structure: Structure
    has_bias: bool
    limits: np.ndarray = np.zeros(0, np.int64)
    ragged_labels = False
    exact_labelings = False
    carries = False
    notes = False

    def __init__(self, head: Any, limits: Sequence[int] = ()) -> None:
        self.head = head
        self.structure = self.head.structure
        self.has_bias = getattr(head, "bias", None) is not None
        self.limits = np.array(limits, np.int64)

    def renew(self) -> None:
        """Read the limits of the oracle again; TypeError if the structure has one now that is not compiled."""
        if len(self.limits):
            self.limits[:] = find_adapter(self.head).limits

    @cached_property
    def num_states(self) -> int:
        """K."""
        return self._emission().shape[1]

    def targets(self, target: Labeling) -> tuple[Tensor, Tensor, Tensor]:
        """Labels and their costs, and how many labels every example has, ``[B]``; the default is for rows of labels."""
        labels = tree_tensors(target)[0]
        real = labels >= 0
        return labels[real], self.structure.costs(target)[real], real.sum(1)  # type: ignore[attr-defined]

    def inputs(self, x: Any) -> Any:
        """The features in ``batch.x``."""
        return x

    def features(self, x: Any, target: Labeling) -> Tensor | Lists:
        """Features of all tokens, ``[tokens, F]`` or as lists; the default is for a row for each label."""
        return self.inputs(x)[tree_tensors(target)[0] >= 0]

    def own(self, x: Any, target: Labeling, potentials: Potentials) -> dict[str, Ragged]:
        """Further data of the kind from a batch, beside labels and features."""
        return {}

    def lists(self, sizes: Tensor, own: dict[str, Ragged]) -> Tensor:
        """Number of lists of features of examples of these numbers of labels: one for each."""
        return sizes

    def complete(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Examples:
        """Compute inner products of the features of all examples, and the kind.

        ``own`` are the entries of :meth:`own` for all examples, with the place where each example begins.
        """
        if self.products:
            fill_inner(examples, self.has_bias)
        return examples._replace(kind=self.kind(examples, own))

    def kind(self, examples: Examples, own: dict[str, tuple[Tensor, Tensor]]) -> Any:
        """The named tuple of the kind; arguments as of :meth:`complete`, which calls it."""
        raise NotImplementedError

    def room_of(self, examples: Examples) -> Any:
        """A function that makes ``Scratch.room``, or None."""
        return None

    def part_shapes(self, lengths: Tensor) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """By potential, the rows of every example in its buffer of mean parts, ``[n]``, and the sizes of a row.

        The first are the emissions, and the second the pairs, if any.
        """
        shapes: dict[str, tuple[Tensor, tuple[int, ...]]] = {self.emission: (lengths, (self.num_states,))}
        if self.pairs is not None:
            shapes[self.pairs] = torch.ones_like(lengths), tuple(getattr(self.head, str(self.table)).shape)
        return shapes

    def whole(self) -> HeadAdapter | None:
        """The adapter whose kind solves whole blocks of mean parts; None if there is none."""
        return None

    products = True
    """Whether inner products of an example's rows are stored."""

    sums_features = True
    """Whether kernels sum over the features of examples without stored products, in ``Scratch.sums_of_label``."""

    @property
    def row_width(self) -> int:
        """Numbers of a row of emissions."""
        return self.num_states

    @property
    def pair_width(self) -> int:
        """Numbers of a row of pairs."""
        table = None if self.table is None else getattr(self.head, self.table)
        return self.num_states if table is None else table.shape[-1]

    @property
    def pair_rows(self) -> int:
        """Rows of pairs of an example, if all have the same number."""
        return 0 if self.pairs is None else self.num_states

    def label_counts(self, lengths: Tensor) -> Tensor:
        """Numbers of labels of examples of these lengths, ``[n]``."""
        return lengths

    def label_limits(self, lengths: Tensor) -> tuple[int, Tensor]:
        """The smallest label, and the largest of examples of these lengths."""
        return 0, torch.full_like(lengths, self.num_states - 1)

    def finish(self, labelings: list[Tensor], examples: Tensor, slots: Tensor) -> None:
        """Fill in other tensors of stored labelings than their labels, in these slots, ``[*]`` int64 each."""

    def _emission(self) -> Tensor:
        return self.head.by_feature(getattr(self.head, self.matrix))

    def weights(self) -> Weights:
        """Emissions ``[F, K]``, pairs, bias, and biases of the first and of the last token; None where there is none.

        The tensors share their memory with the head.
        """
        table = None if self.table is None else getattr(self.head, self.table)
        pairs = None if table is None else table.unsqueeze(0).flatten(0, -2)
        biases = [getattr(self.head, name, None) for name in self.biases] + [None, None]
        return self._emission(), pairs, biases[0], biases[1], biases[2]

    @property
    def width(self) -> int:
        """W, the padded length of a row of the emissions.

        Rows that fill vector registers make the loop an eighth faster, as long as the weights fit in the cache.
        """
        return self.width_of(len(self._emission()))

    def width_of(self, rows: int) -> int:
        """W for ``rows`` features."""
        wide = -(-self.num_states // _LANES) * _LANES
        return wide if self.num_states >= _LANES and rows * wide <= _COPIED else self.num_states

    def model(self, rows: Tensor | None = None) -> Model:
        """The weights as the loop reads and writes them: a row for each feature, one after another.

        The arrays share the memory of the head if its layout is the same and rows are not padded. ``rows`` ``[U]``
        int64 copies the weights of these features only.
        """
        emission, pairs, *biases = (None if w is None else w.detach() for w in self.weights())
        assert emission is not None
        emission = emission if rows is None else emission[rows]
        width = self.width_of(len(emission))
        first = _fill_up(emission, width)
        wide = [first, *(np.zeros(width, first.dtype) if w is None else _fill_up(w, width) for w in biases)]
        pairs = emission.new_zeros(0, self.pair_width) if pairs is None else pairs
        return Model(wide[0], pairs.numpy(), *wide[1:], biases[0] is not None, biases[1] is not None)  # type: ignore

    def take_back(self, model: Model) -> None:
        """Write the weights of ``model`` to the head, if they are a copy."""
        emission, _, *biases = self.weights()
        for weights, array in ((emission, model.emission), *zip(biases, model[2:5], strict=True)):
            if weights is not None and not np.may_share_memory(target := weights.detach().numpy(), array):
                target[...] = array[..., : self.num_states]

    def trained(self, model: Model) -> list[Any]:
        """The arrays of ``model`` for the head's parameters, in their order, without the padding of rows."""
        parameters = {name: p for name, p in self.head._parameters.items() if p is not None}
        rows = [array[..., : self.num_states] for array in (model.emission, model.bias, model.first, model.last)]
        arrays = {self.matrix: self.head.by_feature(rows[0]), **dict(zip(self.biases, rows[1:], strict=False))}
        if self.table is not None and self.table in parameters:
            arrays[self.table] = model.transition.reshape(parameters[self.table].shape)
        return [arrays[name] for name in parameters if name in arrays]

    def apply(self, batch: Batch) -> Any:
        """Potentials of a batch."""
        return apply_head(self.head, batch)

    def lengths(self, sizes: Tensor, potentials: Potentials) -> Tensor:
        """The lengths of examples in the potentials, from the numbers of their labels."""
        return sizes

    def as_sequences(self, labelings: Tensor) -> Tensor:
        """Stored labelings as ``[n, C, N]``, sharing their memory; the default is for sequences."""
        return labelings

    def longest_labeling(self, longest: int) -> Labeling:
        """A batch of one labeling of the largest length and label: a sequence by default."""
        return torch.full((1, longest), int(self.label_limits(torch.tensor([longest]))[1]))

    ragged = True
    """Whether potentials have lengths."""


def squares_of_rows(examples: Examples, dtype: Any = None) -> np.ndarray:
    """The squared length of each row of features; ``dtype`` is that of the sums of dense ones."""
    if examples.dense:
        return np.einsum("tf,tf->t", examples.x, examples.x, dtype=dtype)
    if not len(examples.value):
        return np.diff(examples.row)
    return np.diff(np.append(0.0, np.square(examples.value, dtype=np.float64).cumsum())[examples.row])


def _fill_up(tensor: Tensor, width: int) -> np.ndarray:
    """The tensor's memory if its rows are contiguous and have this width; else a copy with rows padded by zeros."""
    states = tensor.shape[-1]
    if states == width:
        return tensor.contiguous().numpy()
    padded = tensor.new_zeros(*tensor.shape[:-1], width).numpy()  # torch aligns memory to cache lines
    padded[..., :states] = tensor.numpy()
    return padded


def check_sizes(ragged: bool, sizes: tuple[int, ...], ragged_before: bool, sizes_before: tuple[int, ...]) -> None:
    """Raise ValueError unless all batches have lengths, or none has and all have the same sizes."""
    if ragged != ragged_before or (not ragged and sizes != sizes_before):
        raise ValueError(
            f"sizes are {list(sizes)}, and {list(sizes_before)} in earlier batches: examples of different sizes need "
            "lengths, in every batch"
        )


class NotCompiledError(TypeError):
    """A head or rule has no compiled form; ``reason`` is a clause."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; use BlockGap and BCFW")
        self.reason = reason


def find_adapter(head: nn.Module, *, anywhere: bool = False) -> HeadAdapter:
    """The adapter that ``head.compiled_form()`` makes.

    TypeError if the head has no compiled loop, or is not on the CPU; ``anywhere`` allows other devices.
    """
    bases = type(head).__mro__
    form, forward = (
        next((base for base in bases if name in vars(base)), None) for name in ("compiled_form", "forward")
    )
    overridden = form is not None and forward is not None and bases.index(forward) < bases.index(form)
    adapter = None if form is None or overridden else head.compiled_form()  # type: ignore[operator]
    if adapter is None:
        why = f" with head.structure={head.structure}" if hasattr(head, "structure") else ""
        why = " whose subclass overrides forward without compiled_form" if overridden else why
        raise NotCompiledError(f"head is {type(head).__name__}(...){why}, which has no compiled loop")
    if head._forward_pre_hooks or not all(is_check(hook) for hook in head._forward_hooks.values()):
        raise NotCompiledError("head has forward hooks, which the compiled loop does not run")
    device = device_of(head)
    if device.type != "cpu" and not anywhere:
        raise TypeError(
            f"head is on {device}, and the compiled loop runs on the CPU: call head.to('cpu'), or train with BlockGap "
            "and BCFW"
        )
    return adapter


class VectorAdapter(HeadAdapter):
    """A head whose scores are ``x . weight``. Batches have lengths, or none has.

    Inner products of an example's rows would be as many as pairs of scores: sums over the features take less.
    """

    products, notes = False, True
    _known = False

    def __init__(self, head: Any) -> None:
        self.head, self.structure, self.has_bias = head, head.structure, False

    @property
    def num_states(self) -> int:
        """One score a row."""
        return 1

    @property
    def width(self) -> int:
        """Rows of scores are not padded."""
        return self.num_states

    def weights(self) -> Weights:
        """One column."""
        return self._emission(), None, None, None, None

    def _emission(self) -> Tensor:
        return self.head.weight.unsqueeze(1)

    def model(self, rows: Tensor | None = None) -> Model:
        """The weights, sharing the memory of the head."""
        weight = self.head.weight.detach().numpy()
        none = np.zeros(1, weight.dtype)
        return Model(weight[:, None], np.zeros((0, self.num_states), weight.dtype), none, none, none, False, False)

    def take_back(self, model: Model) -> None:
        """The memory is shared."""

    def trained(self, model: Model) -> list[Any]:
        """The weights."""
        return [model.emission[..., 0]]

    def note(self, potentials: Potentials, sizes: tuple[int, ...]) -> None:
        """Note whether potentials have lengths, and their largest sizes; ValueError if earlier batches differ."""
        ragged = potentials.lengths is not None
        if not self._known:
            self._known, self.ragged, self.sizes = True, ragged, sizes
        check_sizes(ragged, sizes, self.ragged, self.sizes)
        self.sizes = tuple(map(max, sizes, self.sizes))
