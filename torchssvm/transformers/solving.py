"""The head of a tagger, trained and calibrated on features that the encoder computes once."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch

from torchssvm.core.batch import in_order
from torchssvm.datasets.padded import PaddedDataset
from torchssvm.path.choose_lam import choose_lam
from torchssvm.path.lam_choice import LamChoice
from torchssvm.solvers.certificate import Certificate
from torchssvm.solvers.evaluation import evaluate
from torchssvm.solvers.schedules import Tolerance
from torchssvm.solvers.solver import Solver
from torchssvm.solvers.temperature import fit_temperature
from torchssvm.solvers.training import solve
from torchssvm.transformers.batches import batches_of


class Solved(NamedTuple):
    """What came of :meth:`StructuredTagger.solve`; ``print`` shows it.

    Attributes:
        certificate: The primal, dual and gap of the new head.
        choice: Every lambda that was tried; None where it was given.
        before: The share of wrong held-out words of the head as it was; None without examples that are held out.
        after: That of the new head.
        kept: Whether the tagger has the new head.

    Example:
        >>> tagger = StructuredTagger(StructuredTaggerConfig(encoder, labels, "BIO"))
        >>> items = tokenized(tokenizer, sentences, tags, labels)
        >>> solved = tagger.solve(items, items, lam=0.01, progress=False)
        >>> solved.after, solved.kept
        (0.0, True)
    """

    certificate: Certificate
    choice: LamChoice | None
    before: float | None
    after: float | None
    kept: bool

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            return f"{self.certificate}"
        kept = "the new head is kept" if self.kept else "the head from before is kept"
        shares = f"wrong words held out: {100 * self.before:.2f} % before, {100 * self.after:.2f} % now"
        return f"{self.certificate}\n{shares}: {kept}"


@torch.no_grad()
def features_of(tagger: Any, dataset: Any, batch_size: int) -> PaddedDataset:
    """The words of a dataset, with their features on the CPU; the tagger computes them in evaluation mode.

    Raises:
        ValueError: There is no example.
    """
    if not len(dataset):
        raise ValueError("the dataset is empty: it must hold at least one sentence")
    modes = {name: module.training for name, module in tagger.named_modules()}
    tagger.eval()
    x, y, lengths = [], [], []
    try:
        for batch in batches_of(dataset, batch_size, tagger.config.encoder.pad_token_id or 0, tagger.device):
            if "labels" not in batch:
                raise ValueError("the items have no labels, which training needs: a state, or -100 where no word is")
            words = tagger.words(**batch)
            assert words.labels is not None
            x.append(words.features.float().cpu())
            y.append(words.labels.cpu())
            lengths.append(words.lengths.cpu())
    finally:
        for name, module in tagger.named_modules():
            module.training = modes[name]
    longest = max(part.shape[1] for part in y)
    whole = torch.zeros(sum(map(len, y)), longest, x[0].shape[2]), torch.full((sum(map(len, y)), longest), -1)
    begin = 0
    for features, labels in zip(x, y, strict=True):
        rows = slice(begin, begin := begin + len(labels))
        whole[0][rows, : labels.shape[1]], whole[1][rows, : labels.shape[1]] = features, labels
    return PaddedDataset(*whole, torch.cat(lengths))


def solve_head(
    tagger: Any,
    dataset: Any,
    held_out: Any,
    lam: float | None,
    batch_size: int,
    tolerance: Tolerance,
    solver: Solver | None,
    progress: bool,
) -> Solved:
    """See :meth:`StructuredTagger.solve`."""
    if held_out is None and lam is None:
        raise ValueError("held_out and lam are None: give examples to choose lam by, or lam itself")
    train = features_of(tagger, dataset, batch_size)
    head = copy.deepcopy(tagger.head).cpu()
    head.requires_grad_(True)
    head.reset_parameters()
    before = after = choice = None
    if held_out is None or lam is not None:
        assert lam is not None
        certificate = solve(head, train, lam, tolerance=tolerance, solver=solver, progress=progress)
    if held_out is not None:
        other = features_of(tagger, held_out, batch_size)
        if lam is None:
            choice = choose_lam(head, train, other, tolerance=tolerance, solver=solver, progress=progress)
            certificate = choice.best.certificate
        old = copy.deepcopy(tagger.head).cpu()
        before, after = (evaluate(each, each.structure, other).token_error for each in (old, head))
    kept = before is None or after is None or after <= before
    if kept:
        with torch.no_grad():
            for mine, new in zip(tagger.head.parameters(), head.parameters(), strict=True):
                mine.copy_(new)
    return Solved(certificate, choice, before, after, kept)


@torch.no_grad()
def calibrate(tagger: Any, held_out: Any, batch_size: int) -> float:
    """See :meth:`StructuredTagger.calibrate`."""
    head = copy.deepcopy(tagger.head).cpu()
    batches = in_order(features_of(tagger, held_out, batch_size))
    found = fit_temperature(head.structure, ((head(batch.x, batch.lengths), batch.y) for batch in batches))
    tagger.config.probability_temperature = found
    return found
