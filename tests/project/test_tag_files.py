"""The commands train, tag and eval: from files to files, and errors of one line."""

import io
import re
import sys
from pathlib import Path

import pytest

from torchssvm import cli
from torchssvm.cli import FITTING, TASKS
from torchssvm.deployment import load_model

ENTITIES = """Anna B-PER
Berg I-PER
sleeps O
. O

She O
likes O
Rome B-LOC
. O
"""
PLAIN = "the\tDT\ncat\tNN\n\na\tDT\ndog\tNN\n"
PARTS = "the D x\ncat N y\n\na D x\ndog N y\n"


@pytest.fixture
def write(tmp_path):
    def make(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return make


def test_chunks_are_trained_tagged_and_measured(write, tmp_path, capsys):
    model, train = str(tmp_path / "model.safetensors"), write("train.txt", ENTITIES)
    cli.main(["train", train, "--model", model, "--test", train])
    shown = capsys.readouterr().out
    assert "sentences 2" in shown
    assert "primal" in shown
    assert "100.00" in shown
    cli.main(["eval", "-m", model, train])
    assert shown.endswith(capsys.readouterr().out)
    cli.main(["tag", "-m", model, write("new.txt", "Anna\nBerg\n\nRome\n")])
    assert capsys.readouterr().out == "Anna\tB-PER\nBerg\tI-PER\n\nRome\tB-LOC\n\n"
    assert sorted(load_model(model).labels) == ["B-LOC", "B-PER", "I-PER", "O"]


def test_other_tags_and_standard_input(write, tmp_path, capsys, monkeypatch):
    model, train = str(tmp_path / "model.safetensors"), write("train.txt", PLAIN)
    cli.main(["train", train, "-m", model, "-c", "10", "-e", train])
    assert "100.00 % of 4 tags are right" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the\ndog\n")))
    cli.main(["tag", "-m", model])
    assert capsys.readouterr().out == "the\tDT\ndog\tNN\n\n"


def test_a_tag_that_is_no_chunk_is_named(write, tmp_path, capsys):
    train = write("train.txt", ENTITIES.replace("I-PER", "I_PER"))
    cli.main(["train", train, "-m", str(tmp_path / "model.safetensors")])
    assert "train.txt, line 2 has 'I_PER'" in capsys.readouterr().out


def test_parts_of_speech_are_asked_for_again(write, tmp_path, capsys):
    model, train = str(tmp_path / "model.safetensors"), write("train.txt", PARTS)
    cli.main(["train", train, "-m", model, "--pos", "1"])
    assert "pos[0]=D" in load_model(model).vocabulary
    with pytest.raises(SystemExit):
        cli.main(["eval", "-m", model, train])
    assert "--pos 1" in capsys.readouterr().err
    cli.main(["train", train, "-m", model])
    with pytest.raises(SystemExit):
        cli.main(["eval", "-m", model, train, "--pos", "1"])
    assert "leave out --pos" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["train", "missing.txt", "-m", "model.safetensors"], "missing.txt"),
        (["train", "{plain}", "-m", "model.safetensors", "-c", "-1"], "C=-1"),
        (["tag", "-m", "{plain}", "{plain}"], "plain.txt"),
        (["train", "{plain}", "-m", "model.safetensors", "--pos", "1"], "different columns"),
        (["train", "{words}", "-m", "model.safetensors"], "different columns"),
    ],
)
def test_errors_are_one_line(args, error, write, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = write("plain.txt", PLAIN)
    with pytest.raises(SystemExit) as ended:
        cli.main([one.format(plain=plain, words=write("words.txt", "a\nb\n")) for one in args])
    shown = capsys.readouterr().err
    assert ended.value.code == 1
    assert error in shown
    assert shown.count("\n") == 1
    assert not Path("model.safetensors").exists()


def test_all_commands_are_listed(capsys):
    for given, status in ((["--help"], 0), (["-h"], 0), ([], 2), (["trian"], 2)):
        try:
            cli.main(given)
            end = 0
        except SystemExit as error:
            end = error.code
        shown = capsys.readouterr()
        text = shown.err if status else shown.out
        assert end == status
        assert not (shown.out if status else shown.err)
        assert ("'trian' is no command" in text) == (given == ["trian"])
        for name in (*TASKS, *FITTING):
            assert re.search(rf"\b{name}\b", text), (given, name)
    table = (Path(__file__).parents[2] / "docs" / "install.md").read_text()
    assert all(f"`torchssvm {name}`" in table for name in (*TASKS, FITTING[0]))
    assert all(f"`{name}`" in table for name in FITTING[1:])
