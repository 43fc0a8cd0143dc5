"""Calls of everything public that reaches a kernel, with each tensor a little and much too short and too long.

Run where kernels are Python, which raises IndexError where compiled code would read or write memory that is not its
own: as a program with ``NUMBA_DISABLE_JIT=1``, or by ``tests/project/test_sizes.py``. Every call has to answer or to
raise an error of its own; its name is printed before, so that a crash of other compiled code has one too.
"""

from __future__ import annotations

import copy
import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torchssvm
from cases.compiled_kinds import ARCS, OTHERS
from torchssvm import GDMM, Batch, BlockGap, CompiledBCFW, DualState, Potentials, Sequential, SparseFeatures
from torchssvm.core.batch import tree_map, tree_replace, tree_tensors
from torchssvm.core.sparse_features import padded_lists
from torchssvm.core.structure import as_decoding
from torchssvm.deployment import Decoder
from torchssvm.solvers.kernel import RBF, KernelChain, KernelSSVM
from torchssvm.steps import solve_box_qp
from torchssvm.structures import (
    Arborescence,
    Chain,
    EdgePotentials,
    Forest,
    ForestPotentials,
    GraphCut,
    GraphPotentials,
    HiddenStates,
    LinearArcs,
    LinearChain,
    LinearMulticlass,
    LinearMultilabel,
    LinearTree,
    Matching,
    Multiclass,
    Multilabel,
    NonProjective,
    PairwiseGraph,
    PairwisePotentials,
    Projective,
    Ranking,
    RoofDual,
    Segments,
    SparseLinearChain,
    SparseLinearMultilabel,
    Tree,
    TreeReweighted,
    WeightedLabels,
    best_label_sets,
    best_matching,
    max_sum_grid,
    max_sum_tree,
    min_cut,
    roof_dual,
    semi_markov,
    viterbi,
)
from torchssvm.structures.arborescence.oracle import eisner, max_arborescence
from torchssvm.structures.multilabel.structure import MessagePassing

Call = tuple[str, Callable[..., Any], list[Tensor]]
"""A name, a function, and tensors that fit it."""

_ROOT = os.path.dirname(torchssvm.__file__)
_LARGEST = 1 << 20  # numbers in a tensor that is too long

EVERY = 1 if os.environ.get("TORCHSSVM_THOROUGH") else 5
"""Every fifth change is tried, and all of them where there is time."""


def rand(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def whole(limit: int, *shape: int) -> Tensor:
    return (rand(*shape) * limit).long().clamp(max=limit - 1)


def variants(tensors: list[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """The tensors with one of them changed: each axis, and of whole numbers the last one."""
    for place, tensor in enumerate(tensors):
        found = []
        for axis in range(tensor.ndim):
            for more in (-1, 1, 1000, -tensor.shape[axis]):
                size = tensor.shape[axis] + more
                if size >= 0 and tensor.numel() // max(tensor.shape[axis], 1) * size <= _LARGEST:
                    index = torch.arange(size).clamp(max=max(tensor.shape[axis] - 1, 0))
                    shape = [*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]]
                    changed = tensor.index_select(axis, index) if tensor.shape[axis] else tensor.new_zeros(shape)
                    found.append((f"axis {axis} {more:+}", changed))
        if tensor.dtype == torch.int64 and tensor.numel():
            for value in (-1, -2, -1000, int(tensor.max()) + 1, int(tensor.max()) + 1000, 2**40, -(2**40)):
                changed = tensor.clone()
                changed.view(-1)[-1] = value
                found.append((f"holds {value}", changed))
        for name, changed in found:
            yield f"tensor {place} {name}", [*tensors[:place], changed, *tensors[place + 1 :]]


def of_structure(name: str, structure: Any, make: Callable[..., Any], tensors: list[Tensor], target: Any) -> list[Call]:
    """The methods of a structure by hand: with other potentials, other labelings, other targets."""
    given = make(*tensors)
    true = structure.check_target(target, given)
    found = as_decoding(structure.argmax(given)).labeling
    several = tree_map(lambda t: torch.stack([t, t], 1), found)
    leaves, put = tree_tensors, tree_replace
    size, n = len(leaves(found)), len(leaves(target))
    mass = torch.ones(given.batch_size, 2, dtype=torch.float64)
    calls: list[Call] = [
        (f"{name}.argmax", lambda *t: structure.argmax(make(*t)), tensors),
        (f"{name}.decode", lambda *t: structure.decode(make(*t)), tensors),
        (f"{name}.augmented_argmax, potentials", lambda *t: structure.augmented_argmax(make(*t), true), tensors),
        (f"{name}.augmented_argmax, target", lambda *t: structure.augmented_argmax(given, put(true, t)), leaves(true)),
        (f"{name}.check_target", lambda *t: structure.check_target(put(target, t), given), leaves(target)),
        (
            f"{name}.check_target, potentials",
            lambda *t: structure.check_target(put(target, t[:n]), make(*t[n:])),
            [*leaves(target), *tensors],
        ),
        (f"{name}.parts", lambda *t: structure.parts(put(found, t)), leaves(found)),
        (f"{name}.loss", lambda *t: structure.loss(put(found, t), true), leaves(found)),
        (f"{name}.loss, target", lambda *t: structure.loss(found, put(true, t)), leaves(true)),
    ]
    if not isinstance(structure, Ranking):  # its loss is not linear in its parts
        calls.append((f"{name}.loss_potentials", lambda *t: structure.loss_potentials(put(true, t)), leaves(true)))
    if type(structure).marginals is not torchssvm.Structure.marginals:
        calls.append((f"{name}.marginals", lambda *t: structure.marginals(make(*t)), tensors))
    for method in ("examine", "difference"):
        act = getattr(structure, method)
        calls += [
            (f"{name}.{method}", lambda *t, act=act: act(put(found, t), true, given), leaves(found)),
            (f"{name}.{method}, target", lambda *t, act=act: act(found, put(true, t), given), leaves(true)),
            (f"{name}.{method}, potentials", lambda *t, act=act: act(found, true, make(*t)), tensors),
        ]
    calls += [
        (
            f"{name}.add_difference",
            lambda *t: structure.add_difference(
                {k: v.clone() for k, v in zip(given.tensors, t[size:], strict=True)}, put(found, t[:size]), true, given
            ),
            [*leaves(found), *(torch.zeros_like(v) for v in given.tensors.values())],
        ),
        (
            f"{name}.relative_scores",
            lambda *t: structure.relative_scores(put(several, t), true, given),
            leaves(several),
        ),
        (f"{name}.relative_scores, potentials", lambda *t: structure.relative_scores(several, true, make(*t)), tensors),
        (
            f"{name}.relative_scores, target",
            lambda *t: structure.relative_scores(several, put(true, t), given),
            leaves(true),
        ),
        (
            f"{name}.mean_difference",
            lambda *t: structure.mean_difference(put(several, t[1:]), t[0], true, given),
            [mass, *leaves(several)],
        ),
        (
            f"{name}.mean_difference, target",
            lambda *t: structure.mean_difference(
                several, torch.ones(given.batch_size, 2).double(), put(true, t), given
            ),
            leaves(true),
        ),
        (f"{name}.resize", lambda *t: structure.resize(put(several, t), true), leaves(several)),
    ]
    return calls


LENGTHS = torch.tensor([4, 2])


def with_lengths(*names: str, ragged: dict[str, int] | None = None) -> Callable[..., Potentials]:
    return lambda *t: Potentials(dict(zip(names, t[:-1], strict=True)), t[-1], ragged=ragged)


def structures() -> Iterator[Call]:
    chain = rand(2, 4, 3), rand(2, 3, 3), LENGTHS
    labels = whole(3, 2, 4)
    for name, ragged in (("Chain", None), ("Chain, ragged", {"emission": 0})):
        yield from of_structure(name, Chain(3), with_lengths("emission", "transition", ragged=ragged), [*chain], labels)
    weighted = WeightedLabels(labels, rand(2, 4))
    yield from of_structure("Chain, weighted", Chain(3), with_lengths("emission", "transition"), [*chain], weighted)
    by_place = [rand(2, 4, 3), rand(2, 3, 3, 3), LENGTHS]
    yield from of_structure(
        "Chain, by place", Chain(3, shared=False), with_lengths("emission", "transition"), by_place, labels
    )
    yield from of_structure(
        "HiddenStates",
        HiddenStates(Chain(3), [0, 1, 1]),
        with_lengths("emission", "transition"),
        [*chain],
        whole(2, 2, 4),
    )
    yield from of_structure("Multiclass", Multiclass(3), Potentials, [rand(2, 3)], whole(3, 2))
    parents = [-1, 0, 1, 1]
    yield from of_structure("Tree", Tree(3, parents), with_lengths("node", "edge"), [*chain], labels)
    yield from of_structure(
        "Forest",
        Forest(3),
        ForestPotentials,
        [rand(2, 4, 3), rand(2, 4, 3, 3), torch.tensor([[-1, 0, 1, 1], [-1, 0, -1, -1]]), LENGTHS],
        labels,
    )
    heads = torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1]])
    for among in (Projective(), NonProjective()):
        yield from of_structure(f"{among}", Arborescence(among), Potentials, [rand(2, 4, 5), LENGTHS], heads)
    sets = whole(2, 2, 4)
    for decoder in (None, MessagePassing()):
        yield from of_structure(
            f"Multilabel, {decoder}",
            Multilabel(4, decoder=decoder),
            lambda u, p: Potentials({"unary": u, "pairwise": p}),
            [rand(2, 4), rand(2, 6) - 0.5],
            sets,
        )
    edges = torch.tensor([[[0, 1], [1, 2], [2, 3], [3, 0]], [[0, 1], [-1, -1], [-1, -1], [-1, -1]]])
    pairwise = [rand(2, 4, 3), rand(2, 4, 3, 3), edges, LENGTHS]
    yield from of_structure("PairwiseGraph", PairwiseGraph(3), PairwisePotentials, pairwise, labels)
    graph = [rand(2, 4) - 0.5, rand(2, 4), edges, LENGTHS]
    yield from of_structure("GraphCut", GraphCut(), GraphPotentials, graph, sets)
    repulsive = [graph[0], graph[1] - 0.5, *graph[2:]]
    yield from of_structure("GraphCut, roof dual", GraphCut(RoofDual()), GraphPotentials, repulsive, sets)
    yield from of_structure(
        "Matching",
        Matching(),
        EdgePotentials,
        [rand(2, 3, 4) - 0.2, torch.tensor([3, 2]), torch.tensor([4, 1])],
        torch.eye(3, 4).long().expand(2, 3, 4).contiguous() * torch.tensor([1, 0]).view(2, 1, 1),
    )
    yield from of_structure("Ranking", Ranking(), Potentials, [rand(2, 4), LENGTHS], whole(2, 2, 4))
    segments = [rand(2, 4, 3), rand(2, 6, 3), LENGTHS]
    codes = Segments(3, 3).from_frames(torch.tensor([[0, 0, 1, 1], [2, 2, -1, -1]]))
    yield from of_structure("Segments", Segments(3, 3), with_lengths("emission", "segment"), segments, codes)


def oracles() -> Iterator[Call]:
    parent, edges = torch.tensor([-1, 0, 1, 1]), torch.tensor([[[0, 1], [1, 2], [2, 0]]]).expand(2, 3, 2).contiguous()
    lengths = torch.tensor([4, 3])
    yield "viterbi", viterbi, [rand(2, 4, 3), rand(2, 3, 3), LENGTHS]
    yield "viterbi, by place", viterbi, [rand(2, 4, 3), rand(2, 3, 3, 3), LENGTHS]
    least = torch.tensor([1, 2, 1])
    yield "semi_markov", semi_markov, [rand(2, 4, 3), rand(2, 5, 3), least, LENGTHS]
    yield "semi_markov, spans", semi_markov, [rand(2, 4, 6), rand(2, 5, 3), least, LENGTHS, whole(6, 2, 4)]
    yield "max_sum_tree", max_sum_tree, [rand(2, 4, 3), rand(2, 3, 3), parent, LENGTHS]
    yield "max_sum_tree, own", max_sum_tree, [rand(2, 4, 3), rand(2, 4, 3, 3), parent.repeat(2, 1), LENGTHS]
    for single in (True, False):
        yield f"eisner {single}", lambda s, n, single=single: eisner(s, n, single), [rand(2, 4, 5), LENGTHS]
        yield (
            f"max_arborescence {single}",
            lambda s, n, single=single: max_arborescence(s, n, single),
            [rand(2, 4, 5), LENGTHS],
        )
    yield "best_label_sets", lambda u, p: best_label_sets(u, p, effort=1000), [rand(2, 4), rand(2, 6) - 0.5]
    yield "TreeReweighted.solve", TreeReweighted().solve, [rand(2, 4, 3), rand(2, 3, 3, 3), edges, lengths]
    yield "min_cut", min_cut, [rand(2, 4) - 0.5, rand(2, 3), edges, lengths]
    yield "roof_dual", roof_dual, [rand(2, 4) - 0.5, rand(2, 3) - 0.5, edges, lengths]
    yield "best_matching", best_matching, [rand(2, 3, 4)]
    maps = [rand(2, 3, 4, 5), rand(2, 2, 2, 2, 4, 5), rand(2, 2, 2, 2, 9), rand(2, 2, 2, 2, 7)]
    yield "max_sum_grid", max_sum_grid, [*maps, torch.tensor([-1, 0, 1])]
    yield "solve_box_qp", lambda g, v: solve_box_qp(g, v, 3), [torch.eye(3).double(), rand(3).double()]


COLUMNS = torch.tensor([[[0, 2], [1, -1], [0, 1], [2, 3]], [[3, 1], [0, -1], [-1, -1], [-1, -1]]])


def heads() -> Iterator[Call]:
    """Heads, their adjoints and Gram products, and their decoders."""
    x, values = rand(2, 4, 5), rand(2, 4, 2)
    lists, first = [COLUMNS, values, LENGTHS], [COLUMNS[:, 0], values[:, 0]]
    arcs = (COLUMNS % 4).unsqueeze(2).expand(2, 4, 5, 2).contiguous()
    made: list[tuple[str, Any, Callable[..., Any], list[Tensor]]] = [
        ("LinearChain", LinearChain(5, 3), lambda x, n: (x, n), [x, LENGTHS]),
        ("SparseLinearChain", SparseLinearChain(4, 3), lambda c, v, n: (SparseFeatures(c, v), n), lists),
        ("LinearMulticlass", LinearMulticlass(5, 3), lambda x: (x,), [rand(2, 5)]),
        ("LinearTree", LinearTree(5, 3, parent=[-1, 0, 1, 1]), lambda x, n: (x, n), [x, LENGTHS]),
        ("LinearMultilabel", LinearMultilabel(5, 3), lambda x: (x,), [rand(2, 5)]),
        ("SparseLinearMultilabel", SparseLinearMultilabel(4, 3), lambda c, v: (SparseFeatures(c, v),), first),
        ("LinearArcs", LinearArcs(4), lambda c, n: (SparseFeatures(c), n), [arcs, LENGTHS]),
    ]
    for name, head, args, tensors in made:
        given = head(*args(*tensors))
        names = list(given.tensors)
        parts = [t.detach().clone() for t in given.tensors.values()]
        yield name, lambda *t, head=head, args=args: head(*args(*t)), tensors
        for rule in ("adjoint", "gram_product"):
            if (act := getattr(given, rule)) is not None:
                yield f"{name}, {rule}", lambda *t, act=act, names=names: act(dict(zip(names, t, strict=True))), parts
        if not isinstance(head, LinearArcs):
            structure = Multilabel(3, decoder=MessagePassing()) if "label" in name else None
            decoder = Decoder(head, structure)
            yield f"Decoder({name})", lambda *t, decoder=decoder, args=args: decoder(*args(*t)), tensors
    yield "SparseFeatures.dense", lambda c, v: SparseFeatures(c, v).dense(4), [COLUMNS, values]
    yield ("padded_lists", padded_lists, [torch.tensor([0, 2]), torch.tensor([2, 1]), torch.tensor([0, 1, 2]), rand(3)])


def trainers() -> Iterator[Call]:
    """Trainers whose examples do not fit, and visits of blocks that are not there."""
    x, y, index = rand(2, 4, 5), whole(3, 2, 4), torch.arange(2)
    batch = [x, y, index, LENGTHS]
    sparse = [COLUMNS, rand(2, 4, 2), y, index, LENGTHS]
    storages = {"mean parts": torchssvm.MeanParts, "labelings": torchssvm.Labelings}

    def dense_batch(x: Tensor, y: Tensor, index: Tensor, lengths: Tensor) -> Batch:
        return Batch(x, y, index, lengths)

    def sparse_batch(columns: Tensor, values: Tensor, *others: Tensor) -> Batch:
        return Batch(SparseFeatures(columns, values), *others)

    def compiled(head: Any, batch: Batch, storage: Any) -> CompiledBCFW:
        trainer = CompiledBCFW(head, DualState.for_head(head, 2, 0.1, storage=storage()), [batch])
        trainer.step()
        trainer.certify()
        return trainer

    def gdmm(head: Any, batch: Batch) -> GDMM:
        trainer = GDMM(head, [batch], num_examples=2, lam=0.1)
        trainer.step()
        trainer.certify()
        return trainer

    def gap(head: Any, batch: Batch, storage: Any = torchssvm.MeanParts, **rules: Any) -> None:
        dual = DualState.for_head(head, 2, 0.1, storage=storage())
        loss, optimizer = BlockGap(dual, **rules), torchssvm.BCFW(head.parameters(), dual)
        for _ in range(2):
            optimizer.zero_grad()
            loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
            optimizer.step()
        torchssvm.certify(head, dual, [batch])

    def kernel(x: Tensor, y: Tensor, lengths: Tensor) -> KernelSSVM:
        trainer = KernelSSVM(KernelChain(RBF(1.0), 5, 3), x, y, lengths, lam=0.1)
        trainer.step()
        trainer.certify()
        return trainer

    for name, storage in storages.items():
        yield f"CompiledBCFW, {name}", lambda *t, s=storage: compiled(LinearChain(5, 3), dense_batch(*t), s), batch
        yield (
            f"CompiledBCFW, lists, {name}",
            lambda *t, s=storage: compiled(SparseLinearChain(4, 3), sparse_batch(*t), s),
            sparse,
        )
        direction = torchssvm.Pairwise() if name == "labelings" else None
        yield (
            f"BlockGap, {name}",
            lambda *t, s=storage, d=direction: gap(LinearChain(5, 3), dense_batch(*t), s, direction=d),
            batch,
        )
    yield "Sequential", lambda *t: gap(LinearChain(5, 3), dense_batch(*t), block_steps=Sequential()), batch
    yield "BlockGap, lists", lambda *t: gap(SparseLinearChain(4, 3), sparse_batch(*t)), sparse
    made = compiled(LinearChain(5, 3), dense_batch(*batch), torchssvm.Labelings)
    yield "CompiledBCFW.visit", made.visit, [index]
    yield "CompiledBCFW.check_targets", lambda *t: made.check_targets(dense_batch(*t)), batch
    yield "GDMM", lambda *t: gdmm(LinearChain(5, 3, boundary=False), dense_batch(*t)), batch
    own = gdmm(LinearChain(5, 3, boundary=False), dense_batch(*batch))
    yield "GDMM.visit", own.visit, [index]
    sets = [rand(2, 5), whole(2, 2, 3), index]
    yield "GDMM, label sets", lambda *t: gdmm(LinearMultilabel(5, 3), Batch(*t)), sets
    yield "KernelSSVM", kernel, [x, y, LENGTHS]
    svm = kernel(x, y, LENGTHS)
    yield "KernelSSVM.visit", svm.visit, [index]
    yield "KernelSSVM.decode", svm.decode, [x, LENGTHS]


def kinds() -> Iterator[Call]:
    """The compiled loop on examples of every kind: each tensor that a batch brings."""

    def run(problem: Any, batch: Batch) -> None:
        head = copy.deepcopy(problem.head)
        trainer = CompiledBCFW(head, DualState.for_head(head, problem.n, 0.1), [batch])
        trainer.step(3)
        trainer.certify()

    for name, make in {**OTHERS, **ARCS}.items():
        problem = make()
        batch = problem.batch(range(problem.n))
        tensors = [batch.x, batch.y, batch.index, batch.lengths]
        yield (
            f"CompiledBCFW, {name}",
            lambda *t, p=problem, like=tensors: run(p, Batch(*tree_replace(like, t))),
            tree_tensors(tensors),
        )


def estimators() -> Iterator[Call]:
    """Estimators on sparse matrices whose arrays do not fit each other."""
    from scipy import sparse

    from torchssvm.estimators import ChainSVC, MultilabelSVC, MultinomialSVC

    start, columns, values = torch.tensor([0, 2, 3, 5, 6]), torch.tensor([0, 2, 1, 0, 1, 2]), rand(6)
    y = np.array([0, 1, 0, 1])

    def matrix(start: Tensor, columns: Tensor, values: Tensor) -> Any:
        found = sparse.csr_matrix((4, 3))
        found.indptr, found.indices, found.data = start.numpy(), columns.numpy(), values.numpy()
        return found

    def coo(row: Tensor, column: Tensor, values: Tensor) -> Any:
        found = sparse.coo_matrix((4, 3))
        found.row, found.col, found.data = row.numpy(), column.numpy(), values.numpy()
        return found

    arrays = [start, columns, values]
    models: dict[str, tuple[Callable[[], Any], Any]] = {
        "MultinomialSVC": (lambda: MultinomialSVC(tol=0.5), y),
        "MultilabelSVC": (lambda: MultilabelSVC(tol=0.5), np.stack([y, 1 - y], 1)),
    }
    for name, (make, target) in models.items():
        fitted = make().fit(matrix(*arrays), target)
        yield f"{name}.fit", lambda *t, m=make, y=target: m().fit(matrix(*t), y), arrays
        yield f"{name}.predict", lambda *t, f=fitted: f.predict(matrix(*t)), arrays
        rows = torch.tensor([0, 0, 1, 2, 2, 3])
        yield f"{name}.fit, coo", lambda *t, m=make, y=target: m().fit(coo(*t), y), [rows, columns, values]
    yield (
        "MultilabelSVC.fit, labels",
        lambda *t: MultilabelSVC(tol=0.5).fit(np.eye(4), matrix(*t)),
        [start, columns, torch.ones(6)],
    )
    yield ("ChainSVC.fit", lambda *t: ChainSVC(tol=0.5).fit([matrix(*t)], [y]), arrays)


GROUPS = {
    "structures": structures,
    "oracles": oracles,
    "heads": heads,
    "trainers": trainers,
    "kinds": kinds,
    "estimators": estimators,
}


def fault(error: Exception) -> str | None:
    """What is wrong with an error; None if it is a refusal with a text."""
    if isinstance(error, IndexError | ZeroDivisionError) and _in_kernel(error):
        return f"a kernel was entered: {error!r}"
    if isinstance(
        error, MemoryError | KeyError | AttributeError | AssertionError | ZeroDivisionError | UnboundLocalError
    ):
        return f"no refusal: {error!r}"
    return None if str(error).strip() else f"{type(error).__name__} without a text"


def _in_kernel(error: Exception) -> bool:
    from torchssvm.compiler.jit import Kernel

    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    frame = None if trace is None else trace.tb_frame
    found = None if frame is None else frame.f_globals.get(frame.f_code.co_name)
    return isinstance(found, Kernel)


def main(names: list[str]) -> int:
    warnings.simplefilter("ignore")
    failed = 0
    for group in names or GROUPS:
        for name, call, tensors in GROUPS[group]():
            call(*[t.clone() for t in tensors])
            for how, changed in itertools.islice(variants(tensors), sum(map(ord, name)) % EVERY, None, EVERY):
                print(f"{name}: {how}", flush=True)
                try:
                    call(*changed)
                except Exception as error:
                    if (wrong := fault(error)) is not None:
                        failed += 1
                        where = traceback.extract_tb(error.__traceback__)[-1]
                        print(f"FAULT {name}: {how}: {wrong} at {where.filename}:{where.lineno}")
    return failed


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(min(main(sys.argv[1:]), 1))
