"""The README.md of a saved tagger: a model card, with the certificate of the last solve where the weights have it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from torchssvm.core.states import seal

_MARK = "<!-- torchssvm wrote this page, and writes it anew while nobody edits it: {} -->\n"


def note_solved(tagger: Any, solved: Any, held_out: int) -> None:
    """Keep the certificate of a head that was kept, and its score on so many sentences, in the configuration."""
    if solved.kept:
        names = ("lam", "num_examples", "primal", "dual", "gap")
        figures = {name: getattr(solved.certificate, name) for name in names}
        tagger.config.solved = {**figures, "score": solved.after, "held_out": held_out, "weights": _weights(tagger)}


def write_card(tagger: Any, folder: Any) -> None:
    """Write the card into a folder, unless it has a README.md that somebody else wrote or edited."""
    page = Path(folder, "README.md")
    if not page.exists() or _is_untouched(page.read_text(encoding="utf-8", errors="replace")):
        page.parent.mkdir(parents=True, exist_ok=True)
        text = _card(tagger)
        page.write_text(text + _MARK.format(_digest(text)), encoding="utf-8")


def _weights(tagger: Any) -> int:
    """A checksum of all weights that tags depend on."""
    return seal({name: each for name, each in tagger.state_dict().items() if not name.startswith("encoder.pooler.")})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_untouched(page: str) -> bool:
    text, line, rest = page.rpartition(_MARK.partition("{}")[0])
    return bool(line) and rest == _MARK.format(_digest(text)).removeprefix(line)


def _card(tagger: Any) -> str:
    config = tagger.config
    scheme = "none" if config.scheme is None else f"{config.scheme}; other sequences are never predicted"
    labels = re.sub(r"\s+", " ", ", ".join(config.labels))
    return f"""---
library_name: torchssvm
pipeline_tag: token-classification
tags:
- torchssvm
- structured-prediction
---

# A structured tagger

A linear chain over the words of a sentence, on hidden states of an encoder of type {config.encoder.model_type}.

- Scheme: {scheme}.
- Labels, {len(config.labels)}:

      {labels}

## Certificate

{_certificate(tagger)}

## Load it

```python
from torchssvm.transformers import StructuredTagger  # pip install "torchssvm[transformers]"

tagger = StructuredTagger.from_pretrained("path of this folder")
```

After `import torchssvm.transformers`, `AutoModelForTokenClassification.from_pretrained` reads it too; without the
import, Transformers does not know the model type.

"""


def _certificate(tagger: Any) -> str:
    solved = getattr(tagger.config, "solved", None)
    if solved is None or solved["weights"] != _weights(tagger):
        return "None: the head was not trained by `solve`, or weights have changed since."
    share = solved["gap"] / solved["primal"] if solved["primal"] > 0.0 else 0.0
    text = (
        f"The head was trained on the encoder's features of {solved['num_examples']:,} sentences.\n\n"
        "| λ | primal | dual | gap |\n| --- | --- | --- | --- |\n"
        f"| {solved['lam']:.6g} | {solved['primal']:.6g} | {solved['dual']:.6g} | {solved['gap']:.6g} |\n\n"
        "The primal is the objective of the head, and no head has one below the dual for the labels of this training. "
        f"The gap is {100 * share:.3g} % of the primal."
    )
    if solved["score"] is None:
        return text
    measure = "share of right words" if tagger.config.scheme is None else "F1 of spans"
    score = f"{100 * solved['score']:.2f} % on {solved['held_out']:,} held-out sentences"
    return f"{text}\n\nThe {measure} was {score}, by which the head was chosen."
