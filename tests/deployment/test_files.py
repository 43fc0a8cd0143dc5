"""One safe file for a trained model."""

import json
import random
import subprocess
import sys
import textwrap

import pytest
import torch
from cases import every_head
from torch import nn

from torchssvm import (
    Chain,
    LinearArcs,
    LinearChain,
    LinearMulticlass,
    LinearRanking,
    Multiclass,
    Multilabel,
    SparseFeatures,
    SparseLinearChain,
    SparseLinearMultilabel,
)
from torchssvm.deployment import Decoder, load_head, load_model, save_model
from torchssvm.structures.chain import Transitions
from torchssvm.structures.multilabel import MessagePassing

safetensors = pytest.importorskip("safetensors.torch")


ALLOWED = Transitions(torch.ones(4, 4).bool(), first=torch.tensor([True, True, False, True]))
RULES = {"class_weight": torch.rand(4), "transitions": ALLOWED}
HEADS = every_head.HEADS | {
    "chain of rules": lambda: LinearChain(5, 4, bias=False, structure=Chain(4, normalize=False, **RULES)),
    "lists": lambda: SparseLinearChain(50, 4),
    "branch and bound": lambda: SparseLinearMultilabel(20, 3),
    "half": lambda: LinearChain(5, 4).half(),
    "bfloat16": lambda: SparseLinearChain(50, 4).bfloat16(),
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
    saved = load_head(tmp_path / "model.safetensors")
    assert type(saved.head) is type(trained)
    assert saved.structure.same_as(trained.structure)
    assert (saved.labels, saved.vocabulary) == (None, None)
    for name, weight in trained.state_dict().items():
        assert torch.equal(saved.head.state_dict()[name], weight)
        assert saved.head.state_dict()[name].dtype == weight.dtype


@pytest.mark.parametrize("trained", ["chain of rules"], indirect=True)
def test_a_decoder_with_another_structure_and_labels(trained: nn.Module, tmp_path) -> None:
    path = tmp_path / "new" / "model.safetensors"
    save_model(path, trained, Chain(4), labels=["a", "b", "ü", "d"])
    decoder = load_model(path)
    x = torch.randn(3, 6, 5)
    assert decoder.structure.transitions is None
    assert decoder.labels == ["a", "b", "ü", "d"]
    assert torch.equal(decoder(x), Chain(4).decode(trained(x)))


@pytest.mark.parametrize("trained", ["branch and bound"], indirect=True)
def test_label_sets_of_branch_and_bound_are_read_as_a_head(trained: nn.Module, tmp_path) -> None:
    save_model(tmp_path / "sets", trained)
    with pytest.raises(TypeError, match="structure="):
        load_model(tmp_path / "sets")
    saved = load_head(tmp_path / "sets")
    Decoder(saved.head, Multilabel(3, decoder=MessagePassing()))


def test_probabilities_need_a_temperature(tmp_path) -> None:
    save_model(tmp_path / "model", LinearMulticlass(5, 3))
    with pytest.raises(ValueError, match="temperature"):
        load_head(tmp_path / "model").marginals(torch.ones(2, 5))
    save_model(tmp_path / "ranking", LinearRanking(5))
    with pytest.raises(NotImplementedError, match="Ranking"):
        load_head(tmp_path / "ranking").marginals(torch.ones(2, 3, 5))


@pytest.mark.slow
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
        labels = tagger(SparseFeatures(torch.tensor({columns.tolist()})))
        wrong = sorted({{"lightning", "pytorch_lightning", "sklearn", "onnx"}} & set(sys.modules))
        print(json.dumps([labels.tolist(), wrong, tagger.labels, len(tagger.vocabulary)]))
    """
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=True, capture_output=True, text=True, cwd=tmp_path
    ).stdout
    result, imported, labels, size = json.loads(out)
    assert result == trained.structure.decode(trained(SparseFeatures(columns))).tolist()
    assert imported == []
    assert (labels, size) == (list("abcd"), 50)


def header(path, **changes) -> None:
    """Write the file again with other entries of its header."""
    with safetensors.safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()["torchssvm"]) | changes
    safetensors.save_file(safetensors.load_file(path), path, {"torchssvm": json.dumps(content)})


def of_safetensors(path, **metadata: str) -> None:
    safetensors.save_file({"weight": torch.zeros(2)}, path, metadata)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"no model at all"),
        lambda path: path.write_bytes(path.read_bytes()[:-8]),
        of_safetensors,
        lambda path: of_safetensors(path, torchssvm="{"),
        lambda path: header(path, format=3),
        lambda path: header(path, labels=["c", "b", "a"]),
        lambda path: header(path, format=1, head={"class": "os.system", "arguments": {}}),
        lambda path: header(path, format=1, head=3),
    ],
)
def test_files_that_are_refused(damage, tmp_path) -> None:
    path = tmp_path / "model"
    save_model(path, LinearMulticlass(5, 3), labels=["a", "b", "c"])
    damage(path)
    with pytest.raises(ValueError, match="model"):
        load_model(path)


class Subclass(LinearMulticlass):
    """A head that no file can name."""


CLASSES, LISTS = LinearMulticlass(5, 3), SparseLinearChain(5, 3)


@pytest.mark.parametrize(
    ("head", "arguments", "argument"),
    [
        (Subclass(5, 3), {}, "head=Subclass"),
        (CLASSES, {"labels": "abc"}, "labels="),
        (CLASSES, {"labels": [1, 2, 3]}, "labels="),
        (CLASSES, {"vocabulary": {"a": "b"}}, "vocabulary"),
        (CLASSES, {"vocabulary": {"a": 0}}, "vocabulary"),
        (CLASSES, {"temperature": 0.0}, "temperature="),
        (CLASSES, {"features": nn.Identity()}, "features="),
        (LISTS, {"labels": ["a"]}, "labels"),
        (LISTS, {"labels": ["a", "b", "a"]}, "labels="),
        (LISTS, {"vocabulary": {"\ud800": 0}}, "ud800"),
        (LISTS, {"vocabulary": {"a": -1}}, "vocabulary"),
        (LISTS, {"structure": Multiclass(3)}, "head=SparseLinearChain"),
        (LinearArcs(5), {"labels": ["a"]}, "Arborescence"),
        (LinearArcs(5, num_labels=2), {"labels": ["a"]}, "labels has 1"),
    ],
)
def test_what_is_not_saved_leaves_the_old_file(head, arguments, argument, tmp_path) -> None:
    path, model = tmp_path / "model", head
    save_model(path, CLASSES)
    before = path.read_bytes()
    if "features" in arguments:
        model = nn.Module()
        model.head, model.features = head, arguments.pop("features")
    with pytest.raises((TypeError, ValueError), match=argument):
        save_model(path, model, **arguments)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_every_change_is_refused(tmp_path) -> None:
    path, head = tmp_path / "model", SparseLinearChain(4, 4, structure=Chain(4, transitions=ALLOWED))
    for weight in head.parameters():
        nn.init.normal_(weight)
    save_model(path, head, labels=list("abcd"), vocabulary={"x": 2})
    tensors = {name: each.clone() for name, each in safetensors.load_file(path).items()}  # no views of the file
    with safetensors.safe_open(path, framework="pt") as file:
        content = json.loads(file.metadata()["torchssvm"])

    def write(content, tensors) -> None:
        safetensors.save_file(tensors, path, {"torchssvm": json.dumps(content)})

    for name, tensor in tensors.items():  # the matrix of emissions is square
        changed = tensor.flip(0) if tensor.ndim == 1 else tensor.T.contiguous()
        if tensor.shape == changed.shape and torch.equal(tensor, changed):
            continue
        write(content, tensors | {name: changed})
        with pytest.raises(ValueError, match=r"model (was changed|is damaged)"):
            load_head(path)
    write({name: value for name, value in content.items() if name != "seal"} | {"format": 1}, tensors)
    assert torch.equal(load_head(path).head.emission, head.emission)  # an older file


@pytest.mark.parametrize("size", [None, 0])
def test_a_loaded_model_is_no_view_of_its_file(size, tmp_path) -> None:
    path, head = tmp_path / "model", SparseLinearChain(50, 4)
    nn.init.normal_(head.emission)
    save_model(path, head, vocabulary={"x": 2})
    saved = load_head(path)
    with open(path, "r+b") as file:  # as cp does over an existing file
        file.write(bytes(path.stat().st_size))
        file.truncate(size)
    assert torch.equal(saved.head.emission, head.emission)
    assert saved.vocabulary == {"x": 2}


def test_a_file_with_another_byte_gives_a_model_or_an_error_that_names_it(tmp_path) -> None:
    path, chance = tmp_path / "model", random.Random(0)
    save_model(path, SparseLinearChain(3, 2), labels=["a", "ü"], vocabulary={"a": 0, "ü": 1})
    whole, unnamed = path.read_bytes(), 0
    for _ in range(150):
        data = bytearray(whole)
        data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
        try:
            load_model(path)
        except ValueError as error:
            unnamed += not str(error).startswith(str(path))
    assert not unnamed
