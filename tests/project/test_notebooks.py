"""The notebooks have the code and the text of the pages, and they run."""

import runpy
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
ROOT = Path(__file__).parents[2]
NEEDS = {
    "tagging": ["sklearn", "sklearn_crfsuite", "safetensors"],
    "transformer": ["transformers", "accelerate", "all_minilm_l6_v2"],
    "decisions": ["sklearn"],
}
script = runpy.run_path(str(ROOT / "docs" / "notebooks" / "make.py"))


@pytest.mark.parametrize("name", script["NOTEBOOKS"])
def test_a_notebook_is_as_its_pages(name: str) -> None:
    made = script["make"](name)
    saved = nbformat.read(ROOT / "docs" / "notebooks" / f"{name}.ipynb", as_version=4)
    nbformat.validate(made)
    sources = [[(cell.cell_type, cell.source) for cell in notebook.cells] for notebook in (saved, made)]
    assert sources[0] == sources[1], "a page changed: run python docs/notebooks/make.py"
    assert any(cell.cell_type == "code" and cell.outputs for cell in saved.cells)
    for cell in made.cells:
        for link in script["_LINK"].finditer(cell.source) if cell.cell_type == "markdown" else ():
            assert (ROOT / "docs" / "notebooks" / link[1]).exists(), link[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", script["NOTEBOOKS"])
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    client = pytest.importorskip("nbclient")
    for package in ("ipykernel", *NEEDS[name]):
        pytest.importorskip(package)
    try:
        script["run"](script["make"](name), tmp_path)
    except client.exceptions.CellExecutionError as error:
        if error.ename != "FileNotFoundError":
            raise
        pytest.skip(error.evalue)  # CoNLL-2000 is not on this machine
