"""The table, the JSON and the picture of a run, without Lightning."""

from __future__ import annotations

import importlib.metadata
import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from torchssvm import Batch, Chain, LinearChain, LinearMulticlass, Multiclass, WeightedLabels, evaluate
from torchssvm.solvers import Certificate, Evaluation, RunReport
from torchssvm.solvers.evaluation import count_errors
from torchssvm.solvers.report import Entry

KEYS = ["task", "n", "num_weights", "lam", "primal", "dual", "gap", "oracle_calls", "passes", "seconds"]
KEYS += ["train_loss", "test_loss", "stopped_because", "seed", "device", "versions"]


def certificate(passes: float = 1.0, gap: float = 0.5) -> Certificate:
    return Certificate(0.7, 0.7 - gap, gap, True, 1e-7, int(passes * 10), passes, 0.01, 10, 0.25)


@pytest.fixture
def report() -> RunReport:
    history = [Entry(certificate(k, 1.0 / k), 0.5 * k) for k in (1.0, 2.0, 4.0)]
    return RunReport(
        "letters",
        history,
        num_weights=42,
        stopped_because="certified gap 0.25 <= tolerance 0.3",
        train=Evaluation(0.1, 0.2, 0.3, 10),
        test=Evaluation(0.4, None, None, 5),
        seed=7,
        extra={"letters": 26},
    )


def test_the_report_speaks_of_the_last_certificate(report):
    content = report.to_dict()
    assert list(content)[: len(KEYS)] == KEYS
    assert content["n"] == 10
    assert content["lam"] == 0.25
    assert (content["gap"], content["passes"], content["oracle_calls"], content["seconds"]) == (0.25, 4.0, 40, 2.0)
    assert (content["train_loss"], content["test_loss"]) == (0.1, 0.4)
    assert content["train_token_error"] == 0.2
    assert "test_token_error" not in content
    assert content["letters"] == 26
    assert [entry["gap"] for entry in content["history"]] == [1.0, 0.5, 0.25]


def test_the_files(report, tmp_path):
    pytest.importorskip("matplotlib")
    drawn = []
    report.write(tmp_path / "new" / "folder", drawn.append)
    content = json.loads((tmp_path / "new" / "folder" / "report.json").read_text())
    assert set(KEYS) <= content.keys()
    assert content["versions"]["torch"] == importlib.metadata.version("torch")
    picture = (tmp_path / "new" / "folder" / "convergence.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(drawn) == 1
    assert sorted(file.name for file in (tmp_path / "new" / "folder").iterdir()) == ["convergence.png", "report.json"]


def test_evaluate_counts_what_is_wrong():
    """Words of 1 and of 3 letters: 1 of 1 wrong, and 1 of 3."""
    x = torch.zeros(2, 3, 2)
    x[0, 0, 1] = 1.0
    x[1] = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    y = torch.tensor([[0, -1, -1], [0, 0, 0]])
    batch = Batch(x, y, torch.arange(2), torch.tensor([1, 3]))
    head = LinearChain(2, 2)
    with torch.no_grad():
        head.emission.copy_(torch.eye(2))
    result = evaluate(head, head.structure, [batch], "cpu")
    loss = pytest.approx(2 / 3)
    assert result == Evaluation(loss=loss, token_error=0.5, example_error=1.0, num_examples=2, num_tokens=4)
    unscaled = Chain(2, normalize=False)
    assert evaluate(head, unscaled, [batch, batch]).loss == pytest.approx(1.0)
    weighted = batch.replace(y=WeightedLabels(y, torch.tensor([[2.0, 9.0, 9.0], [0.0, 4.0, 0.0]])))
    result = evaluate(head, unscaled, [weighted])
    assert (result.loss, result.token_error) == (3.0, 0.5)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout, self.head = nn.Dropout(0.5), LinearMulticlass(3, 2)
        self.head.eval()

    def forward(self, x):
        assert not torch.is_grad_enabled()
        assert not self.dropout.training
        return self.head(self.dropout(x))


def test_evaluate_leaves_modes_and_gradients_alone():
    model = Noisy()
    batch = Batch(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]), torch.arange(4))
    result = evaluate(model, Multiclass(2), [batch])
    assert (result.token_error, result.example_error, result.num_examples) == (0.5, 0.5, 4)
    assert (model.training, model.dropout.training, model.head.training) == (True, True, False)
    with pytest.raises(ValueError, match="batches"):
        evaluate(model, Multiclass(2), [])


def test_errors_are_counted_for_integers_by_position_only():
    assert count_errors(torch.zeros(2, 3), torch.zeros(2, 3)) is None
    assert count_errors((torch.zeros(2),), torch.zeros(2)) is None
    assert count_errors(torch.zeros(2, 2, 2, dtype=torch.int64), torch.zeros(2, 2, 2)) is None
    wrong, tokens = count_errors(torch.tensor([[1, 2], [3, -1]]), torch.tensor([[1, 1], [3, -1]]))
    assert (wrong.tolist(), tokens.tolist()) == ([1, 0], [2, 1])


def test_a_report_of_a_relaxation_claims_no_gap_of_the_problem():
    pytest.importorskip("matplotlib")
    loose = replace(certificate(), exact=False, relaxed=True)
    result = RunReport("t", [Entry(loose, 1.0)], num_weights=1, stopped_because="s")
    for place in (content := result.to_dict()), content["history"][0]:
        assert (place["primal"], place["dual"], place["gap"]) == (0.7, None, None)
        assert (place["relaxed_primal"], place["relaxed_dual"], place["relaxed_gap"]) == (0.7, 0.7 - 0.5, 0.5)
    assert "the oracle answers for a relaxation" in result.table()
    axes = result.figure().subfigs[0].axes[0]
    known = [line.get_label() for line in axes.get_lines() if not math.isnan(line.get_ydata()[0])]
    assert not axes.collections  # no band in which the optimum lies
    assert known == ["primal (upper bound)", "dual of the relaxation"]


def test_a_picture_has_the_estimates_between_certificates():
    pytest.importorskip("matplotlib")
    history = [Entry(certificate(), 1.0)]
    result = RunReport("t", history, num_weights=1, stopped_because="s", estimates=[(0.5, 0.2, 0.8), (1.0, 0.4, 0.3)])
    primal, dual, estimate, value = result.figure().subfigs[0].axes[0].get_lines()
    assert (primal.get_ydata()[0], dual.get_ydata()[0]) == (history[0].certificate.primal, history[0].certificate.dual)
    assert list(estimate.get_ydata()) == pytest.approx([1.0, 0.7])
    assert list(value.get_ydata()) == [0.2, 0.4]
