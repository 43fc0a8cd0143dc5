"""Dependency parsing in a plain torch loop: first-order arcs, trained to a certified duality gap.

Any treebank in CoNLL-U does, e.g. of Universal Dependencies (https://universaldependencies.org):

python examples/dependency.py --train en_ewt-ud-train.conllu --test en_ewt-ud-test.conllu
"""

import argparse
import math
import sys
import time

import torch
from common import ORDERS, add_rules, count, device, folder, positive, rules, seed, show_progress
from torch.utils.data import DataLoader

from torchssvm import (
    BCFW,
    Arborescence,
    BlockGap,
    DualState,
    Evaluation,
    GapBatchSampler,
    LinearArcs,
    NonProjective,
    Projective,
    RunReport,
    certify,
)
from torchssvm.core.batch import to_device
from torchssvm.datasets import Attachment, CoNLLU, attachment
from torchssvm.datasets.text.arc_drawing import draw_arcs
from torchssvm.solvers.report import Entry

EPOCHS = 2  # between exact passes
DRAWN = 4


def parse() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--train", required=True, metavar="FILE", help="CoNLL-U")
    flags.add_argument("--test", required=True, metavar="FILE", help="CoNLL-U")
    flags.add_argument("--nonprojective", action="store_true", help="let arcs cross (Chu-Liu-Edmonds, not Eisner)")
    flags.add_argument("--features", type=count, default=2**16, help="columns of the hashed features (%(default)s)")
    flags.add_argument("--lam", type=positive, help="regularisation (default: 35/n)")
    flags.add_argument("--gap", type=positive, default=0.01, help="stop at this certified gap (default: %(default)s)")
    flags.add_argument("--max-passes", type=positive, default=200.0, help="or after so many passes (%(default)g)")
    flags.add_argument("--batch-size", type=count, default=16, help="sentences of a step (default: %(default)s)")
    flags.add_argument("--seed", type=seed, default=0, help="runs with the same seed are the same (default: 0)")
    flags.add_argument("--device", type=device, default="cpu", help="cpu (default), cuda, cuda:1, ...")
    flags.add_argument("--report", type=folder, default="runs/dependency", metavar="PATH", help="(%(default)s)")
    return add_rules(flags).parse_args()


@torch.no_grad()
def parse_all(head: LinearArcs, treebank: CoNLLU, at: str) -> tuple[list[list[int]], Attachment, Evaluation]:
    """The heads of all sentences, and how good they are; the true heads may cross whatever the structure says."""
    found: list[list[int]] = []
    for batch in in_order(treebank):
        batch = to_device(batch, at)
        found += head.structure.argmax(head(batch.x, batch.lengths)).labeling.tolist()
    score = attachment(found, treebank.sentences)
    wrong = [
        sum(mine != true for mine, true in zip(heads, sentence.heads, strict=False)) / len(sentence.heads)
        for heads, sentence in zip(found, treebank.sentences, strict=True)
    ]
    mean = math.fsum(wrong) / len(wrong)
    return found, score, Evaluation(mean, 1.0 - score.uas, mean, len(wrong))


def in_order(treebank: CoNLLU) -> DataLoader:
    return DataLoader(treebank, batch_size=32, collate_fn=treebank.collate)


def main() -> None:
    args = parse()
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    torch.manual_seed(args.seed)
    options = {"num_features": args.features, "keep_features": True}
    try:
        train = CoNLLU(args.train, skip_nonprojective=not args.nonprojective, **options)
        test = CoNLLU(args.test, **options)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(f"train: {train}\ntest:  {test}")
    # An arc has about 35 features, each worth 1: this is what 1/n is where features have length 1.
    args.lam = 35.0 / len(train) if args.lam is None else args.lam

    among = NonProjective(single_root=True) if args.nonprojective else Projective(single_root=True)
    head = LinearArcs(args.features, structure=Arborescence(among)).to(args.device)
    direction, oracle, storage = rules(args)
    dual = DualState.for_head(head, num_examples=len(train), lam=args.lam, storage=storage)
    loss = BlockGap(dual, direction, oracle=oracle)
    optimizer = BCFW(head.parameters(), dual)
    sampler = GapBatchSampler(dual, batch_size=args.batch_size, order=ORDERS[args.order](), seed=args.seed)
    loader = DataLoader(train, batch_sampler=sampler, collate_fn=train.collate)

    history: list[Entry] = []
    stopped_because = ""
    start = time.perf_counter()
    try:
        while not stopped_because:
            for _ in range(EPOCHS):
                for batch in loader:
                    batch = to_device(batch, args.device)
                    optimizer.zero_grad()
                    loss(head(batch.x, batch.lengths), batch.y, batch.index).backward()
                    optimizer.step()
                if dual.passes >= args.max_passes:
                    break
            certificate = certify(head, dual, in_order(train))
            history.append(Entry(certificate, time.perf_counter() - start))
            show_progress(dual, certificate.gap, args)
            if certificate.gap <= args.gap:
                stopped_because = f"certified gap {certificate.gap:.6g} <= {args.gap:g}"
            elif dual.passes >= args.max_passes:
                stopped_because = (
                    f"{args.max_passes:g} passes reached, certified gap {certificate.gap:.6g} > {args.gap:g}"
                )
    except KeyboardInterrupt:
        stopped_because = "interrupted: KeyboardInterrupt"
        certificate = certify(head, dual, in_order(train))
        history.append(Entry(certificate, time.perf_counter() - start))

    _, on_train, train_loss = parse_all(head, train, args.device)
    found, on_test, test_loss = parse_all(head, test, args.device)
    report = RunReport.from_history(
        f"dependency parsing, {train.path.name}, {among}",
        history,
        num_weights=args.features,
        stopped_because=stopped_because,
        train=train_loss,
        test=test_loss,
        seed=args.seed,
        device=args.device,
        extra={
            "train_uas": on_train.uas,
            "train_uas_without_punctuation": on_train.uas_without_punctuation,
            "test_uas": on_test.uas,
            "test_uas_without_punctuation": on_test.uas_without_punctuation,
            "train_nonprojective_left_out": train.num_skipped,
            "batch_size": args.batch_size,
            "direction": args.direction,
            "cache": args.cache,
            "order": args.order,
        },
    )
    print(f"\n{certificate}\n{report}\nwritten to {args.report}")
    shown = sorted(range(len(test)), key=lambda i: abs(len(found[i]) - 9))[:DRAWN]
    sentences = [test.sentences[i] for i in shown]
    report.write(args.report, lambda figure: draw_arcs(figure, sentences, [found[i] for i in shown]))


if __name__ == "__main__":
    main()
