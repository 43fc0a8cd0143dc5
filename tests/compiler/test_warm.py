"""The command ``torchssvm warm``."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from torchssvm.cli import main
from torchssvm.warm import KINDS, folder_of_kernels

LATER = """
import numpy as np
from torchssvm.compiler.jit import compiling_seconds
from torchssvm.estimators import MultinomialSVC

chance = np.random.default_rng(3)
for kind in (np.asarray, __import__("scipy").sparse.csr_matrix):
    X = chance.normal(size=(300, 7)).astype(np.float32)
    y = (X @ chance.normal(size=(7, 5)) + chance.normal(size=(300, 5))).argmax(1)
    MultinomialSVC(random_state=0).fit(kind(X), y).predict(kind(X[:9]))
print(compiling_seconds())
"""
WITHOUT_LIGHTNING = """
import sys
sys.modules["lightning"] = sys.modules["jsonargparse"] = None
from torchssvm.cli import main
if __name__ == "__main__":
    main(["warm", "classes", "--processes", "1"])
"""


def test_help_lists_the_kinds(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["warm", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for kind, (serves, _) in KINDS.items():
        assert f"  {kind:10} {serves}\n" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chains", "trees"], "no kind is called chains, trees: name some of chain, label-set, "),
        (["chain", "--processes", "0"], "--processes is 0: give at least 1"),
    ],
)
def test_wrong_arguments(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["warm", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_stock_numba_keeps_nothing(monkeypatch, capsys):
    monkeypatch.setattr("torchssvm.compiler.stock.is_on", lambda: True)
    with pytest.raises(RuntimeError, match="keeps no kernels"):
        folder_of_kernels()
    with pytest.raises(SystemExit):
        main(["warm", "chain"])
    assert "stock Numba keeps no kernels on disk" in capsys.readouterr().err


@pytest.mark.slow
def test_later_processes_compile_nothing(tmp_path):
    """Without Lightning; a second call finds all kernels."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    script = tmp_path / "script.py"

    def run(code: str) -> list[str]:
        script.write_text(code)
        done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.splitlines()

    first, again = run(WITHOUT_LIGHTNING), run(WITHOUT_LIGHTNING)
    assert first[0] == again[0] == f"kernels are kept in {tmp_path / 'kernels'}"
    assert first[1].startswith("classes: ")
    assert first[1].endswith(" CPU s")
    assert again[1:] == ["classes: already kept"]
    assert run(LATER) == ["0.0"]


@pytest.mark.parametrize("kind", KINDS)
def test_problems_have_a_compiled_loop(kind):
    for make in KINDS[kind][1]:
        head, _ = make()
        assert head.compiled_form() is not None
