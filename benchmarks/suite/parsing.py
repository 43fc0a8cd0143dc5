"""Dependency parsing: attachment scores and CPU seconds, of BCFW and of an averaged perceptron on the same features.

Both train on the projective sentences of a treebank, with the same packed features (McDonald et al. 2005, hashed) and
the same decoder, one thread, without and with labels. lam is chosen by the attachment score on the development
sentences. Reading, packing, compiling and scoring are outside the clocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchssvm import (
    Arborescence,
    CacheOracle,
    CompiledBCFW,
    Corrective,
    DualState,
    Labelings,
    LinearArcs,
    MeanParts,
    in_order,
)
from torchssvm.datasets import CoNLLU, attachment
from torchssvm.datasets.files import find
from torchssvm.solvers.compiled.packing import pack
from torchssvm.structures.arborescence import Projective
from torchssvm.structures.arborescence.kind import ArcsAdapter

from .figures import grid
from .measuring import Ask, Clock, Limit, Settings, Summary, Table, chosen
from .parsing_perceptron import Perceptron

TITLE = "Dependency parsing: attachment scores and training time"
FOLDER = "ud_english_lines"
CAPACITY, CAPACITY_LABELLED = 10, 50  # mean parts of merged labelings have a number for each label
OPTIONS: dict[str, Any] = {
    "data": None,  # the folder with train.conllu.gz, dev.conllu.gz and test.conllu.gz
    "tags": "upos",
    "num_features": 2**22,
    "collisions": 2**16,  # beside it
    "labelled": 2**18,  # columns of arcs with labels
    "lam_labelled": [50.0, 30.0, 15.0],
    "lam": [100.0, 50.0, 30.0, 15.0],  # times n, to choose from
    "lam_normalized": [500.0, 250.0],  # with the loss divided by the length, some 20 words
    "gap": 0.01,  # of the primal
    "epochs": 8,  # of the perceptron
    "max_passes": 100.0,
    "seed": 0,
}
QUICK = {"num_features": 2**18, "lam": [100.0], "lam_normalized": [500.0], "lam_labelled": [30.0], "gap": 0.1}


def folder_of(data: str | None) -> Path:
    """The folder of the treebank; None is that of English LinES, below what ``TORCHSSVM_DATA`` names."""
    return Path(data) if data is not None else find(FOLDER, "https://universaldependencies.org")


def read(data: str | None, part: str, tags: str, num_features: int, labelled: bool = False) -> CoNLLU:
    """The sentences of a part; those for training are projective."""
    path, train = folder_of(data) / f"{part}.conllu.gz", part == "train"
    return CoNLLU(path, num_features=num_features, tags=tags, skip_nonprojective=train, labelled=labelled)


def head_of(train: CoNLLU, normalize: bool = True) -> LinearArcs:
    """A head with weights of zero."""
    trees = Arborescence(Projective(single_root=True), normalize=normalize, num_labels=train.num_labels)
    return LinearArcs(train.in_features, num_labels=train.num_labels, structure=trees)


def loop_of(train: CoNLLU, lam: float, normalize: bool, storage: Any, seed: int, **rules: Any) -> CompiledBCFW:
    """A loop from zero weights; ``lam`` is times n."""
    head = head_of(train, normalize)
    dual = DualState.for_head(head, len(train), lam / len(train), storage=storage)
    return CompiledBCFW(head, dual, in_order(train, lengths=train.lengths), seed=seed, **rules)


def corrective(train: CoNLLU, lam: float, normalize: bool, seed: int) -> CompiledBCFW:
    """Corrective steps and the cache."""
    rules = {"direction": Corrective(), "oracle": CacheOracle()}
    capacity = CAPACITY if train.num_labels is None else CAPACITY_LABELLED
    return loop_of(train, lam, normalize, Labelings(capacity), seed, **rules)


def perceptron_of(train: CoNLLU, seed: int) -> Perceptron:
    """The perceptron on packed sentences."""
    head = head_of(train)
    adapter = ArcsAdapter(head, projective=True)
    dual = DualState.for_head(head, len(train), 1.0)
    return Perceptron(adapter, pack(adapter, dual, in_order(train, lengths=train.lengths))[0], seed)


def part_of(train: CoNLLU, size: int) -> CoNLLU:
    """The first sentences, to compile."""
    few = CoNLLU.__new__(CoNLLU)
    vars(few).update(vars(train), sentences=train.sentences[:size])
    return few


@torch.no_grad()
def scores(data: str | None, tags: str, train: CoNLLU, weight: Tensor) -> dict[str, float | None]:
    """Attachment scores on the development and the test sentences."""
    head, results = head_of(train), {}
    head.weight.copy_(weight)
    for part in ("dev", "test"):
        bank = read(data, part, tags, len(weight))
        heads: dict[int, list[int]] = {}
        relations: dict[int, list[str]] = {}
        for batch in in_order(bank, lengths=bank.lengths):
            decoded, labels = head.structure.split(head.structure.decode(head(batch.x, batch.lengths)))
            heads |= dict(zip(batch.index.tolist(), decoded.tolist(), strict=True))
            if train.num_labels is not None:
                relations |= dict(zip(batch.index.tolist(), train.relations(labels), strict=True))
        every = range(len(bank))
        named = [relations[i] for i in every] if relations else None
        its = attachment([heads[i] for i in every], bank.sentences, named)
        results |= {part: its.uas, f"{part}_without_punctuation": its.uas_without_punctuation}
        results |= {f"{part}_las": its.las, f"{part}_las_without_punctuation": its.las_without_punctuation}
    return results


def perceptron(
    data: str | None, tags: str, num_features: int, epochs: int, seed: int, labelled: bool = False
) -> dict[str, Any]:
    """Epochs of the averaged perceptron, and its scores."""
    train = read(data, "train", tags, num_features, labelled)
    perceptron_of(part_of(train, 10), seed).epoch()  # compiles
    its = perceptron_of(train, seed)
    clock = Clock()
    wrong = [its.epoch() for _ in range(epochs)]
    return {**clock.stop(), "wrong": wrong, **scores(data, tags, train, its.average())}


def bcfw(
    data: str | None,
    tags: str,
    num_features: int,
    lam: float,
    normalize: bool,
    gap: float,
    max_passes: float,
    seed: int,
    labelled: bool = False,
) -> dict[str, Any]:
    """Train to a certified gap relative to the primal; a certificate after every four epochs of visits."""
    train = read(data, "train", tags, num_features, labelled)
    few = corrective(part_of(train, 10), lam, normalize, seed)
    few.step(20)
    few.certify()  # compiled now
    loop, n = corrective(train, lam, normalize, seed), len(train)
    points = []
    clock = Clock()
    while True:
        loop.step(4 * n)
        last = loop.certify()
        seconds = clock.stop()
        point = {"passes": last.passes, "primal": last.primal, "dual": last.dual, "gap": last.gap}
        points.append({**seconds, **point})
        if last.gap <= gap * last.primal or last.passes >= max_passes:
            return {"n": n, "points": points, **scores(data, tags, train, loop.head.weight.detach())}
        clock.go()


def times(data: str | None, tags: str, num_features: int, lam: float, repeats: int, seed: int) -> dict[str, Any]:
    """CPU seconds of an epoch of each, by turns, and of a certificate; the first epochs are left out."""
    train = read(data, "train", tags, num_features)
    its, n = perceptron_of(train, seed), len(train)
    loops = {
        "BCFW, Frank-Wolfe steps, mean parts": loop_of(train, lam, False, MeanParts(), seed),
        "BCFW, corrective steps, cache, labelings": corrective(train, lam, False, seed),
    }
    results: dict[str, list[float]] = {name: [] for name in ("perceptron", *loops, "certificate")}

    def timed(name: str, call: Any) -> None:
        clock = Clock()
        call()
        results[name].append(clock.stop()["cpu_seconds"])

    for _ in range(repeats + 1):
        timed("perceptron", its.epoch)
        for name, loop in loops.items():
            timed(name, lambda loop=loop: loop.step(n))
        timed("certificate", loop.certify)
    return {"seconds": {name: seconds[1:] for name, seconds in results.items()}, "n": n}


def collect(ask: Ask, settings: Settings) -> dict[str, Any]:
    """The perceptron, BCFW at each lam, and what the loss and the number of columns do."""
    options = chosen(settings, OPTIONS, QUICK)
    its = {name: options[name] for name in ("data", "tags", "seed")}
    limits = {name: options[name] for name in ("gap", "max_passes")}
    columns = options["num_features"]
    rows: list[dict[str, Any]] = []
    for size in (columns, options["collisions"]):
        results = ask("perceptron", num_features=size, epochs=options["epochs"], **its)
        rows.append({"side": "perceptron", "columns": size, "epochs": options["epochs"], **results})
    best: dict[bool, dict[str, Any]] = {}
    for normalize, lams in ((False, options["lam"]), (True, options["lam_normalized"])):
        for lam in lams:
            results = ask("bcfw", num_features=columns, lam=lam, normalize=normalize, **its, **limits)
            row = {"side": "BCFW", "columns": columns, "lam": lam, "normalize": normalize, **results}
            rows.append(row)
            if normalize not in best or (row["dev"] or 0.0) > (best[normalize]["dev"] or 0.0):
                best[normalize] = row
    lam = best[False]["lam"]
    results = ask("bcfw", num_features=options["collisions"], lam=lam, normalize=False, **its, **limits)
    rows.append({"side": "BCFW", "columns": options["collisions"], "lam": lam, "normalize": False, **results})
    columns, its["labelled"] = options["labelled"], True
    results = ask("perceptron", num_features=columns, epochs=options["epochs"], **its)
    labelled = [{"side": "perceptron", "columns": columns, "epochs": options["epochs"], **results}]
    for each in options["lam_labelled"]:
        results = ask("bcfw", num_features=columns, lam=each, normalize=False, **its, **limits)
        labelled.append({"side": "BCFW", "columns": columns, "lam": each, "normalize": False, **results})
    columns = options["num_features"]
    del its["labelled"]
    timing = ask("times", num_features=columns, lam=lam, repeats=settings.repeats, **its)
    return {
        "rows": rows,
        "labelled": labelled,
        "lam": lam,
        "best": best[False],
        "times": timing,
        "gap": options["gap"],
    }


def summarise(results: dict[str, Any]) -> Summary:
    """A line for each run, and the seconds of an epoch."""
    lines: list[list[Any]] = []
    for row in results["rows"]:
        last = row["points"][-1] if "points" in row else None
        loss = "" if last is None else "divided by the length" if row["normalize"] else "number of wrong heads"
        lines.append(
            [
                row["side"],
                f"2^{row['columns'].bit_length() - 1}",
                loss,
                f"{row['epochs']} epochs" if last is None else f"lam = {row['lam']:g}/n, {last['passes']:.0f} passes",
                None if last is None else last["gap"] / last["primal"],
                *(f"{100 * (row[name] or 0.0):.2f}" for name in ("dev", "test", "test_without_punctuation")),
                row["cpu_seconds"] if last is None else last["cpu_seconds"],
            ]
        )
    columns = ["", "columns", "loss", "", "gap / primal", "dev UAS", "test UAS", "without punctuation", "CPU s"]
    table = Table("Unlabelled attachment, training to a certified gap; lam by the dev sentences", columns, lines)
    lines = [
        [
            row["side"],
            f"2^{row['columns'].bit_length() - 1}",
            f"lam = {row['lam']:g}/n, {row['points'][-1]['passes']:.0f} passes" if "points" in row else "",
            row["points"][-1]["gap"] / row["points"][-1]["primal"] if "points" in row else None,
            *(f"{100 * (row[name] or 0.0):.2f}" for name in ("dev", "dev_las", "test", "test_las")),
            f"{100 * (row['test_las_without_punctuation'] or 0.0):.2f}",
            row["points"][-1]["cpu_seconds"] if "points" in row else row["cpu_seconds"],
        ]
        for row in results["labelled"]
    ]
    columns = ["", "columns", "", "gap / primal", "dev UAS", "dev LAS", "test UAS", "test LAS", "without punctuation"]
    with_labels = Table("Labelled attachment", [*columns, "CPU s"], lines)
    seconds = {name: sorted(values)[len(values) // 2] for name, values in results["times"]["seconds"].items()}
    epochs = Table(
        f"CPU seconds of an epoch over {results['times']['n']} sentences",
        ["", "CPU s"],
        [[*s] for s in seconds.items()],
    )
    ours, theirs = results["best"]["test"], results["rows"][0]["test"]
    peer, *certified = results["labelled"]
    best = max(certified, key=lambda row: row["dev_las"] or 0.0)
    slowest = max(value for name, value in seconds.items() if name.startswith("BCFW"))
    limits = [
        Limit("test UAS less the perceptron's", 100 * (ours - theirs), 0.0, " points", at_least=True),
        Limit(
            "test LAS less the perceptron's", 100 * (best["test_las"] - peer["test_las"]), 0.0, " points", at_least=True
        ),
        Limit("an epoch of BCFW over one of the perceptron", slowest / seconds["perceptron"], 2.0),
        Limit("a certificate", seconds["certificate"], 3.0, " s"),
    ]
    return Summary([table, with_labels, epochs], limits)


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """The relative gap over CPU seconds, for each lam."""
    lines = {
        f"lam = {row['lam']:g}/n": (
            [p["cpu_seconds"] for p in row["points"]],
            [p["gap"] / p["primal"] for p in row["points"]],
        )
        for row in results["rows"]
        if "points" in row and not row["normalize"] and row["columns"] == results["rows"][0]["columns"]
    }
    return [grid(folder / "parsing.png", {"BCFW": lines}, ["CPU seconds"], "gap / primal", log="y")]


MEASURES = {"perceptron": perceptron, "bcfw": bcfw, "times": times}
