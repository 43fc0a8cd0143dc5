"""The documentation site: `python -m sphinx -W --keep-going -b html docs docs/_build/html`."""

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

project = "torchssvm"
author = "the torchssvm authors"
copyright = "the torchssvm authors, Apache-2.0"
release = version = importlib.metadata.version("torchssvm")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "torchssvm"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}


def _leave_out_empty_globs(app: Sphinx, docname: str, source: list[str]) -> None:
    """Leave patterns that match no page out of toctrees: that warning has no name to suppress."""
    lines = source[0].splitlines()
    folder = Path(app.srcdir, docname).parent
    empty = {line for line in lines if line.endswith("*") and " " not in line and not any(folder.glob(f"{line}.md"))}
    source[0] = "\n".join(line for line in lines if line not in empty)


def _without_foreign_words(app: Sphinx, what: str, name: str, thing: Any, options: object, lines: list[str]) -> None:
    """Drop the docstring that a method without one inherits from torch, Lightning or scikit-learn."""
    if what != "method" or getattr(thing, "__doc__", None):
        return
    module, kind, method = name.rsplit(".", 2)
    for base in getattr(sys.modules.get(module), kind, object).__mro__[1:]:
        if getattr(vars(base).get(method), "__doc__", None):
            if not base.__module__.startswith("torchssvm"):
                lines.clear()
            return


def _no_types(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Keep napoleon from taking what stands before a colon for a type: types are in annotations.

    It looks at the first line of an attribute, and of what is returned; an empty comment is there now.
    """
    if what in ("attribute", "data", "property"):
        lines[:0] = ["..", ""]
    for place in reversed([place for place, line in enumerate(lines) if line in ("Returns:", "Yields:")]):
        lines[place + 1 : place + 1] = ["    ..", ""]


def _formula(translator: Any, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers draw without a script or a network."""
    translator.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("source-read", _leave_out_empty_globs)
    app.connect("autodoc-process-docstring", _without_foreign_words, priority=50)
    app.connect("autodoc-process-docstring", _no_types, priority=100)  # before napoleon
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
