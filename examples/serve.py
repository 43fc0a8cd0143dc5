"""Train a tagger of text chunks, save it to one file, load it again, and tag sentences with it.

python examples/serve.py --path runs/chunks.safetensors

The file is all that serving needs: torchssvm, no training data, neither Lightning nor scikit-learn. The first run reads
conll2000/{train,test}.txt.gz from the folder TORCHSSVM_DATA or downloads them. --sentences N trains on the first N.
"""

import argparse
import time
from collections import Counter
from pathlib import Path

import torch

from torchssvm import Relative, SparseLinearChain, solve
from torchssvm.datasets import CoNLL2000
from torchssvm.datasets.text.sparse_chains import SparseChains
from torchssvm.deployment import Decoder, batch_of_names, load_model, save_model
from torchssvm.structures import Chain


def names(words: list[str], t: int) -> list[str]:
    """The features of word t: itself and its neighbours, its ends, and how it is written."""
    word = words[t]
    near = {f"word[{i}]": words[t + i].lower() for i in (-2, -1, 0, 1, 2) if 0 <= t + i < len(words)}
    features = [f"{place}={value}" for place, value in near.items()]
    features += [f"pair={near['word[0]']} {near[place]}" for place in ("word[-1]", "word[1]") if place in near]
    features += [f"begins={word[:3].lower()}"] + [f"ends={word[-n:].lower()}" for n in (1, 2, 3)]
    features += [
        f"case={word[:1].isupper()}{word.isupper()}{any(c.isdigit() for c in word)}",
        "first" if t == 0 else "in",
    ]
    for i, place in ((-1, "before"), (1, "after")):
        if 0 <= t + i < len(words):
            features += [f"{place} ends={words[t + i][-2:].lower()}"]
    return features


class Tagger:
    """Tags sentences by a model of :func:`torchssvm.deployment.load_model`."""

    def __init__(self, model: Decoder) -> None:
        if model.labels is None or model.vocabulary is None:
            raise ValueError("the file has no labels or no vocabulary: give both to save_model")
        self.model, self.labels, self.vocabulary = model, model.labels, model.vocabulary

    def tag(self, sentences: list[list[str]], batch_size: int = 64) -> list[list[str]]:
        """The tags of every word; sentences of similar length are decoded together."""
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        tags: list[list[str]] = [[] for _ in sentences]
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            features = [[names(sentences[i], t) for t in range(len(sentences[i]))] for i in rows]
            x, lengths = batch_of_names(features, self.vocabulary)
            for i, states in zip(rows, self.model(x, lengths).tolist(), strict=True):
                tags[i] = [self.labels[state] for state in states if state >= 0]
        return tags


def train(sentences: list[list[str]], tags: list[list[str]], labels: list[str], lam: float, path: Path) -> None:
    """Train a chain on features that occur three times or more, to a gap of 5 % of the primal, and save it."""
    features = [[names(words, t) for t in range(len(words))] for words in sentences]
    counts = Counter(name for sentence in features for token in sentence for name in token)
    vocabulary = {name: column for column, name in enumerate(n for n, count in counts.items() if count >= 3)}
    tokens = [[vocabulary[n] for n in token if n in vocabulary] for sentence in features for token in sentence]
    number = {label: state for state, label in enumerate(labels)}
    data = SparseChains(
        offsets=torch.tensor([0, *map(len, sentences)]).cumsum(0),
        rows=torch.tensor([0, *map(len, tokens)]).cumsum(0),
        columns=torch.tensor([column for token in tokens for column in token], dtype=torch.int32),
        states=torch.tensor([number[tag] for sentence in tags for tag in sentence]),
        in_features=len(vocabulary),
        num_states=len(labels),
    )
    head = SparseLinearChain(len(vocabulary), len(labels), structure=Chain(len(labels), normalize=False))
    print(solve(head, data, lam=lam, tolerance=Relative(0.05)))
    save_model(path, head, labels=labels, vocabulary=vocabulary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, default=Path("runs/chunks.safetensors"))
    parser.add_argument("--sentences", type=int, default=None, help="train on the first so many")
    parser.add_argument("--lam", type=float, default=0.001)
    args = parser.parse_args()
    torch.set_num_threads(1)

    corpus = CoNLL2000("train")
    count = len(corpus) if args.sentences is None else args.sentences
    sentences = [list(corpus.words(i)) for i in range(count)]
    train(sentences, [list(corpus.tags(i)) for i in range(count)], list(corpus.chunk_tags), args.lam, args.path)
    print(f"{args.path}: {args.path.stat().st_size / 1e6:.1f} MB")

    tagger = Tagger(load_model(args.path))
    test = CoNLL2000("test", vocabulary=corpus.vocabulary)
    unseen, true = [list(test.words(i)) for i in range(len(test))], [list(test.tags(i)) for i in range(len(test))]
    tagger.tag(unseen[:64])
    seconds = time.process_time()
    predicted = tagger.tag(unseen)
    seconds = time.process_time() - seconds
    words = sum(map(len, unseen))
    right = sum(a == b for x, y in zip(predicted, true, strict=True) for a, b in zip(x, y, strict=True))
    print(f"{words:,} words in {seconds:.2f} CPU seconds on one thread, features included:")
    print(f"{words / seconds:,.0f} words a second; {100 * right / words:.1f} % of the tags are right")
    print(*(f"{word}/{tag}" for word, tag in zip(unseen[0], predicted[0], strict=True)))


if __name__ == "__main__":
    main()
