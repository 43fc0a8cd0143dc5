import io
import itertools
from collections import OrderedDict

import pytest
import torch
from cases.covering import cover
from cases.head_cases import HeadTestCase

from torchssvm import (
    Chain,
    LinearChain,
    LinearGraph,
    LinearMulticlass,
    LinearMultilabel,
    LinearSegments,
    LinearTree,
    Multiclass,
    Multilabel,
    Potentials,
    SparseFeatures,
    SparseLinearChain,
    SparseLinearMultilabel,
)


class TestLinearMulticlass(HeadTestCase):
    bias = True

    def make_head(self):
        return LinearMulticlass(3, 4, bias=self.bias)

    def make_input(self, random, batch):
        return (torch.randn(batch, 3, generator=random, dtype=torch.float64),)

    def reference(self, head, x):
        scores = [sum(x[f] * head.weight[k, f] for f in range(3)) for k in range(4)]
        return {"potentials": torch.stack([s + (head.bias[k] if self.bias else 0.0) for k, s in enumerate(scores)])}


@pytest.mark.variant
class TestLinearMulticlassWithoutBias(TestLinearMulticlass):
    bias = False


class LinearChainCase(HeadTestCase):
    bias = True
    boundary = True
    positions: int | None = None
    lengths = True

    def make_head(self):
        return LinearChain(2, 3, bias=self.bias, boundary=self.boundary, positions=self.positions)

    def make_input(self, random, batch):
        x = torch.randn(batch, 4, 2, generator=random, dtype=torch.float64)
        if not self.lengths:
            return (x,)
        return x, torch.randint(1, 5, (batch,), generator=random)

    def reference(self, head, x):
        rows = []
        for t in range(len(x)):
            row = sum(x[t, f] * head.by_feature(head.emission)[f] for f in range(2))
            if self.bias:
                row = row + head.bias
            if self.boundary and t == 0:
                row = row + head.start_transitions
            if self.boundary and t == len(x) - 1:
                row = row + head.end_transitions
            rows.append(row)
        transition = head.transition if self.positions is None else head.transition[: len(x) - 1]
        return {"emission": torch.stack(rows), "transition": transition}

    def bad_inputs(self, inputs):
        yield from super().bad_inputs(inputs)
        if self.positions is not None:
            yield (torch.zeros(3, 9, 2, dtype=torch.float64), *inputs[1:]), "positions"


_OPTIONS = list(itertools.product((True, False), (True, False), (None, 4, 6), (1, 0)))
_PAIRS = cover([tuple(map(str, options)) for options in _OPTIONS])
for _place, (_bias, _boundary, _positions, _lengths) in enumerate(_OPTIONS):
    _words = ["bias"] * _bias + ["boundary"] * _boundary + ["lengths"] * _lengths + [f"positions{_positions}"]
    _name = "TestLinearChain_" + "_".join(_words)
    _options = {"bias": _bias, "boundary": _boundary, "positions": _positions, "lengths": bool(_lengths)}
    _options["pytestmark"] = [] if _place in _PAIRS else [pytest.mark.variant]
    globals()[_name] = type(_name, (LinearChainCase,), {**_options, "__module__": __name__})


LISTS = torch.zeros(2, 3, dtype=torch.int64)  # of the features of two examples


@pytest.mark.parametrize(
    ("make", "error", "argument"),
    [
        (lambda: LinearMulticlass(3, 4, structure=Multiclass(5)), ValueError, "num_classes"),
        (lambda: LinearChain(2, 3, structure=Chain(4)), ValueError, "structure"),
        (lambda: LinearChain(2, 3, structure=Chain(3, shared=False)), ValueError, "structure"),
        (lambda: LinearChain(2, 3, structure=Chain(3), positions=5), ValueError, "structure"),
        (lambda: LinearChain(2, 3, positions=1), ValueError, "positions"),
        (lambda: LinearMultilabel(0, 3), ValueError, "in_features"),
        (lambda: LinearMultilabel(4, 3, structure=Multilabel(4)), ValueError, "structure"),
        (lambda: SparseLinearMultilabel(4, 3, structure=Multilabel(3, pairwise=False)), ValueError, "structure"),
        (lambda: LinearGraph(0, 1), ValueError, "features"),
        (lambda: LinearMultilabel(4, 3)(SparseFeatures(LISTS)), TypeError, "x"),
        (lambda: SparseLinearMultilabel(4, 3)(LISTS), TypeError, "SparseFeatures"),
        (lambda: SparseLinearMultilabel(4, 3)(SparseFeatures(LISTS + 4)), ValueError, "columns"),
        (lambda: SparseLinearMultilabel(4, 3)(SparseFeatures(LISTS[None])), ValueError, "columns"),
        (lambda: SparseLinearMultilabel(4, 3)(SparseFeatures(LISTS, torch.ones(2, 2))), ValueError, "values"),
        (lambda: SparseLinearChain(4, 3)(LISTS[None]), TypeError, "x"),
        (lambda: SparseLinearChain(4, 3)(SparseFeatures(LISTS)), ValueError, "columns"),
        (lambda: SparseLinearChain(4, 3)(SparseFeatures(LISTS[None].float())), ValueError, "columns"),
        (lambda: SparseLinearChain(4, 3)(SparseFeatures(LISTS[None] - 2)), ValueError, "columns"),
        (lambda: SparseLinearChain(4, 3)(SparseFeatures(LISTS[None, :0])), ValueError, "columns"),
    ],
)
def test_what_does_not_fit_a_head_is_refused(make, error, argument):
    with pytest.raises(error, match=argument):
        make()


def filled(head):
    """The head with numbers for weights."""
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


SQUARE = {
    "multiclass": lambda: LinearMulticlass(3, 3),
    "chain": lambda: LinearChain(3, 3, boundary=False),
    "multilabel": lambda: LinearMultilabel(3, 3),
    "tree": lambda: LinearTree(3, 3, [-1, 0]),
    "segments": lambda: LinearSegments(3, 3, 2),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", SQUARE)
def test_states_with_transposed_weights_are_refused(name, strict):
    """Version 0.1 stored ``[in, out]``; where the weights are square, only the version of the module tells."""
    head, other = filled(SQUARE[name]()), filled(SQUARE[name]())
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert state._metadata[""] == {"version": 2}
    old = OrderedDict(state)
    old._metadata = {"": {"version": 1}}
    with pytest.raises(RuntimeError, match="version 1"):
        other.load_state_dict(old, strict=strict)
    below, old = torch.nn.Sequential(other), OrderedDict({f"0.{key}": value for key, value in old.items()})
    old._metadata = {"": {"version": 1}, "0": {"version": 1}}
    with pytest.raises(RuntimeError, match="version 1"):
        below.load_state_dict(old, strict=strict)
    for good in (state, dict(state)):
        other.load_state_dict(good, strict=strict)
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), head.parameters(), strict=True))


@pytest.mark.parametrize(
    ("dense", "sparse"),
    [(LinearMultilabel(3, 3), SparseLinearMultilabel(3, 3)), (LinearChain(3, 3), SparseLinearChain(3, 3))],
)
def test_states_of_dense_heads_and_of_heads_on_lists_are_not_confused(dense, sparse):
    with pytest.raises(RuntimeError, match="version 1"):
        dense.load_state_dict(filled(sparse).state_dict())
    with pytest.raises(RuntimeError, match="version 2"):
        sparse.load_state_dict(filled(dense).state_dict())
    sparse.load_state_dict(sparse.state_dict())


class TestPotentials:
    def test_wrong_arguments_are_quoted(self):
        t = torch.zeros(2, 3)
        for call, argument in (
            (lambda: Potentials({"a": t, "b": torch.zeros(3, 3)}), "tensors|axis"),
            (lambda: Potentials(torch.tensor(1.0)), "tensors|axis"),
            (lambda: Potentials(t, torch.tensor([1])), "lengths"),
            (lambda: Potentials(t, torch.tensor([1, 1]), ragged={"other": 0}), "ragged"),
            (lambda: Potentials(t, ragged={"potentials": 0}), "lengths"),
            *((lambda wrong=wrong: Potentials(wrong), "tensors") for wrong in ([1.0], {}, {"a": 1.0}, None)),
        ):
            with pytest.raises((TypeError, ValueError), match=argument):
                call()

    def test_select_and_detach(self):
        weight = torch.randn(3, 2, requires_grad=True)
        lengths = torch.tensor([3, 1, 2])
        potentials = Potentials(
            {"a": torch.randn(3, 3, 3) @ weight}, lengths, ragged={"a": 0}, adjoint=lambda parts: []
        )
        assert potentials.requires_grad
        chosen = potentials.select(torch.tensor([2, 0]))
        assert torch.equal(chosen["a"], potentials["a"][[2, 0]])
        assert chosen.lengths.tolist() == [2, 3]
        assert chosen.ragged == {"a": 0}
        assert chosen.adjoint is None
        assert not potentials.detach().requires_grad
        assert torch.equal(potentials.detach()["a"], potentials["a"])
        assert potentials.single is potentials["a"]
