"""The command ``torchssvm warm``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the processes of a process are listed by Linux")
def test_no_process_outlives_a_killed_command(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_LIGHTNING)
    command = subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE, text=True)
    assert command.stdout.readline().startswith("kernels are kept in")
    children, until = [], time.monotonic() + 60
    while len(children) < 2 and time.monotonic() < until:  # the worker, and the tracker of resources
        listed = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text()
        children = [int(child) for child in listed.split()]
        time.sleep(0.1)
    assert len(children) == 2
    time.sleep(3.0)  # the worker imports, or compiles
    command.send_signal(signal.SIGKILL)
    command.wait()
    until = time.monotonic() + 60
    while any(map(_runs, children)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(_runs, children))


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("kind", KINDS)
def test_problems_have_a_compiled_loop(kind):
    for make in KINDS[kind][1]:
        head, _ = make()
        assert head.compiled_form() is not None
