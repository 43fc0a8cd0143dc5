"""One safe file for a trained model."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from torchssvm import (
    Chain,
    LinearArcs,
    LinearChain,
    LinearEdges,
    LinearGraph,
    LinearMulticlass,
    LinearMultilabel,
    LinearTree,
    MessagePassing,
    Multiclass,
    Multilabel,
    SparseFeatures,
    SparseLinearChain,
    SparseLinearMultilabel,
    Transitions,
)

safetensors = pytest.importorskip("safetensors.torch")

from torchssvm.deployment import load_head, load_model, save_model  # noqa: E402

ALLOWED = Transitions(torch.ones(4, 4).bool(), first=torch.tensor([True, True, False, True]))
HEADS = {
    "chain": lambda: LinearChain(5, 4),
    "chain of rules": lambda: LinearChain(
        5, 4, bias=False, structure=Chain(4, normalize=False, class_weight=torch.rand(4), transitions=ALLOWED)
    ),
    "chain by position": lambda: LinearChain(5, 4, positions=6, boundary=False),
    "lists": lambda: SparseLinearChain(50, 4),
    "classes": lambda: LinearMulticlass(
        5, 3, structure=Multiclass(3, torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]]))
    ),
    "tree": lambda: LinearTree(5, 4, [-1, 0, 0]).double(),
    "label sets": lambda: LinearMultilabel(5, 6, structure=Multilabel(6, decoder=MessagePassing(50))),
    "branch and bound": lambda: SparseLinearMultilabel(20, 3),
    "cuts": lambda: LinearGraph(3, 2),
    "parsing": lambda: LinearArcs(30),
    "matchings": lambda: LinearEdges(4),
}


@pytest.fixture
def trained(request: pytest.FixtureRequest) -> nn.Module:
    head = HEADS[request.param]()
    with torch.no_grad():
        for weight in head.parameters():
            weight.normal_()
    return head


@pytest.mark.parametrize("trained", HEADS, indirect=True)
def test_the_same_head_again(trained: nn.Module, tmp_path) -> None:
    save_model(tmp_path / "model.safetensors", trained)
    found = load_head(tmp_path / "model.safetensors")
    assert type(found.head) is type(trained)
    assert found.structure.same_as(trained.structure)
    assert (found.labels, found.vocabulary) == (None, None)
    for name, weight in trained.state_dict().items():
        assert torch.equal(found.head.state_dict()[name], weight)
        assert found.head.state_dict()[name].dtype == weight.dtype


@pytest.mark.parametrize("trained", ["chain of rules"], indirect=True)
def test_a_decoder_with_another_structure_and_labels(trained: nn.Module, tmp_path) -> None:
    path = tmp_path / "new" / "model.safetensors"
    save_model(path, trained, Chain(4), labels=["a", "b", "ü", "d"])
    decoder = load_model(path)
    x = torch.randn(3, 6, 5)
    assert decoder.structure.transitions is None
    assert decoder.labels == ["a", "b", "ü", "d"]
    assert torch.equal(decoder(x), Chain(4).decode(trained(x)))


@pytest.mark.parametrize("trained", ["cuts"], indirect=True)
def test_what_has_no_decoder_is_read_as_a_head(trained: nn.Module, tmp_path) -> None:
    save_model(tmp_path / "cuts", trained)
    with pytest.raises(TypeError, match=r"load_head\(path\) reads such a model"):
        load_model(tmp_path / "cuts")


@pytest.mark.parametrize("trained", ["lists"], indirect=True)
def test_in_a_fresh_process_without_lightning_or_scikit_learn(trained: nn.Module, tmp_path) -> None:
    path = tmp_path / "tagger.safetensors"
    vocabulary = {f"word={i}": i for i in range(50)}
    save_model(path, trained, labels=list("abcd"), vocabulary=vocabulary)
    columns = torch.randint(-1, 50, (2, 5, 3))
    program = f"""
        import json, sys, torch
        from torchssvm import SparseFeatures
        from torchssvm.deployment import load_model
        tagger = load_model({str(path)!r})
        found = tagger(SparseFeatures(torch.tensor({columns.tolist()})))
        wrong = sorted({{"lightning", "pytorch_lightning", "sklearn", "onnx"}} & set(sys.modules))
        print(json.dumps([found.tolist(), wrong, tagger.labels, len(tagger.vocabulary)]))
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=True, capture_output=True, text=True, cwd=tmp_path
    ).stdout
    found, imported, labels, size = json.loads(out)
    assert found == trained.structure.decode(trained(SparseFeatures(columns))).tolist()
    assert imported == []
    assert (labels, size) == (list("abcd"), 50)


def header(path, **changes) -> None:
    """Write the file again with other entries of its header."""
    with safetensors.safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()["torchssvm"]) | changes
    safetensors.save_file(safetensors.load_file(path), path, {"torchssvm": json.dumps(content)})


def test_files_that_are_refused(tmp_path) -> None:
    path = tmp_path / "model"
    with pytest.raises(FileNotFoundError):
        load_model(path)
    path.write_bytes(b"no model at all")
    with pytest.raises(ValueError, match="is damaged, or not a file of save_model"):
        load_model(path)
    safetensors.save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="not one of save_model"):
        load_model(path)
    safetensors.save_file({"weight": torch.zeros(2)}, path, {"torchssvm": "{"})
    with pytest.raises(ValueError, match="its header cannot be read"):
        load_model(path)
    for changes, words in [
        ({"format": 2}, "has format 2, and this version of torchssvm reads format 1"),
        ({"head": {"class": "os.system", "arguments": {}}}, "names the class 'os.system'"),
        ({"head": {"class": "LinearMulticlass", "arguments": {"in_features": 5, "num_classes": 4}}}, "size mismatch"),
        ({"labels": ["a"]}, "labels has 1 names, and Multiclass has 3"),
        ({"head": 3}, "3 is no recipe"),
    ]:
        save_model(path, LinearMulticlass(5, 3), labels=["a", "b", "c"])
        header(path, **changes)
        with pytest.raises(ValueError, match=words):
            load_model(path)
    save_model(path, LinearMulticlass(5, 3))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="is damaged"):
        load_model(path)


def test_what_is_not_saved_leaves_the_old_file(tmp_path) -> None:
    path = tmp_path / "model"
    save_model(path, LinearMulticlass(5, 3))
    before = path.read_bytes()

    class Own(LinearMulticlass):
        pass

    for head, arguments, words in [
        (Own(5, 3), {}, r"head=Own cannot be made again from a file.*state_dict\(\)"),
        (LinearMulticlass(5, 3), {"labels": "abc"}, "labels must be a list of strings"),
        (LinearMulticlass(5, 3), {"labels": [1, 2, 3]}, "labels must be a list of strings"),
        (LinearMulticlass(5, 3), {"vocabulary": {"a": "b"}}, "vocabulary must be a mapping"),
    ]:
        with pytest.raises(TypeError, match=words):
            save_model(path, head, **arguments)
    for arguments, words in [
        ({"labels": ["a"]}, "labels has 1 names, and Multiclass has 3"),
        ({"vocabulary": {"a": -1}}, "vocabulary holds the column -1"),
    ]:
        with pytest.raises(ValueError, match=words):
            save_model(path, LinearMulticlass(5, 3), **arguments)
    model = nn.Module()
    model.head, model.features = LinearMulticlass(5, 3), nn.Identity()
    with pytest.raises(TypeError, match="features=Identity below the head are not saved here"):
        save_model(path, model)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
