"""Words that may have several labels: in losses, under a Trainer and in the solver."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers")

from cases.taggers import LABELS, NO, random_batch  # noqa: E402

from torchssvm.transformers import tokenized  # noqa: E402


def sets_batch():
    """:func:`random_batch` whose words may have several labels, and the sets as lists of states."""
    batch = random_batch(longest=8)
    words = batch["labels"] != NO
    batch["labels"] = torch.zeros(*words.shape, 5, dtype=torch.bool)
    sets = [[{0, 1}, {0, 2}, {0}], [{1}, {0, 2, 3}, {0, 1, 2, 3, 4}, {0, 3}], [{0, 1, 2, 3, 4}, {4, 0}, {3, 0}]]
    for (row, place), allowed in zip(words.nonzero().tolist(), itertools.chain(*sets), strict=True):
        batch["labels"][row, place, list(allowed)] = True
    return batch, sets


@pytest.mark.parametrize("loss", ["softmax-margin", "cross-entropy"])
def test_sets_of_labels_are_summed_over(tagger, loss):
    tagger.config.loss = loss
    batch, sets = sets_batch()
    output = tagger(**batch)
    words = tagger.words(**batch)
    potentials = {name: t.detach().double() for name, t in tagger.potentials(words).tensors.items()}
    each, said = [], 0
    for row, sentence in enumerate(sets):
        emission = potentials["emission"][row]
        if loss == "cross-entropy":
            some = [(t, list(allowed)) for t, allowed in enumerate(sentence) if len(allowed) < 5]
            each.append(-sum(float(emission[t].log_softmax(0)[k].logsumexp(0)) for t, k in some))
            said += len(some)
            continue
        every, right = [], []
        for states in itertools.product(range(5), repeat=len(sentence)):
            pairs = itertools.pairwise((0, *states))
            if any(state in (2, 4) and before not in (state - 1, state) for before, state in pairs):
                continue  # none of the scheme
            score = sum(float(emission[t, k]) for t, k in enumerate(states))
            score += sum(float(potentials["transition"][row, a, b]) for a, b in itertools.pairwise(states))
            wrong = sum(state not in allowed for state, allowed in zip(states, sentence, strict=True))
            every.append(score + wrong)
            if not wrong:
                right.append(score)
        each.append(float(torch.tensor(every).logsumexp(0) - torch.tensor(right).logsumexp(0)))
    assert float(output.loss.detach()) == pytest.approx(sum(each) / (said or 3), rel=1e-4)
    single = {**batch, "labels": torch.where(batch["labels"].any(2), batch["labels"].int().argmax(2), NO)}
    assert torch.equal(output.predictions, tagger(**single).predictions)  # they do not depend on the labels


def test_one_label_in_each_set_is_that_label(tagger):
    batch = random_batch()
    sets = torch.nn.functional.one_hot(batch["labels"].clamp(min=0), 5).bool() & (batch["labels"] != NO).unsqueeze(2)
    for loss in ("softmax-margin", "cross-entropy"):
        tagger.config.loss = loss
        torch.testing.assert_close(tagger(**{**batch, "labels": sets}).loss, tagger(**batch).loss)


def test_sets_of_tags_are_tokenised(tokenizer, tagger):
    sentences = [["red", "hut"], ["rome"]]
    items = tokenized(tokenizer, sentences, [[{"B-X", "O"}, ("I-X", "O")], [LABELS]], LABELS)
    no, whole = [False] * 5, [True] * 5
    assert items[0]["labels"] == [no, [True, True, False, False, False], [True, False, True, False, False], *[no] * 3]
    assert items[1]["labels"] == [no, whole, no]
    batch = tagger.collate(items)
    assert batch["labels"].dtype == torch.bool
    assert not bool(batch["labels"][1, 2:].any())  # the padding
    assert batch["attention_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert torch.isfinite(tagger(**batch).loss)
    plain = tokenized(tokenizer, sentences, [["B-X", "I-X"], ["O"]], LABELS)
    assert plain[0]["labels"] == [NO, 1, 2, NO, NO, NO]
    with pytest.raises(ValueError, match="labels"):
        tagger.collate([items[0], plain[1]])
    for wrong in (set(), {"O", "B-Z"}):
        with pytest.raises(ValueError, match=r"tags\[0\]"):
            tokenized(tokenizer, sentences, [["O", wrong], ["O"]], LABELS)
    barred = torch.zeros_like(batch["labels"])
    barred[:, 1:3, 2] = True  # I-X at the beginning: none of the scheme
    for wrong in (batch["labels"].long(), batch["labels"][..., :4], torch.zeros_like(batch["labels"]), barred):
        with pytest.raises(ValueError):
            tagger(**{**batch, "labels": wrong})


def with_sets(items, share=0.5):
    """The items with sets in place of some labels: the label, and O."""
    random, result = np.random.default_rng(1), []
    for item in items:
        sets = [
            [state == label or (state == 0 <= label and hit) for state in range(5)]
            for label, hit in zip(item["labels"], (random.random(len(item["labels"])) < share).tolist(), strict=True)
        ]
        result.append({**item, "labels": sets})
    return result


def test_sets_of_labels_train_the_tagger(tagger, items, tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setattr(transformers.trainer, "is_datasets_available", lambda: False)
    tagger.config.loss = "softmax-margin"
    tagger.head.reset_parameters()
    torch.manual_seed(0)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=30,
        learning_rate=0.02,
        per_device_train_batch_size=8,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
    )
    sets = with_sets(items)
    trainer = transformers.Trainer(
        model=tagger, args=arguments, train_dataset=sets, eval_dataset=sets, data_collator=tagger.collate
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.5 * before
    solved = tagger.solve(sets, items, lam=0.01, progress=False)
    assert solved.certificate.relative_gap <= 0.01
    assert solved.after > 0.9
    assert tagger.solve(sets, items, progress=False).choice is not None  # another round
    for refused in (lambda: tagger.solve(items, sets, lam=0.01), lambda: tagger.calibrate(sets)):
        with pytest.raises(ValueError, match="held_out"):
            refused()
    with pytest.raises(ValueError, match="label_ids"):
        tagger.compute_metrics(SimpleNamespace(predictions=np.zeros((1, 2)), label_ids=np.zeros((1, 2, 5), bool)))
    tagger.head.reset_parameters()
    with pytest.raises(ValueError, match="dataset"):
        tagger.solve(sets, lam=0.01)
