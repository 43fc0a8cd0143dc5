"""Install what was built, and every extra alone, each in a fresh environment, and use what it adds.

    python .ci/extras.py DIST [--only EXTRA ...]

DIST holds one wheel and one source distribution. The first environment has the wheel and the packages it requires:
there ``torchssvm info`` and README's ten lines run, the compiled loop trains, and no extra's feature works. Every extra
goes into a copy of that environment (hard links, so a copy takes a second), where its feature must work. Prints a table
of what each takes on disk, and fails with the first error. An extra without an entry in ``CHECKS`` is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CORE = """
import subprocess
import sys
from pathlib import Path

for command in ([sys.executable, "-m", "torchssvm"], [str(Path(sys.executable).with_name("torchssvm"))]):
    told = subprocess.run([*command, "info"], check=True, capture_output=True, text=True).stdout
    assert told.startswith("torchssvm ") and "stock Numba: no" in told, told

from torchssvm import CompiledBCFW, LinearChain, make_trainer, solve
from torchssvm.datasets import OCR

words = OCR(split="train", size="small")
assert isinstance(make_trainer(LinearChain(128, 26), words, lam=1.0), CompiledBCFW)
certificate = solve(LinearChain(128, 26), words, lam=1.0)
assert 0.0 <= certificate.gap <= 0.01 * certificate.primal, certificate
"""
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEN_LINES = re.findall(r"## Ten lines\n+```python\n(.*?)```", README, re.DOTALL)[0]

# What shows that the extra's feature works. Without the extra each of these must fail.
CHECKS = {
    "lightning": """
from torchssvm.lightning import StructuredSVM
import lightning as L
from torchssvm import LinearChain
from torchssvm.cli import main
from torchssvm.datasets import OCRData

trainer = L.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(StructuredSVM(LinearChain(128, 26), lam=0.1), datamodule=OCRData(size="small", batch_size=64))
""",
    "plot": """
from torchssvm.solvers.figures import new_figure

new_figure((2.0, 2.0)).savefig("picture.png")
""",
    "graphcut": """
import torch
from torchssvm.structures import min_cut

node = torch.tensor([[-3.0, 1.0, 2.0]])
assert min_cut(node, torch.tensor([[5.0, 0.0]]), torch.tensor([[[0, 1], [1, 2]]])).tolist() == [[0, 0, 1]]
""",
    "scipy": """
import torch
from torchssvm import Decisions
from torchssvm.structures.decisions import IntegerProgram

knapsack = IntegerProgram([[3, 2, 2]], [4], maximize=True)
assert Decisions(knapsack).decode(torch.tensor([[5.0, 3.0, 3.0]])).tolist() == [[0, 1, 1]]
""",
    "triton": """
import os
os.environ["TRITON_INTERPRET"] = "1"
import torch
from torchssvm.structures.chain.oracle import viterbi
from torchssvm.structures.chain.triton import viterbi_triton

scores = torch.randn(2, 3, 4), torch.randn(4, 4)
assert torch.equal(viterbi_triton(*scores, None)[0], viterbi(*scores)[0])
""",
    "torch-struct": """
import torch
import torch_struct
from torchssvm import Potentials, TorchStruct

chains = TorchStruct(torch_struct.LinearChainCRF)
assert chains.argmax(Potentials(torch.randn(2, 3, 4, 4))) is not None
""",
    "scikit-image": """
import numpy as np
from torchssvm.datasets.images.superpixels import scikit_image, superpixels

scikit_image()
assert superpixels(np.random.default_rng(0).random((32, 32, 3)), 9, 10.0).shape == (32, 32)
""",
    "data": """
from pathlib import Path
from torchssvm.datasets import Multilabel, read_conllu

Path("a.conllu").write_text("\\n".join(f"{i}\\tw\\tw\\tX\\t_\\t_\\t{i - 1}\\t_\\t_\\t_" for i in (1, 2)) + "\\n\\n")
assert len(read_conllu("a.conllu")) == 1
Path("a.libsvm").write_text("0,1 1:1.5 3:1\\n1 2:2\\n")
assert len(Multilabel.from_libsvm("a.libsvm", 3, 2)) == 2
""",
    "sklearn": """
from torchssvm.estimators import MultinomialSVC
from sklearn.datasets import load_digits

X, y = load_digits(return_X_y=True)
model = MultinomialSVC(C=1.0, tol=0.1).fit(X[:200] / 16, y[:200])
assert model.certificate_.relative_gap <= 0.1
""",
    "transformers": """
from torchssvm.transformers import StructuredTagger, StructuredTaggerConfig
import torch
from transformers import BertConfig

sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
tagger = StructuredTagger(StructuredTaggerConfig(BertConfig(**sizes), ["O", "B-X", "I-X"], "BIO")).eval()
tagger.save_pretrained("tagger")
ids, states = torch.tensor([[1, 2, 3]]), torch.tensor([[0, -100, 1]])
found = StructuredTagger.from_pretrained("tagger").eval()(ids, labels=states)
assert found.predictions.tolist() == [[0, -100, 0]]
""",
    "deploy": """
import torch
from torchssvm import LinearChain
from torchssvm.deployment import load_model, save_model

save_model("model.safetensors", LinearChain(4, 3), labels=["a", "b", "c"])
assert list(load_model("model.safetensors").labels) == ["a", "b", "c"]
""",
    "onnx": """
import onnx
import onnxruntime
import torch

class Classes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x).argmax(1)

module, x = Classes().eval(), torch.randn(5, 4)
torch.onnx.export(module, (x,), "classes.onnx", dynamo=True, verbose=False)
session = onnxruntime.InferenceSession("classes.onnx")
(found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
assert found.tolist() == module(x).tolist()
""",
    "docs": """
from pathlib import Path
from sphinx.cmd.build import main
import furo, myst_parser, sphinx_copybutton, sphinx_design

Path("conf.py").write_text("extensions = ['myst_parser', 'sphinx_design']\\nhtml_theme = 'furo'\\n")
Path("index.md").write_text("# One page\\n")
assert main(["-W", "-q", "-b", "html", ".", "site"]) == 0
""",
    "notebooks": """
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

notebook = new_notebook(cells=[new_code_cell("import torchssvm; print(torchssvm.__name__)")])
NotebookClient(notebook, kernel_name="python3").execute()
assert notebook.cells[0].outputs[0].text == "torchssvm\\n"
""",
    "bench": """
import clarabel
import pycrfsuite
import qpsolvers
import seqeval.metrics
import sklearn_crfsuite
import torch
import torchcrf

assert "clarabel" in qpsolvers.available_solvers
assert torchcrf.CRF(3, batch_first=True).decode(torch.zeros(1, 2, 3))
features, tags = [[{"a": 1.0}, {"b": 1.0}]], [["X", "Y"]]
assert sklearn_crfsuite.CRF().fit(features, tags).predict(features) is not None
""",
    "test": """
import subprocess, sys

for tool in ("build", "mypy", "pytest", "ruff", "twine"):
    subprocess.run([sys.executable, "-m", tool, "--version"], check=True, stdout=subprocess.DEVNULL)
import hypothesis, qpsolvers, scipy, sklearn, xdist
assert "quadprog" in qpsolvers.available_solvers
""",
}


NOT_NAMED = {
    "torch-struct",
    "triton",
    "onnx",
    "docs",
    "notebooks",
    "bench",
    "test",
}  # no error of the package can name these: the user imports them


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command; an error shows what it wrote."""
    result = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(map(str, command))[:300]}\n{result.stdout}{result.stderr}failed")


def size(environment: Path) -> int:
    """Bytes on disk of the packages of an environment."""
    (packages,) = environment.glob("lib/python*/site-packages")
    return sum(file.lstat().st_blocks * 512 for file in packages.rglob("*") if file.is_file())


class Environments:
    """Virtual environments in a folder, all of them copies of the first.

    Args:
        folder: Where they are made.
        wheel: What is installed.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, self.wheel = folder, wheel
        self.core = folder / "core"

    def make_core(self, what: Path) -> None:
        """The wheel, or the source distribution, with the packages that it requires."""
        run(sys.executable, "-m", "venv", self.core)
        self.install(self.core, str(what))

    def install(self, environment: Path, what: str, *options: str) -> None:
        """Install into one environment, with the versions of ``constraints.txt``."""
        pip = (environment / "bin/python", "-m", "pip")
        run(*pip, "install", "-q", "-c", ROOT / "constraints.txt", *options, what)
        run(*pip, "check")

    def copy(self, name: str) -> Path:
        """Another environment with all of the first; pip replaces files and never writes into one."""
        run("cp", "-al", self.core, self.folder / name)
        return self.folder / name

    def extra(self, name: str) -> int:
        """Install an extra alone, and use it; the bytes that it takes."""
        refusal = self.use(self.core, CHECKS[name])
        if not refusal:
            raise SystemExit(f"{name}: its feature works without it")
        if name not in NOT_NAMED and f"torchssvm[{name}]" not in refusal:
            raise SystemExit(f"{name}: the error without it does not name torchssvm[{name}]:\n{refusal}")
        alone = self.copy(name)
        self.install(alone, f"{self.wheel}[{name}]")
        took = size(alone) - size(self.core)
        if error := self.use(alone, CHECKS[name]):
            raise SystemExit(f"{name}: {error}")
        shutil.rmtree(alone)
        return took

    def use(self, environment: Path, program: str) -> str:
        """Run a program outside the clone; its error, empty if there is none."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            command = [environment / "bin/python", "-W", "ignore", "-c", program]
            result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        return result.stderr or f"exit {result.returncode}" if result.returncode else ""


def extras(wheel: Path) -> Iterator[str]:
    """The names of the extras in the metadata of a wheel, but for ``all``."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        found = HeaderParser().parsestr(archive.read(metadata).decode())
    return (name for name in found.get_all("Provides-Extra") if name != "all")


def main() -> None:
    """Check the files of a folder, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--only", nargs="*", help="these extras; default: every one")
    options = parser.parse_args()
    (wheel,) = options.dist.resolve().glob("torchssvm-*.whl")
    (source,) = options.dist.resolve().glob("torchssvm-*.tar.gz")
    names = list(extras(wheel)) if options.only is None else options.only
    if missing := [name for name in names if name not in CHECKS]:
        raise SystemExit(
            f"CHECKS of {Path(__file__).name} has no entry for the extras {missing}: say what shows that each works"
        )
    with tempfile.TemporaryDirectory() as folder:
        made = Environments(Path(folder), wheel)
        made.make_core(wheel)
        required = size(made.core)
        if error := made.use(made.core, CORE + TEN_LINES):  # compiles; the copies share the compiled kernels
            raise SystemExit(f"the wheel alone: {error}")
        from_source = made.copy("source")
        made.install(from_source, str(source), "--force-reinstall", "--no-deps", "--no-build-isolation")
        if error := made.use(from_source, CORE):
            raise SystemExit(f"the source distribution: {error}")
        rows = {"(none: torch, numpy, Numba)": required}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            rows.update(zip(names, pool.map(made.extra, names), strict=True))
    print("| extra | megabytes |\n| --- | ---: |")
    for name, took in rows.items():
        print(f"| {name} | {took / 1e6:.0f} |")


if __name__ == "__main__":
    main()
