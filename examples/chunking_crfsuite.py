"""CRFsuite on the same attributes: a chain trained by L-BFGS on the log-likelihood, to compare with."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from torchssvm.datasets import ChunkingDataset

ITERATIONS = 80


class Crf(NamedTuple):
    """What came of it: tags of the sentences tested; wall and CPU seconds of training, without taking over the data."""

    tags: list[list[str]]
    seconds: float
    cpu_seconds: float
    iterations: int


def train_crf(train: ChunkingDataset, test: ChunkingDataset, max_iterations: int = ITERATIONS, c2: float = 1.0) -> Crf:
    """Train and tag.

    Args:
        train: Its attributes that the vocabulary has, and the tags.
        test: What to tag.
        max_iterations: Of L-BFGS; it may converge before.
        c2: CRFsuite minimises ``c2 |w|^2`` minus the log-likelihood of all sentences; 1 is its default.

    Raises:
        ImportError: python-crfsuite is missing.
    """
    try:
        import pycrfsuite
    except ModuleNotFoundError as error:
        raise ImportError("CRFsuite needs python-crfsuite: pip install 'torchssvm[bench]'") from error
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params({"c1": 0.0, "c2": c2, "max_iterations": max_iterations})
    for i in range(len(train)):
        trainer.append(train.features(i), train.tags(i))
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model")
        wall, cpu = time.perf_counter(), time.process_time()
        trainer.train(file)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        tagger = pycrfsuite.Tagger()
        tagger.open(file)
        tags = [tagger.tag(test.features(i)) for i in range(len(test))]
        tagger.close()
    return Crf(tags, wall, cpu, len(trainer.logparser.iterations))
