"""Solvers side by side and the regularisation path, as examples: on problems whose optimum a QP solver knows."""

import copy
import csv
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from problems import chain, multiclass, reference

from torchssvm import RegularizationPath, in_order, primal
from torchssvm.datasets import PaddedDataset

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))  # as it is where a script of this folder runs
try:
    import compare_solvers
    import reg_path
    from compare import race as racing
    from compare.race import Limits, Row, Stopwatch, race
    from compare.results import Results
    from compare.runs import Settings
    from compare.solvers import GROUPS, SOLVERS, choose
    from compare.tasks import TASKS, Task
finally:
    sys.path.remove(str(EXAMPLES))

pytest.importorskip("matplotlib")
pytest.importorskip("clarabel")

LAM = 0.2
ROUNDING = 1e-5  # the heads are float32
WITHOUT_DUAL = {"adam", "subgradient", "subgradient-weighted", "subgradient-suffix"}
LIMITS = Limits(gap=1e-3, passes=8.0, seconds=300.0, checks=3)


def as_task(problem, name):
    data = PaddedDataset(problem.x, problem.y, problem.lengths)
    return Task(name, data, data, lambda: copy.deepcopy(problem.head))


TINY = chain(0, n=6, states=3, features=3, lam=LAM, dtype=torch.float32)
TASK = as_task(TINY, "tiny")
TRUTH = reference(TINY)
OPTIMUM = TRUTH.optimum()
CLASSES = as_task(multiclass(2, n=8, classes=4, dtype=torch.float32), "classes")


@pytest.fixture(autouse=True)
def tiny_tasks(monkeypatch):
    monkeypatch.setitem(TASKS, "tiny", lambda: TASK)
    monkeypatch.setitem(TASKS, "classes", lambda: CLASSES)


def run(name, *, task=TASK, seed=0, limits=LIMITS, lam=LAM):
    return list(race(name, SOLVERS[name].start, task, Settings(lam, 2, 0.01, seed), limits))


@pytest.fixture(scope="module")
def runs():
    """The rows of every registered solver."""
    return {name: run(name) for name in SOLVERS}


@pytest.mark.parametrize("name", SOLVERS)
def test_bounds_hold_at_every_check(name, runs):
    rows = runs[name]
    for before, row in zip([None, *rows], rows, strict=False):
        assert row.dual <= OPTIMUM + ROUNDING
        assert row.primal >= OPTIMUM - ROUNDING
        assert row.gap == row.primal - row.dual
        assert 0.0 <= row.test_error <= 1.0
        if before is not None:
            assert not before.stopped
            assert row.check == before.check + 1
            assert row.passes >= before.passes
            assert row.epochs > before.epochs
            assert row.seconds > before.seconds
            assert row.dual >= before.dual
    last = rows[-1]
    assert last.stopped == ("8 passes" if last.gap > LIMITS.gap else f"gap {last.gap:.3g}")
    assert last.passes >= 8 or last.gap <= LIMITS.gap
    if name in WITHOUT_DUAL:
        assert last.dual == 0.0
    else:
        assert last.dual > 0.2 * OPTIMUM
    assert last.primal < 1.2  # 1 at zero weights; the first steps of some go far


def test_all_intervals_have_a_point_in_common(runs):
    rows = [row for found in runs.values() for row in found]
    assert max(row.dual for row in rows) <= min(row.primal for row in rows) + ROUNDING


@pytest.mark.parametrize("name", ["compiled-gap-pairwise", "compiled-gap-fw-cache", "n-slack"])
def test_runs_end_at_their_gap_near_the_optimum(name):
    rows = run(name, limits=LIMITS._replace(passes=1000.0))
    assert rows[-1].stopped.startswith("gap")
    assert rows[-1].gap <= LIMITS.gap < rows[-2].gap
    assert abs(rows[-1].primal - OPTIMUM) <= LIMITS.gap


@pytest.mark.parametrize("name", [name for name in SOLVERS if not SOLVERS[name].chains_only])
def test_multiclass_task(name):
    rows = run(name, task=CLASSES, limits=LIMITS._replace(passes=3.0), lam=0.5)
    assert rows[-1].stopped
    assert all(row.dual <= row.primal + ROUNDING for row in rows)


@pytest.mark.parametrize(
    "name",
    [
        *("uniform-fw", "gap-pairwise-cache", "gap-corrective-cache", "compiled-gap-corrective-cache", "batch-fw"),
        *("uniform-fw-weighted", "subgradient-suffix", "n-slack", "exponentiated-gradient", "adam"),
    ],
)
def test_checks_do_not_change_a_run(name):
    limits = LIMITS._replace(gap=1e-12, passes=6.0)
    rare, often = (run(name, limits=limits._replace(checks=checks))[-1] for checks in (1, 40))
    assert often.check > rare.check
    for column in ("passes", "epochs", "primal", "test_error"):
        assert getattr(rare, column) == getattr(often, column), column


def test_seeds_differ_and_repeat():
    first, again, other = (run("gap-fw", seed=seed, limits=LIMITS._replace(passes=4.0))[-1] for seed in (0, 0, 1))
    assert first.primal == again.primal
    assert first.primal != other.primal


def test_own_exact_passes_count():
    """Gap sampling pays for one pass in eleven; uniform sampling has none, and no check is ever counted."""
    limits = LIMITS._replace(gap=1e-12, passes=25.0, checks=20)
    sampled, uniform = run("gap-fw", limits=limits)[-1], run("uniform-fw", limits=limits)[-1]
    assert sampled.passes - sampled.epochs == pytest.approx(2.0)
    assert uniform.passes == pytest.approx(uniform.epochs)


def test_the_clock_stands_during_checks(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(racing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(racing.time, "process_time", lambda: 2 * now[0])
    watch = Stopwatch()
    now[0] += 3.0
    with watch.stopped() as (wall, cpu):
        now[0] += 50.0
    now[0] += 1.0
    assert (wall, cpu) == (3.0, 6.0)
    assert (watch.seconds(), watch.cpu_seconds(), watch.checking) == (4.0, 8.0, 50.0)


def test_runs_end_after_their_seconds():
    rows = run("adam", limits=Limits(gap=1e-12, passes=1e9, seconds=0.05, checks=2))
    assert rows[-1].stopped == "0.05 seconds"
    assert rows[-1].seconds >= 0.05


def main(script, monkeypatch, *flags):
    """The exit status of a script's main."""
    monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, flags)])
    threads = torch.get_num_threads()
    try:
        script.main()
    except SystemExit as end:
        return end.code
    finally:
        torch.set_num_threads(threads)


def read(folder):
    with (folder / "results.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


FLAGS = ("--task", "tiny", "--lam", LAM, 1.0, "--seeds", 2, "--max-passes", 2, "--batch-size", 2)


def test_table_file_and_picture(tmp_path, monkeypatch, capsys):
    names = ["gap-fw", "compiled-gap-fw-cache", "uniform-fw-weighted", "adam"]
    out = tmp_path / "new" / "folder"
    assert main(compare_solvers, monkeypatch, *FLAGS, "--solvers", *names, "--out", out) == 0
    rows = read(out)
    ends = [row for row in rows if row["stopped"]]
    assert len(ends) == 2 * 2 * len(names)
    for lam in (LAM, 1.0):
        mine = [row for row in rows if float(row["lam"]) == lam]
        bound = max(float(row["dual"]) for row in mine)
        for row in mine:
            assert float(row["suboptimality"]) == float(row["primal"]) - bound
            assert float(row["gap"]) == float(row["primal"]) - float(row["dual"])
    assert all(float(r["dual"]) <= OPTIMUM + ROUNDING <= float(r["primal"]) for r in rows if float(r["lam"]) == LAM)
    assert (out / "comparison.png").stat().st_size > 20_000
    shown = capsys.readouterr()
    assert shown.out.count("the optimum lies between") == 2
    assert all(shown.out.count(f"\n{name} ") == 2 for name in names)
    assert shown.err.count("2 passes") == len(ends)  # one line a run where there is no terminal


def test_an_interrupted_comparison_goes_on(tmp_path, monkeypatch, capsys):
    real, started = compare_solvers.race, []

    def interrupted(name, *rest):
        started.append(name)
        for row in real(name, *rest):
            yield row
            if len(started) == 3:
                raise KeyboardInterrupt

    flags = (*FLAGS, "--solvers", "uniform-fw", "adam", "--out", tmp_path)
    monkeypatch.setattr(compare_solvers, "race", interrupted)
    assert main(compare_solvers, monkeypatch, *flags) == 130
    assert len([row for row in read(tmp_path) if row["stopped"]]) == 2
    assert "goes on from here" in capsys.readouterr().err
    assert (tmp_path / "comparison.png").exists()
    held = [row for row in read(tmp_path) if row["stopped"]]

    started.clear()
    monkeypatch.setattr(compare_solvers, "race", lambda name, *rest: started.append(name) or real(name, *rest))
    assert main(compare_solvers, monkeypatch, *flags) == 0
    assert len(started) == 6
    rows = read(tmp_path)
    assert len([row for row in rows if row["stopped"]]) == 8
    assert [row["seconds"] for row in rows if row["stopped"]][:2] == [row["seconds"] for row in held]
    assert len({(row["lam"], row["solver"], row["seed"], row["check"]) for row in rows}) == len(rows)

    assert main(compare_solvers, monkeypatch, *flags, "--max-passes", 4) == 2
    assert "choose another folder" in capsys.readouterr().err


def test_a_solver_that_fails_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    def fail(task, settings):
        raise MemoryError("the planes would take 10 GiB")

    monkeypatch.setitem(SOLVERS, "n-slack", SOLVERS["n-slack"].__class__("", fail))
    flags = ("--task", "tiny", "--seeds", 1, "--max-passes", 2, "--solvers", "n-slack", "adam", "--out", tmp_path)
    assert main(compare_solvers, monkeypatch, *flags) == 1
    shown = capsys.readouterr()
    assert "FAILED: the planes would take 10 GiB" in shown.err
    assert {row["solver"] for row in read(tmp_path)} == {"adam"}


def test_damaged_results_are_refused(tmp_path):
    settings = {"gap": 0.1}
    row = Row("tiny", 0.1, "adam", 0, 1, 1.0, 1.0, 0.1, 0.1, 0.0, 1.0, 0.0, 1.0, 0.5, "1 passes")
    Results(tmp_path, settings).add(row)
    assert Results(tmp_path, settings).rows == [row]
    text = (tmp_path / "results.csv").read_text()
    (tmp_path / "results.csv").write_text(text.replace("0.5", "half"))
    with pytest.raises(ValueError, match="is damaged"):
        Results(tmp_path, settings)
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="has the columns"):
        Results(tmp_path, settings)


def test_solvers_are_chosen_by_name_and_by_group():
    assert len(GROUPS["eight"]) == 8
    assert list(choose(["all"], TASK)) == list(SOLVERS)
    assert list(choose(["adam", "eight", "gap-fw"], TASK)) == ["adam", *GROUPS["eight"]]
    assert not any(name.startswith("compiled") for name in choose(["all"], CLASSES))
    with pytest.raises(ValueError, match="is for chains, and the task classes is none"):
        choose(["compiled-gap-fw"], CLASSES)
    with pytest.raises(ValueError, match="none of compiled"):
        choose(["compiled"], CLASSES)


def test_every_task_trains():
    for name in ("ocr-small", "letters", "chain"):
        task = TASKS[name]().first(20)
        (row,) = run("gap-fw", task=task, limits=LIMITS._replace(passes=1.0), lam=0.1)
        assert 0.0 < row.dual < row.primal
        assert 0.0 < row.test_error < 1.0


@pytest.mark.parametrize(
    "script, flags, message",
    [
        (compare_solvers, ("--solvers", "gap-fw", "sgd"), "no solver is called 'sgd'; there are uniform-fw, "),
        (compare_solvers, ("--solvers", "sgd"), "exponentiated-gradient, adam; and the groups eight, "),
        (compare_solvers, ("--size", "7"), "size=7: the task tiny has 6 training examples"),
        (compare_solvers, ("--lam", "0"), "--lam: must be positive and finite, not 0"),
        (compare_solvers, ("--out", __file__), "is not a folder"),
        (reg_path, ("--lam-min", "2", "--lam-max", "1"), "--lam-min 2 must be below --lam-max 1"),
        (reg_path, ("--methods", "paht"), "invalid choice: 'paht'"),
        (reg_path, ("--epsilon", "-1"), "--epsilon: must be positive"),
    ],
)
def test_bad_flags_are_refused(script, flags, message, tmp_path, monkeypatch, capsys):
    assert main(script, monkeypatch, "--task", "tiny", "--out", tmp_path, *flags) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_scripts_run_as_users_run_them():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / "compare_solvers.py"), "--list"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert all(f"  {name} " in done.stdout for name in [*TASKS, *SOLVERS, *GROUPS] if name not in ("tiny", "classes"))


EPSILON = 0.25


@pytest.fixture(scope="module")
def path_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("reg_path")
    flags = ("--epsilon", EPSILON, "--lam-min", 0.2, "--lam-max", 2, "--points", 3, "--spots", 6, "--batch-size", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "tiny", lambda: TASK)
        assert main(reg_path, patch, "--task", "tiny", *flags, "--seeds", 2, "--out", out) == 0
    return out, read(out)


def test_path_and_grids_end_within_epsilon(path_run):
    _, rows = path_run
    for method in ("path", "warm", "cold"):
        gaps = [float(row["gap"]) for row in rows if (row["method"], row["kind"]) == (method, "solved")]
        assert gaps
        assert max(gaps) <= EPSILON
    for method in ("warm", "cold"):
        assert len([row for row in rows if row["method"] == method]) == 2 * 3
    for method in ("path", "heuristic", "warm", "cold"):
        for seed in "01":
            mine = [r for r in rows if (r["method"], r["seed"], r["kind"]) == (method, seed, "solved")]
            for column, falls in (("lam", True), ("passes", False), ("seconds", False)):
                values = [float(row[column]) for row in mine]
                assert values == sorted(values, reverse=falls), (method, column)


def test_spot_checks_recompute_what_the_path_says(path_run):
    _, rows = path_run
    spots = [row for row in rows if (row["method"], row["kind"]) == ("path", "spot")]
    assert len(spots) == 12
    for row in spots:
        assert float(row["recomputed_gap"]) == pytest.approx(float(row["gap"]), abs=1e-4)
        assert float(row["recomputed_gap"]) <= EPSILON + ROUNDING


def test_saved_path_is_within_epsilon_of_the_optimum(path_run):
    out, rows = path_run
    path = RegularizationPath.load(out / "path-1.pt")
    assert path.epsilon == EPSILON
    served = [row for row in rows if (row["method"], row["kind"], row["seed"]) == ("path", "served", "1")]
    assert len(served) == 3
    head = TASK.make_head()
    for row in served:
        lam = float(row["lam"])
        path.apply(head, lam)
        value = primal(head, head.structure, in_order(TASK.train), lam).value
        truth = reference(chain(0, n=6, states=3, features=3, lam=lam, dtype=torch.float32)).optimum()
        assert -ROUNDING <= value - truth <= float(row["gap"]) + ROUNDING
        assert float(row["test_error"]) == pytest.approx(TASK.error(head))


def test_pictures_of_the_path(path_run):
    out, _ = path_run
    for name in ("path", "heuristic", "cost"):
        assert (out / f"{name}.png").stat().st_size > 10_000


def test_methods_end_after_their_seconds(tmp_path, monkeypatch, capsys):
    flags = ("--task", "tiny", "--max-seconds", "1e-9", "--methods", "path", "cold", "--lam-min", "1e-4")
    assert main(reg_path, monkeypatch, *flags, "--epsilon", "0.05", "--out", tmp_path) == 0
    solved = [row["method"] for row in read(tmp_path) if row["kind"] == "solved"]
    assert solved == ["path", "cold"]
    assert not RegularizationPath.load(tmp_path / "path-0.pt").complete
    assert "path " in capsys.readouterr().out
    assert math.isfinite(float(read(tmp_path)[0]["gap"]))
