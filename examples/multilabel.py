"""Sets of labels, every two of which may attract or repel each other: trained by GDMM, without decoding.

python examples/multilabel.py --data bibtex

Prints a certificate, and how good the sets are that joint decoding finds for the test examples, beside those of the
same model without interactions, trained by BCFW. lam is chosen for each by the accuracy on a tenth of the training
examples that is held out, unless --lam gives it. Compiles before the clock starts.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from common import positive
from factorwise import Run, factorwise_flags, finish, penalty_of, train
from torch import Tensor, nn

from torchssvm import (
    GDMM,
    BlockGap,
    Certificate,
    DualState,
    Evaluation,
    RunOptions,
    RunReport,
    SparseLinearMultilabel,
    evaluate,
    in_order,
    solve,
)
from torchssvm.core.batch import apply_head
from torchssvm.core.figures import new_figure
from torchssvm.datasets import Multilabel, MultilabelScores, SparseRows, multilabel_scores
from torchssvm.datasets.multilabel.drawing import draw_interactions, strongest_pairs

LAMS = (0.03, 0.01, 0.003, 0.001)
RHO = 0.1  # penalty, in mean costs of a wrong label
HELD_OUT = 0.1  # of the training examples, drawn at random
SEARCH_PASSES = 40  # of either solver, for each lam
THRESHOLDS = {"bibtex": (0.983, 0.984)}  # of the test accuracy that the logs of [Y16] are compared by
NAMES = {"interactions": "with interactions (GDMM)", "alone": "every label alone (BCFW)"}
SHOWN = 3  # pairs of labels of either sign


class Trained(NamedTuple):
    """A model, what was proved of it, and what that took; ``run`` is that of GDMM."""

    head: nn.Module
    certificate: Certificate
    cpu_seconds: float
    run: Run | None = None


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags' values."""
    flags = factorwise_flags(__doc__, report="runs/multilabel")
    flags.add_argument(
        "--data", choices=("bibtex", "scene", "medical"), default="bibtex", help="(default: %(default)s)"
    )
    flags.add_argument("--root", metavar="PATH", help="folder that multilabel/ lies in (default: TORCHSSVM_DATA)")
    flags.add_argument("--lam", type=positive, help="regularisation of both models (default: chosen for each)")
    flags.add_argument(
        "--lams", type=positive, nargs="+", default=LAMS, help="to choose from (default: 0.03 0.01 0.003 0.001)"
    )
    flags.add_argument(
        "--rho", type=positive, default=RHO, help="penalty, in mean costs of a wrong label (default: %(default)s)"
    )
    return flags.parse_args(arguments)


def part(whole: Multilabel, which: Tensor) -> Multilabel:
    """The examples ``which``, numbered anew."""

    def rows(of: SparseRows) -> SparseRows:
        columns, values = of.lists(which)
        there = columns >= 0
        return SparseRows.of(there.sum(1).numpy(), columns[there].numpy(), values[there].numpy(), of.num_columns)

    made = copy.copy(whole)
    made.features, made.labels = rows(whole.features), rows(whole.labels)
    return made


def with_interactions(
    data: Multilabel, lam: float, args: argparse.Namespace, look: Callable[[nn.Module, float], None] | None = None
) -> Trained:
    """Train by GDMM; ``look`` is called after every pass with the head and the CPU seconds so far."""
    head = SparseLinearMultilabel(data.num_features, data.num_labels)
    penalty = penalty_of(args.rho, float(head.structure.costs.mean()))
    optim = GDMM(head, in_order(data), num_examples=len(data), lam=lam, penalty=penalty, seed=args.seed)
    run = train(optim, args, None if look is None else lambda seconds: look(head, seconds))
    return Trained(head, run.certificate, run.cpu_seconds, run)


def alone(data: Multilabel, lam: float, args: argparse.Namespace) -> Trained:
    """Train the model without interactions by BCFW."""
    head = SparseLinearMultilabel(data.num_features, data.num_labels, pairwise=False)
    loss = BlockGap(DualState.for_head(head, num_examples=len(data), lam=lam))
    limits = {"tolerance": args.gap, "max_passes": float(args.max_passes)}
    start = time.process_time()
    certificate = solve(head, loss, data, **limits, options=RunOptions(batch_size=64, seed=args.seed))
    return Trained(head, certificate, time.process_time() - start)


@torch.no_grad()
def scores_of(head: nn.Module, data: Multilabel) -> MultilabelScores:
    """The sets of labels that joint decoding finds, against the true ones."""
    found = [head.structure.argmax(apply_head(head, batch)).labeling for batch in in_order(data)]
    return multilabel_scores(data.labels.dense(), torch.cat(found))


def choose_lam(
    make: Callable[[Multilabel, float, argparse.Namespace], Trained],
    name: str,
    data: Multilabel,
    args: argparse.Namespace,
) -> tuple[float, dict[str, float]]:
    """The lam with the best accuracy on examples held out, and the accuracy of each."""
    if args.lam is not None:
        return args.lam, {}
    if len(args.lams) == 1:
        return args.lams[0], {}
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(args.seed))  # files may be sorted
    first = max(round(HELD_OUT * len(data)), 1)
    fitted, held_out = part(data, order[first:]), part(data, order[:first])
    short = argparse.Namespace(**{**vars(args), "max_passes": min(args.max_passes, SEARCH_PASSES)})
    found = {}
    for lam in args.lams:
        trained = make(fitted, lam, short)
        scores = scores_of(trained.head, held_out)
        found[lam] = scores.accuracy
        print(f"{NAMES[name]}, lam {lam:g}: {scores} on {len(held_out)} held-out examples, {trained.certificate}")
    return max(found, key=found.__getitem__), {f"{lam:g}": accuracy for lam, accuracy in found.items()}


def reached(points: Sequence[tuple[float, float]], threshold: float) -> dict[str, float | None]:
    """CPU seconds at which the accuracy was there first, and those from which it stayed there."""
    first = next((at for at, accuracy in points if accuracy >= threshold), None)
    below = [place for place, (_, accuracy) in enumerate(points) if accuracy < threshold]
    after = points[below[-1] + 1 :] if below else points
    return {"first": first, "for_good": after[0][0] if after else None}


def figures_of(scores: MultilabelScores) -> dict[str, float]:
    """What is compared."""
    names = ("accuracy", "exact_match", "micro_f1", "macro_f1")
    return {name: getattr(scores, name) for name in names}


def compare(scores: dict[str, MultilabelScores], trained: dict[str, Trained]) -> str:
    """All models in one table; no labels at all stands for what is gained by knowing nothing."""
    lines = [f"{'':26}  accuracy  exact match  micro F1  macro F1     lam  CPU seconds"]
    for name, its in scores.items():
        a, e, micro, macro = figures_of(its).values()
        line = f"{NAMES.get(name, name):26}  {a:8.4f}  {e:11.4f}  {micro:8.4f}  {macro:8.4f}"
        if name in trained:
            line += f"  {trained[name].certificate.lam:6g}  {trained[name].cpu_seconds:11.1f}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    data = Multilabel(args.data, "train", unit_rows=True, root=args.root)
    test = Multilabel(args.data, "test", unit_rows=True, root=args.root)
    with_interactions(
        part(data, torch.arange(10)), 0.1, argparse.Namespace(**{**vars(args), "max_passes": 2})
    )  # compiles

    makers = {"interactions": with_interactions, "alone": alone}
    lams, held_out = {}, {}
    for name, make in makers.items():
        lams[name], held_out[name] = choose_lam(make, name, data, args)
    points: list[tuple[float, float]] = []  # for the report: nothing is chosen by them

    def look(head: nn.Module, seconds: float) -> None:
        points.append((seconds, scores_of(head, test).accuracy))

    trained = {
        "interactions": with_interactions(data, lams["interactions"], args, look),
        "alone": alone(data, lams["alone"], args),
    }
    scores = {name: scores_of(its.head, test) for name, its in trained.items()}
    truth = test.labels.dense()
    scores["no labels at all"] = multilabel_scores(truth, torch.zeros_like(truth))
    head, run = trained["interactions"].head, trained["interactions"].run
    times = {f"{at:g}": reached(points, at) for at in THRESHOLDS.get(args.data, ())}
    report = RunReport.from_history(
        f"{args.data}, sets of labels",
        run.history,
        num_weights=sum(p.numel() for p in head.parameters()),
        stopped_because=run.stopped_because,
        train=without_tokens(evaluate(head, head.structure, in_order(data))),
        test=without_tokens(evaluate(head, head.structure, in_order(test))),
        seed=args.seed,
        extra={
            "data": args.data,
            "rho": args.rho,
            **run.figures(),
            "held_out_accuracy": held_out,
            "test_accuracies": [accuracy for _, accuracy in points],
            "cpu_seconds_to_test_accuracy": times,
            **{f"test_{n}_{figure}": v for n, s in scores.items() for figure, v in figures_of(s).items()},
            "alone_lam": lams["alone"],
            "alone_gap": trained["alone"].certificate.gap,
            "alone_cpu_seconds": trained["alone"].cpu_seconds,
        },
    )
    print_results(report, compare(scores, trained), times, run, head, data)
    finish(args, report, run)
    figure = new_figure((14, 7))
    draw_interactions(figure, head.interactions(), short_names(data))
    figure.savefig(args.report / "interactions.png", dpi=100)


def without_tokens(found: Evaluation) -> Evaluation:
    """A set of labels has no tokens: the share of wrong labels is its loss already."""
    return replace(found, token_error=None, example_error=None)


def short_names(data: Multilabel) -> list[str]:
    """Labels without what bibtex puts in front of all of them."""
    return [name.removeprefix("TAG_") for name in data.label_names]


def print_results(
    report: RunReport, table: str, times: dict[str, dict[str, Any]], run: Run, head: nn.Module, data: Multilabel
) -> None:
    """What a reader wants to know first comes last."""
    listed = ("pass_cpu_seconds", "violations", "visited_per_query", "test_accuracies")
    shown = {name: value for name, value in report.extra.items() if name not in listed}
    print(f"\n{replace(report, extra=shown)}\n\n{run.certificate}\n\n{table}")
    for threshold, at in times.items():
        first, for_good = (("never" if s is None else f"{s:.1f} CPU s") for s in (at["first"], at["for_good"]))
        print(f"test accuracy {threshold}: first {first}, for good {for_good}")
    names = short_names(data)
    for text, pairs in zip(("attract", "repel"), strongest_pairs(head.interactions(), SHOWN), strict=True):
        print(f"{text}: " + ", ".join(f"{names[a]} + {names[b]} {value:+.3f}" for a, b, value in pairs))


if __name__ == "__main__":
    main()
