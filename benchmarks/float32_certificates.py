"""How far certificates of float32 weights are from float64: random problems, most of them badly scaled.

python benchmarks/float32_certificates.py [--problems 10000] [--seed 0]

Classes, chains and label sets of all lambdas, separable or not, with features of all sizes and far from zero, and long
chains; by the compiled loop and by the torch loop. The certified primal is compared with the primal of the same
weights in float64, and the dual with that of the same blocks, as shares of the primal.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from collections import defaultdict
from contextlib import suppress
from typing import Any

import torch

from torchssvm import (
    Chain,
    Labelings,
    LinearChain,
    LinearMulticlass,
    LinearMultilabel,
    MeanParts,
    Relative,
    Solver,
    in_order,
    make_trainer,
)
from torchssvm.core.batch import Batch, apply_head, tree_map
from torchssvm.core.gradients import adjoint
from torchssvm.core.row_sparse import squared_norm
from torchssvm.datasets import PaddedDataset
from torchssvm.solvers import primal


def problem(seed: int) -> tuple[str, Any, Any, float]:
    """What is decoded, the head, the data and lambda."""
    g = torch.Generator().manual_seed(seed)

    def draw(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=g))]

    def power(low: float, high: float) -> float:
        return 10 ** float(torch.empty(1).uniform_(low, high, generator=g))

    kind = "long chains" if seed % 50 == 0 else draw("classes", "chains", "label sets")
    n, features, states = draw(2, 8, 40, 150), draw(1, 3, 20), draw(2, 3, 6)
    n, length = (draw(1, 2), draw(600, 3000)) if kind == "long chains" else (n, draw(1, 4, 12))
    size, offset, lam = power(-2, 2), draw(0.0, 0.0, 30.0, 1000.0), power(-9, 4)
    bias = draw(True, False)
    if kind == "classes":
        x = torch.randn(n, features, generator=g)
        y = (x @ torch.randn(features, states, generator=g)).argmax(1)
        noise = torch.randint(states, y.shape, generator=g)
        head: Any = LinearMulticlass(features, states, bias=bias)
    elif kind == "label sets":
        x = torch.randn(n, features, generator=g)
        y = (x @ torch.randn(features, states, generator=g) > 0).long()
        noise = torch.randint(2, y.shape, generator=g)
        head = LinearMultilabel(features, states, bias=bias, pairwise=False)
    else:
        x = torch.randn(n, length, features, generator=g)
        y = (x @ torch.randn(features, states, generator=g)).argmax(2)
        noise = torch.randint(states, y.shape, generator=g)
        head = LinearChain(features, states, bias=bias, structure=Chain(states, normalize=draw(True, False)))
    y = torch.where(torch.rand(y.shape, generator=g) < draw(0.0, 0.0, 0.3), noise, y)
    return kind, head, PaddedDataset(size * (x + offset), y), lam * size**2


def double(batches: Any) -> list[Batch]:
    """The same numbers in float64."""
    return [tree_map(lambda t: t.double() if t.is_floating_point() else t, batch) for batch in batches]


def dual_value(head: Any, dual: Any, batches: list[Batch]) -> float:
    """The dual of the stored blocks, in float64."""
    weights = [torch.zeros_like(p) for p in head.parameters()]
    for batch in batches:
        potentials = apply_head(head, batch)
        target = head.structure.check_target(batch.y, potentials)
        psi = dual.storage.gather(batch.index, potentials, target).psi
        for total, part in zip(weights, adjoint(potentials, psi, list(head.parameters())), strict=True):
            total += part.detach() / (dual.lam * dual.num_examples)
    return dual.total_loss - dual.lam / 2 * squared_norm(weights)


def measure(seed: int) -> tuple[str, float, float]:
    """The kind, and the relative errors of the primal and of the dual."""
    kind, head, data, lam = problem(seed)
    compiled = kind != "label sets" and seed % 2 == 0
    storage = Labelings() if seed % 4 < 2 else MeanParts()
    trainer = make_trainer(head, data, lam, solver=Solver(compiled=compiled, storage=storage), progress=False)
    results = trainer.solve(Relative(1e-7), max_passes=30, progress=False)
    wide, batches = copy.deepcopy(head).double(), double(in_order(data))
    exact = primal(wide, wide.structure, batches, lam).value
    dual = dual_value(wide, trainer.dual, batches)
    kind += ", compiled" if compiled else ", torch"
    return kind, (results.primal - exact) / exact, (results.dual - dual) / exact


def main() -> None:
    """Print the worst of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    errors: dict[str, list[tuple[float, int]]] = defaultdict(list)
    refused: list[int] = []
    with suppress(KeyboardInterrupt):  # then what was measured so far
        for seed in range(options.seed, options.seed + options.problems):
            try:
                kind, *both = measure(seed)
            except RuntimeError:  # the gap is negative by more than is forgiven
                refused.append(seed)
                continue
            for name, error in zip(("primal", "dual"), both, strict=True):
                errors[f"{kind}, {name}"].append((error, seed))
    for kind, pairs in sorted(errors.items()):
        low, high = min(pairs), max(pairs)
        print(f"{kind}: {len(pairs)} problems, {low[0]:.2g} (seed {low[1]}) to {high[0]:.2g} (seed {high[1]})")
    print(f"refused with an error: {len(refused)} problems, seeds {refused}")


if __name__ == "__main__":
    main()
