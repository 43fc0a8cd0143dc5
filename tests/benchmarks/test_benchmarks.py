"""The benchmarks: what they compute from what they measure, and that every part measures."""

import importlib
import json
import subprocess
from pathlib import Path

import beside
import pytest
import run as program
import size
import torch
from cases.benchmark_parts import measured, part_of
from suite import baselines, descent, exact, measuring, memory, roofline, solvers
from suite.measuring import Kept, asker, interpolate

from torchssvm.datasets import OCR, PaddedDataset

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", program.PARTS)
def test_parts_are_whole(name):
    part = part_of(name)
    assert part.MEASURES
    assert all(callable(getattr(part, function)) for function in ("collect", "summarise", "draw"))


def checks(*pairs):
    return [{"seconds": seconds, "gap": gap} for seconds, gap in pairs]


@pytest.mark.parametrize(
    "points, threshold, expected",
    [
        ([(1.0, 0.1), (3.0, 0.001)], 0.01, 2.0),  # half way in the logarithm
        ([(2.0, 0.01)], 0.1, 1.0),  # from the gap 1 at time 0
        ([(1.0, 0.1), (2.0, 0.05)], 0.01, None),
        ([], 0.01, None),
        ([(1.0, 0.1), (2.0, 0.3), (3.0, 0.001)], 0.01, 2.0),  # a worse check in between changes nothing
        ([(1.0, 0.1), (3.0, 0.001), (4.0, 0.5)], 0.01, 2.0),  # the first time counts
        ([(1.0, 0.1), (3.0, -1e-9)], 0.01, 3.0),
    ],
)
def test_interpolation(points, threshold, expected):
    assert interpolate(checks(*points), threshold) == (None if expected is None else pytest.approx(expected))


def test_a_measure_in_a_process_of_its_own_is_kept(tmp_path, monkeypatch):
    file, options = tmp_path / "oracles.jsonl", {"shape": [2, 3, 4], "seconds": 0.0, "seed": 0}
    first = asker("oracles", kept=Kept(file, resume=True))("viterbi", **options)
    assert {"torchssvm", "torch operations", "torch-struct"} <= set(first["seconds"])
    assert all(list(seconds) == ["1"] for seconds in first["seconds"].values())  # one thread was asked for
    with pytest.raises(measuring.MeasureError):
        asker("nothing")("viterbi")
    done = subprocess.CompletedProcess([], 0, stdout='{"measured": "again"}')
    monkeypatch.setattr(measuring.subprocess, "run", lambda *_, **__: done)
    again = asker("oracles", kept=Kept(file, resume=True))
    assert again("viterbi", **options) == first
    assert again("viterbi", **options) == {"measured": "again"}  # a second time, which the file does not know
    assert len(file.read_text().splitlines()) == 2
    Kept(file, resume=False)
    assert not file.exists()


def test_solvers_measure_the_same_problem():
    task = {"size": "small", "lam": 0.01, "seed": 1, "max_seconds": 60.0}
    runs = {
        "yardstick": [solvers.yardstick(gap=0.4, **task)],
        "compiled FW": [solvers.compiled("FW", gap=0.4, **task)],
        "torch loop, batches of 64": [
            solvers.torch_loop(side="torch loop, batches of 64", gap=0.9, **{**task, "max_seconds": 0.0})
        ],
    }
    for name, (result,) in runs.items():
        last = result["checks"][-1]
        assert last["primal"] - last["dual"] == pytest.approx(last["gap"], abs=1e-6), name
        assert last["dual"] <= 0.1651  # the optimum lies between 0.16502 and 0.16504
        assert last["primal"] >= 0.165
        assert last["visits"] > 0
        assert last["gap"] <= 0.4 or name.startswith("torch loop")
        seconds = [check["seconds"] for check in result["checks"]]
        assert seconds == sorted(seconds)
    assert runs["yardstick"][0]["checks"][0]["visits"] == 626 + 9 * 620


def test_descents_lower_the_primal():
    known = {"size": "small", "lam": 0.01, "seed": 0}
    for options in baselines.OURS.values():
        result = descent.bcfw(**options, epochs=12.0, target=0.5, **known)
        values = [point["primal"] for point in result["curve"]]
        assert 0.165 < values[-1] < values[0]
        assert min(values[:-1]) > 0.5  # it ends where it has come to the target
        assert 0.0 < result["test_error"] < 0.5
    for optimizer, lr in (("Adam", 0.003), ("SGD", 0.03)):
        result = descent.hinge(optimizer, lr, 2, points=2, **known)
        assert 0.165 < result["curve"][-1]["primal"] < 1.0 == result["curve"][0]["primal"]
        assert [round(point["passes"]) for point in result["curve"]] == [0, 1, 2]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux")
def test_memory():
    base = memory.set_back()
    block = torch.ones(200 * 2**18)
    del block
    assert 100 * 2**20 < memory.resident("VmHWM") - base < 300 * 2**20  # the system may take back pages meanwhile
    for kind in ("compiled", "torch"):
        result = memory.synthetic(kind, 300)
        assert result["peak"] >= 0.0
        assert result["must"] == 4 * 300 * (5 * 20 + 5 * 10 + 10 * 10) + 8 * 300 * 5
        assert result["seconds"] > 0.0


def test_roofline_and_exact_pass():
    shape = roofline.ocr_shape("small")
    assert (shape.examples, shape.tokens) == (626, 4617)
    result = {"runs": [roofline.roofline("small", 0.01, 1, True, 0)], "problem": {"size": "small"}}
    assert all(row[3] > 1.0 for row in roofline.summarise(result).tables[2].rows)  # nothing is faster than the machine
    result = {
        "runs": [json.loads(json.dumps(exact.certificates("small", 0.01, 1, True)))],
        "problem": {"size": "small"},
    }
    assert all(row[3] > 1.0 for row in exact.summarise(result).tables[0].rows)


def test_ways_to_train_prove_the_same_optimum():
    """Compiled loop and baselines on OCR-small, whose optimum at lam = 0.01 lies between 0.16502 and 0.16504."""
    pytest.importorskip("qpsolvers")
    solvers = ["gap FW", "multi-plane pairwise", "one-slack", "exponentiated gradient", "subgradient"]
    options = {"solvers": solvers, "lam": [0.01], "seeds": 1, "gap": 0.6, "max_seconds": 0.5}
    _, results = measured("compare", options)
    for name, (one,) in results["runs"]["0.01"].items():
        last = one["checks"][-1]
        assert last["primal"] >= 0.165, name
        assert last["dual"] <= 0.1651, name
        assert last["gap"] == pytest.approx(last["primal"] - last["dual"], abs=1e-6)
        assert 0.0 < one["test_error"] < 1.0


def test_the_path_and_a_grid():
    options = {"ways": ["path", "warm-cache"], "epsilon": 0.6, "powers": 1, "verify": 3, "max_passes": 100.0}
    _, results = measured("path", options)
    path, warm = (results["runs"][way] for way in options["ways"])
    assert path["lowest"] <= 0.5
    assert len(path["verified"]) == 3
    for row in path["verified"]:
        assert row["recomputed_gap"] <= min(row["gap_by_the_path"], 0.6) + 1e-5
    assert [row["lam"] for row in warm["rows"]] == [2.0, 1.0, 0.5]
    assert all(row["gap"] <= 0.6 for row in warm["rows"])


def test_choosing():
    options = {"tasks": ["OCR-small"], "multiples": {"OCR-small": [300, 100]}, "gap_at": {"OCR-small": 100}}
    _, results = measured("choosing", {**options, "shares": [0.5, 0.05], "seeds": 1})
    letters = results["OCR-small"]
    assert [row["lam"] * 626 for row in letters["rows"]] == pytest.approx([300.0, 100.0])
    assert 100.0 / 626 / 10 < letters["guess"] < 100.0 / 626
    assert all(70.0 < row["score"] < 85.0 and row["gap"] <= 0.01 for row in letters["rows"])
    (run,) = letters["gaps"]
    assert [row["gap"] <= row["share"] for row in run] == [True, True]


def test_joint_training_by_all_ways(monkeypatch):
    joint = part_of("joint")
    whole = joint.ocr()
    few = whole._replace(test=joint.part(whole.test, torch.arange(30)))
    monkeypatch.setitem(joint.TASKS, "ocr", lambda: few)
    once = {"pretraining": {"ocr": 1}, "epochs": {"ocr": 1}, "lam": {"ocr": 0.01}}
    part, results = measured("joint", {"tasks": ["ocr"], "seeds": 2, "size": 40, **once})
    for run in results["runs"]["ocr"]:
        assert run.keys() == {"tokens", "pretraining", *part.SIDES}
        assert all(len(run[side]["wrong"]) == 30 and run[side]["cpu_seconds"] > 0.0 for side in part.SIDES)
        recipe = run["recipe"]
        assert recipe["wrong"] == recipe["joint" if recipe["held_out"][0] < recipe["held_out"][1] else "solved"]
        assert recipe["gap"] <= 0.01 * recipe["primal"] or recipe["passes"] >= 100


def test_kernels_beside_the_linear_head(monkeypatch):
    def few(*names):
        words = OCR(*names)
        return PaddedDataset(words.x[:300], words.y[:300], words.lengths[:300])

    monkeypatch.setattr(part_of("kernel"), "OCR", few)
    _, results = measured("kernel", {"gap": 0.9, "max_passes": 3.0, "linear_lams": [0.3]})
    assert len(results["runs"]) == 3
    assert all(one["gap"] < 1.0 and 0.0 < one["letter_error"] < 1.0 for one in results["runs"].values())


def test_classes_beside_liblinear():
    pytest.importorskip("sklearn")
    part = part_of("classes")
    for data in part.DATA:
        one = part.both(data, tol=0.05, share=0.02, repeats=1)
        assert one["gap"] <= 0.05
    result = {"data": {"dense": one}, "compiling": 1.0}
    assert len(part.summarise(result).tables[0].rows) == 1


def test_decisions_are_compared_by_regret(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(part_of("decisions"), "TEST", 30)
    options = {"kinds": ["path", "knapsack"], "degrees": [4], "n": [24], "items": 6, "seeds": 1, "max_passes": 20}
    _, results = measured("decisions", options, quick=True)
    for row in results["rows"]:
        for side in ("zero", "least-squares", "two_stages"):
            (run,) = row["runs"][side]
            assert 0.0 <= run["regret"] < 1.0
        assert 0.0 <= row["runs"]["zero"][0]["gap"] <= 1.0
        assert row["runs"]["zero"][0]["calls"] > 1.0  # at least the targets and a pass


def test_simulated_ranks_stand_for_processes(monkeypatch):
    pytest.importorskip("maxflow")
    part = part_of("distributed")
    monkeypatch.setattr(part, "in_processes", lambda *args, **options: part.in_threads(*args, **options)[0])
    small = {"OCR-small": {"lam": 1.0, "gap": 0.3}, "cuts": {"lam": 300.0, "gap": 0.5, "n": 6}}
    options = {
        "problems": small,
        "sides": {"OCR-small": [[2, 1, 16]], "cuts": [[1, 1, 1], [3, 1, 1]]},
        "simulated": {"cuts": [[1, 1], [2, 1]]},
        "numbers": [7],
    }
    part, results = measured("distributed", options, quick=True)
    alone, three = (results["runs"]["cuts"][name][0] for name in ("1 x 1", "3 x 1"))
    assert max(alone["end"]["dual"], three["end"]["dual"]) <= min(alone["end"]["primal"], three["end"]["primal"])
    assert alone["rounds"] == alone["bytes"] == 0
    assert three["bytes"] > 3 * 8 * three["rounds"]
    assert 0.0 <= three["rho"] <= 3.0
    two = results["models"]["cuts"]["2 x 1"]
    assert two["collectives"] >= two["rounds"]
    assert two["all_bytes"] >= two["bytes"] > 0

    def in_slices(few):
        monkeypatch.setattr(importlib.import_module("torchssvm.core.ranks"), "_SMALL", 0)
        monkeypatch.setattr(importlib.import_module("torchssvm.distributed.exchange"), "_FEW", few)
        return part.simulated(2, problem="cuts", visits=1, max_passes=20.0, seed=0, **small["cuts"])

    some, many = in_slices(16), in_slices(1)
    assert many["end"]["dual"] == some["end"]["dual"]  # more messages, the same bits
    assert two["collectives"] < some["collectives"] < many["collectives"]
    assert some["end"]["dual"] == pytest.approx(two["end"]["dual"], rel=1e-5)


def test_the_size_of_a_file(tmp_path):
    (tmp_path / "one.py").write_text(
        '''"""A docstring
of two lines."""

def half(x):
    """Another."""
    if x < 0:  # a comment
        for _ in range(2):
            raise ValueError(
                "too small"
            )
    # a line of comment
    if x > 9:
        x = 9
    return """a
b""", x / 2
'''
    )
    assert size.measure(tmp_path / "one.py") == (1, 15, 10, 5, 1)
    assert size.total(tmp_path) == (1, 15, 10, 5, 1)


def test_a_clone_is_timed_beside_itself():
    root = Path(beside.__file__).parents[1]
    line = beside.compare(beside.Clone(root), beside.Clone(root), "sets", 1, 6)
    assert float(line.split()[3]) > 0.0
