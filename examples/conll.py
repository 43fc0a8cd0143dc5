"""Text chunking (CoNLL-2000) under a Lightning Trainer: a chain with 1.7 million weights, to a certified duality gap.

python examples/conll.py --lam 0.01 --gap 0.01
python examples/conll.py --min-count 1 --hold-out 0.1 0.03 0.01 --crfsuite

The first run reads conll2000/{train,test}.txt.gz from the folder TORCHSSVM_DATA or downloads them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from chunking_crfsuite import Crf, train_crf
from common import ORDERS, add_rules, count, positive, rules, run_flags, trainer_flags
from torch.utils.data import DataLoader

from torchssvm import RunReport, certify, evaluate
from torchssvm.core.batch import to_device
from torchssvm.datasets import ChunkingDataset, ChunkScores, CoNLL2000Data, chunk_scores
from torchssvm.datasets.text.chunking_drawing import Tagged, draw_chunks
from torchssvm.lightning import DualityGap, StructuredSVM
from torchssvm.models import chunking_chain
from torchssvm.solvers.report import Entry

HELD_OUT = 0.1  # of the training sentences, their end
SHOWN = (("wrong", 3), ("right", 1))  # sentences of the picture
SHORT, LONG = 12, 24  # words of a sentence that is shown


def flags() -> argparse.ArgumentParser:
    """The flags of a run."""
    flags = add_rules(run_flags(__doc__, report="runs/conll"))
    flags.add_argument("--batch-size", type=count, default=64, help="sentences of a step (default: %(default)s)")
    flags.add_argument("--min-count", type=count, default=3, help="of an attribute in training (default: %(default)s)")
    flags.add_argument(
        "--hold-out",
        type=positive,
        nargs="+",
        metavar="LAM",
        help="choose lam among these by chunk F1 on the last tenth of the training sentences, then train on all",
    )
    flags.add_argument("--crfsuite", action="store_true", help="train CRFsuite on the same attributes, to compare")
    flags.set_defaults(gap=0.01, max_passes=500.0)
    return flags


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags' values; what cannot be done is refused before the work begins."""
    its = flags()
    args = its.parse_args(arguments)
    if args.lam is not None and args.hold_out is not None:
        its.error("--lam and --hold-out exclude each other: the latter chooses lam")
    if args.crfsuite and importlib.util.find_spec("pycrfsuite") is None:
        its.error("--crfsuite needs python-crfsuite: pip install 'torchssvm[bench]'")
    return args


def data_of(args: argparse.Namespace, hold_out: float = 0.0) -> CoNLL2000Data:
    """The sentences, read."""
    data = CoNLL2000Data(args.batch_size, args.min_count, hold_out, order=ORDERS[args.order](), seed=args.seed)
    data.prepare_data()
    data.setup("validate" if hold_out else None)
    return data


def prepare(args: argparse.Namespace, data: CoNLL2000Data, lam: float) -> tuple[L.Trainer, StructuredSVM, DualityGap]:
    """What trains to the certified gap."""
    direction, oracle, storage = rules(args)
    model = StructuredSVM(
        chunking_chain(data.train.in_features), lam=lam, direction=direction, oracle=oracle, storage=storage
    )
    gap = DualityGap(tolerance=args.gap, every_n_epochs=5, max_passes=args.max_passes)
    trainer = L.Trainer(max_epochs=math.ceil(args.max_passes), callbacks=[gap], **trainer_flags(args))
    return trainer, model, gap


def in_order(dataset: ChunkingDataset) -> DataLoader:
    """Every sentence once."""
    return DataLoader(dataset, batch_size=256, collate_fn=dataset.collate)


@torch.no_grad()
def predict(model: StructuredSVM, dataset: ChunkingDataset) -> list[list[str]]:
    """The tags of all sentences."""
    at = next(model.parameters()).device
    batches = (to_device(batch, at) for batch in in_order(dataset))
    return [tags for b in batches for tags in dataset.tags_of(model.decode(b.x, b.lengths), b.lengths)]


def scores_of(dataset: ChunkingDataset, predicted: Sequence[Sequence[str]]) -> ChunkScores:
    """Chunk scores by the tags of the file."""
    return chunk_scores([dataset.tags(i) for i in range(len(dataset))], predicted)


def choose_lam(args: argparse.Namespace) -> tuple[float, dict[str, float]]:
    """The lam with the best chunk F1 on sentences held out, and the F1 of each."""
    data = data_of(args, hold_out=HELD_OUT)
    found = {}
    for lam in args.hold_out:
        trainer, model, gap = prepare(args, data, lam)
        trainer.fit(model, data)
        found[lam] = scores_of(data.held_out, predict(model, data.held_out)).overall.f1
        print(f"lam {lam:g}: F1 {100 * found[lam]:.2f} on {len(data.held_out)} held-out sentences, {gap.certificate}")
    return max(found, key=found.__getitem__), {f"{lam:g}": round(f1, 6) for lam, f1 in found.items()}


def peak_memory() -> float | None:
    """MiB that this process has taken at most; None where the system does not say."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def compare(ours: ChunkScores, seconds: float, theirs: ChunkScores, crf: Crf) -> str:
    """Both in one table."""
    rows = (("structured SVM", ours, seconds), (f"CRFsuite, {crf.iterations} iterations", theirs, crf.seconds))
    lines = [f"{'':26}  test F1  precision  recall  token error  training seconds"]
    for name, scores, its in rows:
        all_ = scores.overall
        shares = f"{100 * all_.f1:7.2f}  {100 * all_.precision:8.2f}%  {100 * all_.recall:5.2f}%"
        lines.append(f"{name:26}  {shares}  {100 * scores.token_error:10.2f}%  {its:16.1f}")
    return "\n".join(lines)


def shown(dataset: ChunkingDataset, predicted: Sequence[Sequence[str]]) -> list[Tagged]:
    """A few sentences of moderate length: the first with a wrong tag and the first without."""
    sentences = [Tagged(dataset.words(i), dataset.tags(i), tags) for i, tags in enumerate(predicted)]
    fitting = [sentence for sentence in sentences if SHORT <= len(sentence.words) <= LONG]
    kinds = {
        "wrong": [s for s in fitting if s.true != s.predicted],
        "right": [s for s in fitting if s.true == s.predicted],
    }
    return [sentence for kind, number in SHOWN for sentence in kinds[kind][:number]]


def main() -> None:
    args = parse()
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    L.seed_everything(args.seed)
    lam, held_out = choose_lam(args) if args.hold_out else (args.lam, None)

    reading = time.perf_counter()
    data = data_of(args)
    reading = time.perf_counter() - reading
    lam = 1.0 / len(data.train) if lam is None else lam
    trainer, model, gap = prepare(args, data, lam)
    start = time.perf_counter()
    with contextlib.suppress(SystemExit):  # what Lightning makes of Ctrl-C
        trainer.fit(model, data)
    finish(args, data, model, gap, start, {"held_out_f1": held_out, "reading_seconds": reading})


def finish(
    args: argparse.Namespace,
    data: CoNLL2000Data,
    model: StructuredSVM,
    gap: DualityGap,
    start: float,
    extra: dict[str, Any],
) -> None:
    """Print tables; write report.json and the picture."""
    dual, head = model.dual, model.head
    at = next(head.parameters()).device
    if not gap.history or gap.history[-1].certificate.oracle_calls != dual.oracle_calls:  # interrupted
        certificate = certify(head, dual, in_order(data.train))
        gap.history.append(Entry(certificate, time.perf_counter() - start))
    seconds, memory = gap.history[-1].seconds, peak_memory()
    predicted = predict(model, data.test)
    train, test = scores_of(data.train, predict(model, data.train)), scores_of(data.test, predicted)
    extra = {
        **{name: getattr(args, name) for name in ("batch_size", "direction", "cache", "order", "min_count")},
        **{name: value for name, value in extra.items() if value is not None},
        "attributes": data.train.in_features,
        "peak_mib": memory,
        "cache_hits": dual.cache_hits,
        "train_token_error": train.token_error,
        "test_token_error": test.token_error,  # by the tags of the file; the test loss takes I-LST for O
        "train_chunk_f1": train.overall.f1,
        "test_chunk_f1": test.overall.f1,
        "test_chunk_precision": test.overall.precision,
        "test_chunk_recall": test.overall.recall,
    }
    comparison = ""
    if args.crfsuite:
        crf = train_crf(data.train, data.test)
        theirs = scores_of(data.test, crf.tags)
        comparison = f"\n\n{compare(test, seconds, theirs, crf)}"
        extra |= {
            "crfsuite_test_chunk_f1": theirs.overall.f1,
            "crfsuite_test_token_error": theirs.token_error,
            "crfsuite_iterations": crf.iterations,
            "crfsuite_seconds": crf.seconds,
        }
    report = RunReport.from_history(
        "CoNLL-2000, sparse chain",
        gap.history,
        num_weights=sum(p.numel() for p in head.parameters()),
        stopped_because=gap.stopped_because,
        train=evaluate(head, dual.structure, in_order(data.train), at),
        test=evaluate(head, dual.structure, in_order(data.test), at),
        seed=args.seed,
        device=args.device,
        extra=extra,
    )
    print(f"\n{report}\n\nchunks of the test sentences\n{test}{comparison}\nwritten to {args.report}")
    sentences = shown(data.test, predicted)
    report.write(args.report, draw_examples=lambda figure: draw_chunks(figure, sentences))


if __name__ == "__main__":
    main()
