"""Launches every Triton kernel of the package on a CUDA device, at sizes of several warps and tiles.

compute-sanitizer --tool memcheck python benchmarks/every_kernel.py
python benchmarks/every_kernel.py --repeat 1000

With ``--repeat`` each kernel runs so often, in orders drawn anew, and must find the same bits: what threads of a kernel
exchange lies in global memory, where racecheck sees nothing. ``benchmarks/device.py --part checks`` does all of it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from torchssvm import BCFW, Batch, BlockGap, Chain, DualState, LinearChain, Potentials, certify
from torchssvm.steps.box_qp import solve_box_qp
from torchssvm.structures.arborescence.oracle import eisner, max_arborescence
from torchssvm.structures.chain.oracle import viterbi
from torchssvm.structures.chain.sum_product import sum_product
from torchssvm.structures.matching.oracle import best_matching
from torchssvm.structures.multilabel.oracle import best_label_sets
from torchssvm.structures.pose.oracle import best_along_last
from torchssvm.structures.segments.oracle import semi_markov, semi_markov_marginals
from torchssvm.structures.tree.oracle import max_sum_tree


def launches(
    device: torch.device,
    *,
    size: int = 20,
    states: Sequence[int] = (26, 200, 640),
    blocks: Sequence[int] = (70, 300, 1100),
) -> dict[str, Callable[[], Any]]:
    """Calls that together launch every kernel.

    Args:
        device: A CUDA device.
        size: Tokens, nodes, labels and pixels along an axis.
        states: Of chains: few, many in tiles of a chain, and many in tiles that chains share.
        blocks: Of box QPs: in one program, of one warp and of several, and in several programs.
    """
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(device)

    lengths = torch.tensor([size, 1, size // 2, size]).to(device)
    parents = torch.tensor([-1, *(k // 2 for k in range(size - 1))]).to(device)
    arcs, edges, images = draw(4, size, size + 1), draw(4, size, size - 1), draw(4, size, 2 * size)
    unary, pairs = draw(4, size), draw(size * (size - 1) // 2)
    costs = draw(4, 1, 2 * size, 2 * size)
    results: dict[str, Callable[[], Any]] = {
        "Eisner": lambda: eisner(arcs, lengths, True),
        "Chu, Liu and Edmonds": lambda: max_arborescence(arcs, lengths, True),
        "assignments": lambda: best_matching(edges, lengths, lengths.clamp(max=size - 1)),
        "max-convolutions": lambda: best_along_last(images, costs),
        "label sets": lambda: best_label_sets(unary, pairs, effort=100),
        "two steps": lambda: train(device, size, states[0]),
    }
    for number in states:
        emission, transition = draw(4, size, number), draw(number, number)
        results[f"Viterbi, {number} states"] = lambda e=emission, t=transition: viterbi(e, t, lengths)
    tables = {"emission": draw(4, size, states[-1]).round(), "transition": draw(4, states[-1], states[-1]).round()}
    labels = [torch.full((4, size), state).to(device) for state in (0, 1)]
    results["scores of large tables"] = lambda: scores(tables, *labels)
    frames, rows = draw(4, size, 5), draw(4, 5 + size, 5)
    shortest = torch.ones(5, dtype=torch.int64).to(device)
    results["segments"] = lambda: semi_markov(frames, rows, shortest, lengths)
    results["marginals of segments"] = lambda: semi_markov_marginals(frames, rows, shortest, lengths)
    results["marginals of chains"] = lambda: sum_product(frames, rows[:, :5], lengths)
    for number in states[:2]:
        node, edge = draw(4, size, number), draw(number, number)
        results[f"trees, {number} states"] = lambda n=node, e=edge: max_sum_tree(n, e, parents, None)
    for number in blocks:
        factors, values = draw(number, 5), draw(number)
        gram = (factors.cpu() @ factors.cpu().t()).to(device)
        results[f"box QP, {number} blocks"] = lambda g=gram, v=values: solve_box_qp(g, v, 4)
    return results


def scores(tables: dict[str, torch.Tensor], results: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Scores and losses of labels; the tables hold whole numbers, whose sums are exact."""
    result = Chain(tables["emission"].shape[2], normalize=False)._examine(results, labels, Potentials(tables))
    return result.score, result.loss


def train(device: torch.device, size: int, states: int) -> None:
    """Two steps and a certificate of chains: their labels, the rows of their blocks, and inner products."""
    x = torch.randn(4, size, 6, generator=torch.Generator().manual_seed(1)).to(device)
    head = LinearChain(6, states).to(device)
    dual = DualState.for_head(head, num_examples=4, lam=0.1)
    optimizer = BCFW(head.parameters(), dual)
    y, index = x[..., :states].argmax(2), torch.arange(4, device=device)
    for _ in range(2):
        optimizer.zero_grad()
        BlockGap(dual)(head(x), y, index).backward()
        optimizer.step()
    certify(head, dual, [Batch(x, y, index)])


def main() -> None:
    """Launch all of them once, or again and again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="tiny sizes")
    flags = parser.parse_args()
    sizes: dict[str, Any] = {"size": 3, "states": (2, 3), "blocks": (2, 3)} if flags.quick else {}
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))
        from cases.pretended_device import pretended_device

        with pretended_device() as device:
            repeat(launches(device, **sizes), flags.repeat)
        return
    repeat(launches(torch.device("cuda"), **sizes), flags.repeat)


def repeat(calls: dict[str, Callable[[], Any]], times: int) -> None:
    """Run all in orders drawn anew; exit with an error if one finds other bits than at first."""
    first: dict[str, bytes] = {}
    names = list(calls)
    for _ in range(times):
        for name in names:
            results = calls[name]()
            parts = results if isinstance(results, tuple) else (results,)
            bits = b"".join(p.cpu().numpy().tobytes() for p in parts if isinstance(p, torch.Tensor))
            if first.setdefault(name, bits) != bits:
                sys.exit(f"FAILED: {name} returned other bits")
        random.shuffle(names)
    print(f"{len(names)} calls, {times} times each, the same bits in every order", flush=True)


if __name__ == "__main__":
    main()
