"""Word alignment of French and English sentences: a bipartite matching, trained to a certified duality gap.

Trains on 100 sentence pairs and tests on 347, as Taskar et al. (2006); prints the alignment error rate beside that of
two rules on the Dice coefficient, whose thresholds are chosen on the training sentences.

python examples/alignment.py --lam 1 --gap 0.001
"""

import argparse
import time

import torch
from common import DIRECTIONS, ORDERS, count, device, folder, positive, rules, seed, show_progress

from torchssvm import BlockGap, DualState, RunOptions, RunReport, WhenEstimated, certify, evaluate, in_order, solve
from torchssvm.datasets import WordAlignment, alignment_errors
from torchssvm.datasets.text.alignment_drawing import draw_alignments
from torchssvm.models import align, alignment_matching, best_threshold, matching_links, threshold_links
from torchssvm.solvers.report import Entry

LAM = 1.0  # the best alignment error rate on the 37 trial sentences, of 0.1, 0.3, 1, 3 and 10
MOST_WORDS = 14  # of a sentence that is drawn


def flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lam", type=positive, default=LAM, help="regularisation (default: %(default)g)")
    parser.add_argument("--gap", type=positive, default=1e-3, help="stop at this certified gap (default: %(default)s)")
    parser.add_argument("--max-passes", type=positive, default=1000.0, help="or after so many passes (%(default)g)")
    parser.add_argument("--batch-size", type=count, default=4, help="sentences of a step (default: %(default)s)")
    parser.add_argument(
        "--direction", choices=DIRECTIONS, default="corrective", help="of a step (default: %(default)s)"
    )
    parser.add_argument("--no-cache", dest="cache", action="store_false", help="decode at every visit")
    parser.add_argument("--order", choices=ORDERS, default="gap", help="of the sentences (default: by their gaps)")
    parser.add_argument("--seed", type=seed, default=0, help="runs with the same seed are the same (default: 0)")
    parser.add_argument("--device", type=device, default="cpu", help="cpu (default), cuda, cuda:1, ...")
    parser.add_argument("--data", metavar="PATH", help="folder that hansards/ lies in (default: TORCHSSVM_DATA)")
    parser.add_argument(
        "--report", type=folder, default="runs/alignment", metavar="PATH", help="(default: %(default)s)"
    )
    return parser


def compare(head: torch.nn.Module, train: WordAlignment, test: WordAlignment) -> dict[str, dict[str, float]]:
    """Alignment error rate, precision and recall on the test sentences: the model's, and those of two rules."""
    found = {"learned matching": alignment_errors(align(head, test), test.pairs)._asdict()}
    for name, rule in (("Dice matching", matching_links), ("Dice threshold", threshold_links)):
        own = train.feature("dice")
        chosen = best_threshold(rule, own, lambda links: alignment_errors(links, train.pairs).error_rate)
        found[name] = alignment_errors(rule(test.feature("dice"), chosen), test.pairs)._asdict() | {"threshold": chosen}
    return found


def main() -> None:
    args = flags().parse_args()
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    torch.manual_seed(args.seed)

    train = WordAlignment("train", args.data)
    dev, test = (WordAlignment(split, args.data, train.features) for split in ("dev", "test"))
    head = alignment_matching(train.in_features).to(args.device)
    direction, oracle, storage = rules(args)
    dual = DualState.for_head(head, num_examples=len(train), lam=args.lam, storage=storage)

    history: list[Entry] = []
    start = time.perf_counter()

    def on_check(certificate):
        history.append(Entry(certificate, time.perf_counter() - start))
        show_progress(dual, certificate.gap, args)

    try:
        last = solve(
            head,
            BlockGap(dual, direction, oracle=oracle),
            train,
            tolerance=args.gap,
            max_passes=args.max_passes,
            on_check=on_check,
            options=RunOptions(
                batch_size=args.batch_size,
                order=ORDERS[args.order](),
                schedule=WhenEstimated(passes=3.0),
                seed=args.seed,
            ),
        )
        reached = last.gap <= args.gap
        stopped_because = f"certified gap {last.gap:.6g} {'<=' if reached else '>'} {args.gap:g}"
        stopped_because += "" if reached else f" after {args.max_passes:g} passes"
    except KeyboardInterrupt:
        on_check(certify(head, dual, in_order(train)))
        stopped_because = "interrupted: KeyboardInterrupt"

    errors = compare(head, train, test)
    learned, *others = (figures["error_rate"] for figures in errors.values())
    reduction = 1.0 - learned / min(others) if min(others) else None  # against the better of the two rules
    report = RunReport.from_history(
        "word alignment, matching",
        history,
        num_weights=sum(p.numel() for p in head.parameters()),
        stopped_because=stopped_because,
        train=evaluate(head, dual.structure, in_order(train, batch_size=64), args.device),
        test=evaluate(head, dual.structure, in_order(test, batch_size=64), args.device),
        seed=args.seed,
        device=args.device,
        extra={
            "batch_size": args.batch_size,
            "direction": args.direction,
            "cache": args.cache,
            "order": args.order,
            "cache_hits": dual.cache_hits,
            **{
                f"{name}_{figure}".replace(" ", "_"): value for name, f in errors.items() for figure, value in f.items()
            },
            "relative_reduction": reduction,
            "dev_error_rate": alignment_errors(align(head, dev), dev.pairs).error_rate,  # what --lam was chosen by
        },
    )
    print(f"\n{report}\n\n{len(test)} test sentences   AER     precision  recall")
    for name, figures in errors.items():
        print(f"{name:20} {figures['error_rate']:8.4f} {figures['precision']:8.4f} {figures['recall']:8.4f}")
    print(f"written to {args.report}")

    short = [i for i, pair in enumerate(test.pairs) if 6 <= len(pair.french) <= MOST_WORDS >= len(pair.english)]
    shown = short[:: max(1, len(short) // 3)][:3]
    links = align(head, test)
    pairs = [test.pairs[i] for i in shown]
    report.write(args.report, draw_examples=lambda figure: draw_alignments(figure, pairs, [links[i] for i in shown]))


if __name__ == "__main__":
    main()
