"""Named entities: a chain on features of spelling, with BIO constraints, trained to a certified duality gap.

python examples/entities.py                                              # the Danish of Universal NER
python examples/entities.py --train a.txt --test b.txt --word 0 --tag -1 # any file of columns, such as CoNLL-2003's

The first reads uner_danish_ddt/{train,test}.iob2.gz from the folder TORCHSSVM_DATA. The choice of lam on development
sentences, and CRFsuite on the same attributes: python benchmarks/run.py entities
"""

import sys
import time
from pathlib import Path

import torch
from jsonargparse import auto_cli
from jsonargparse.typing import PositiveFloat, PositiveInt

from torchssvm import Solver, in_order, solve
from torchssvm.datasets import Columns, NamedEntities, chunk_scores
from torchssvm.datasets.files import find
from torchssvm.datasets.text.chunking_drawing import Tagged, draw_chunks
from torchssvm.models import entity_chain
from torchssvm.solvers import Certificate, RunReport


def main(
    train: str | None = None,
    test: str | None = None,
    word: int | str = 1,
    tag: int | str = 2,
    pos: int | str | None = None,
    comment: str = "#",
    lam: PositiveFloat = 0.001,  # this and the next: the best F1 on the Danish development sentences
    entity_weight: PositiveFloat = 1.5,
    gap: PositiveFloat = 0.005,
    max_passes: PositiveFloat = 200.0,
    min_count: PositiveInt = 1,
    seed: int = 0,
    report: Path = Path("runs/entities"),
) -> RunReport:
    """Train on a file of columns to a certified gap, and score the predicted entities of another.

    Args:
        train: File with a token a line; by default the Danish training sentences.
        test: Another; by default the Danish test sentences.
        word: Column of the words, by position from 0 (negative from the last) or by name.
        tag: Column of the tags, in any scheme of BIO and BIOES.
        pos: Column of the parts of speech, if they shall be features.
        comment: Lines between sentences that begin with it are left out; empty for none.
        lam: Regularisation, of a loss that counts wrong tags.
        entity_weight: Cost of a wrong tag within an entity, where one elsewhere costs 1.
        gap: Stop at this certified gap.
        max_passes: Or after so many passes.
        min_count: How often an attribute must occur in training.
        seed: Runs with the same seed are the same.
        report: Folder of report.json and the picture.
    """
    torch.set_num_threads(1)  # a step is too short to be shared between cores
    columns = Columns(word=word, tag=tag, pos=pos, comment=comment)
    try:
        files = [
            given or find(f"uner_danish_ddt/{split}.iob2.gz", "https://www.universalner.org")
            for split, given in (("train", train), ("test", test))
        ]
        entities = NamedEntities.from_file(files[0], columns=columns, min_count=min_count)
        tests = NamedEntities.from_file(files[1], entities.vocabulary, columns=columns, stand_in="O")
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(f"train: {entities}\ntest:  {tests}")
    head = entity_chain(entities.vocabulary, entity_weight)
    history: list[tuple[Certificate, float]] = []
    start = time.perf_counter()

    def on_check(certificate: Certificate) -> None:
        history.append((certificate, time.perf_counter() - start))
        print(certificate)

    solver = Solver(seed=seed)
    last = solve(head, entities, lam, tolerance=gap, max_passes=max_passes, solver=solver, on_check=on_check)

    predicted = [
        tags
        for batch in in_order(tests)
        for tags in tests.tags_of(head.structure.decode(head(batch.x, batch.lengths)), batch.lengths)
    ]
    scores = chunk_scores([tests.tags(i) for i in range(len(tests))], predicted)
    result = RunReport(
        f"named entities, {Path(files[0]).name}",
        history,
        num_weights=sum(p.numel() for p in head.parameters()),
        stopped_because=f"certified {last.gaps} after {last.passes:.0f} passes",
        seed=seed,
        extra={"test_f1": scores.overall.f1, "test_token_error": scores.token_error},
    )
    shown = [
        Tagged(tests.words(i), tests.tags(i), predicted[i]) for i in range(len(tests)) if len(set(tests.tags(i))) > 2
    ]
    result.write(report, lambda figure: draw_chunks(figure, shown[:4]))
    print(f"{result}\nentities of the test sentences\n{scores}\nwritten to {report}")
    return result


if __name__ == "__main__":
    auto_cli(main, as_positional=False)
