"""Texts longer than the encoder, beside a plain slow reference, on a tiny encoder with random weights."""

import copy
import random

import pytest
import torch

from torchssvm import Potentials
from torchssvm.core.marginals import marginals_at

transformers = pytest.importorskip("transformers")

from cases.taggers import LABELS, NO, WORDS, encoder_config  # noqa: E402

from torchssvm.transformers import StructuredTagger, StructuredTaggerConfig, tokenized  # noqa: E402
from torchssvm.transformers.solving import features_of  # noqa: E402
from torchssvm.transformers.tagging import _chunks, _potentials, _probabilities, _Text  # noqa: E402
from torchssvm.transformers.windows import Pieces, cut, read  # noqa: E402

LIMIT = 24  # of the tiny encoder


@pytest.fixture
def tagger():
    torch.manual_seed(0)
    made = StructuredTagger(StructuredTaggerConfig(encoder_config(), LABELS, "BIO")).eval()
    for parameter in made.head.parameters():  # the scores of the ends too
        torch.nn.init.normal_(parameter)
    return made


def text_of(seed, count):
    """Words of one to seven pieces."""
    random.seed(seed)
    return ["".join(random.choices("abcxyz", k=random.choice([1, 2, 3, 7]))) for _ in range(count)]


def spaced(sizes):
    """A text whose words have so many pieces, between two special ones."""
    bounds = [1]
    for size in sizes:
        bounds.append(bounds[-1] + size)
    ids = list(range(bounds[-1] + 1))
    return Pieces({"input_ids": ids}, bounds, bounds[:-1], [(word, word + 1) for word in range(len(sizes))])


def windows_by_hand(sizes, room, stride):
    """First and last word of every window, and the window of each word: everything is counted anew."""
    windows, begin, total = [], 0, len(sizes)
    while True:
        end = begin
        while end < total and sum(sizes[begin : end + 1]) <= room:
            end += 1
        windows.append((begin, end))
        if end == total:
            break
        begin = end  # the next one shows as many words before as it may, and at least one more behind
        while begin and sum(sizes[begin - 1 : end]) <= stride and sum(sizes[begin - 1 : end + 1]) <= room:
            begin -= 1
    best = []
    for word in range(total):
        far = {}
        for number, (first, last) in enumerate(windows):
            if first <= word < last:
                far[number] = min(sum(sizes[first:word]), sum(sizes[word + 1 : last]))
        best.append(min(number for number in far if far[number] == max(far.values())))
    return windows, best


@pytest.mark.parametrize("seed", range(40))
def test_windows_are_those_of_a_slow_count(seed):
    random.seed(seed)
    room = random.randint(4, 20)
    sizes = random.choices(range(1, random.randint(2, room + 1)), k=random.randint(1, 60))
    stride, pieces = random.randint(0, room - 1), spaced(sizes)
    result = cut(pieces, "text", room + 2, stride)
    windows, best = windows_by_hand(sizes, room, stride)
    assert [word for window in result for word in window.words] == list(range(len(sizes)))
    used = sorted(set(best))
    assert len(result) == len(used)
    for window, number in zip(result, used, strict=True):
        first, last = windows[number]
        assert [best[word] for word in window.words] == [number] * len(window.words)
        shown = list(range(pieces.bounds[first], pieces.bounds[last]))
        assert window.inputs["input_ids"] == [0, *shown, pieces.bounds[-1]]
        assert [window.inputs["input_ids"][place] for place in window.first] == [pieces.bounds[w] for w in window.words]


def slow_emissions(tagger, tokenizer, words, stride):
    """The scores of each word, from the encoder's pass over its window alone."""
    ids = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    windows, best = windows_by_hand([len(each) for each in ids], LIMIT - 2, stride)
    rows = []
    for word, number in enumerate(best):
        first, last = windows[number]
        window = torch.tensor([[2, *(piece for each in ids[first:last] for piece in each), 3]])
        place = 1 + sum(len(each) for each in ids[first:word])
        rows.append(tagger.encoder(window).last_hidden_state[0, place] @ tagger.head.emission.T + tagger.head.bias)
    rows[0] = rows[0] + tagger.head.start_transitions
    rows[-1] = rows[-1] + tagger.head.end_transitions
    return torch.stack(rows)


@torch.no_grad()
def emissions_of(tagger, tokenizer, texts, stride, batch_size=4):
    read_texts = []
    for text in texts:
        pieces = read(text, "text", tokenizer)
        read_texts.append(_Text(text, pieces.places, cut(pieces, "text", LIMIT, stride)))
    return _potentials(tagger, read_texts, tokenizer, batch_size)


@pytest.mark.parametrize("seed", range(6))
@torch.no_grad()
def test_scores_features_and_tags_are_those_of_the_slow_way(tagger, tokenizer, seed):
    random.seed(seed)
    texts = [text_of(10 * seed + part, random.randint(1, 40)) for part in range(4)]
    stride = random.randint(0, 15)
    potentials = emissions_of(tagger, tokenizer, texts, stride)
    items = tokenized(tokenizer, texts, [["O"] * len(text) for text in texts], LABELS, stride=stride)
    words = features_of(tagger, items, 3)
    spans = tagger.tag(texts, tokenizer, stride=stride, batch_size=3)
    for place, text in enumerate(texts):
        slow = slow_emissions(tagger, tokenizer, text, stride)
        torch.testing.assert_close(potentials["emission"][place, : len(text)], slow, rtol=1e-4, atol=1e-5)
        assert words.lengths[place] == len(text)
        head = tagger.head(words.x[place : place + 1, : len(text)], torch.tensor([len(text)]))
        torch.testing.assert_close(head["emission"][0], slow, rtol=1e-4, atol=1e-5)
        alone = Potentials({"emission": slow.unsqueeze(0), "transition": tagger.head.transition.unsqueeze(0)})
        states = tagger.head.structure.argmax(alone).labeling[0].tolist()
        begins = [word for word, state in enumerate(states) if LABELS[state][0] == "B"]
        assert [span.start for span in spans[place]] == begins


def test_a_text_that_fits_is_tagged_as_without_a_stride(tagger, tokenizer):
    texts = ["the red house in rome", "old", "abc is in rome ."]
    assert tagger.tag(texts, tokenizer, stride=5) == tagger.tag(texts, tokenizer)


def test_long_texts_do_not_depend_on_the_batch(tagger, tokenizer):
    texts = [text_of(seed, count) for seed, count in enumerate([50, 3, 20, 80, 1])]
    texts += [" ".join(text) for text in texts]
    together = [tagger.tag(texts, tokenizer, stride=7, batch_size=size) for size in (1, 3, 32)]
    for place, text in enumerate(texts):
        (alone,) = tagger.tag([text], tokenizer, stride=7)
        for results in together:
            assert [span[:4] for span in results[place]] == [span[:4] for span in alone]
            assert [s.score for s in results[place]] == pytest.approx([s.score for s in alone], rel=1e-4)
        if isinstance(text, str):
            assert all(text[span.start : span.stop] == span.text for span in alone)


def test_the_encoder_sees_few_windows_at_a_time(tagger, tokenizer):
    seen = []
    tagger.encoder.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    words = ["red"] * 2000
    tagger.tag([words, ["old"]], tokenizer, stride=6, batch_size=5)
    assert len(seen) == -(-(len(cut(read(words, "", tokenizer), "", LIMIT, 6)) + 1) // 5)
    items = tokenized(tokenizer, [words], [["O"] * 2000], LABELS, stride=6)
    features_of(tagger, items, 5)
    assert max(rows for rows, _ in seen) == 5
    assert max(pieces for _, pieces in seen) <= LIMIT


def test_an_encoder_in_half_precision(tagger, tokenizer):
    texts = [text_of(3, 40)]
    wanted = emissions_of(tagger, tokenizer, texts, 8)["emission"]
    tagger.encoder.to(torch.bfloat16)
    result = emissions_of(tagger, tokenizer, texts, 8)["emission"]
    assert result.dtype == torch.float32
    assert float((result - wanted).abs().max()) < 0.2 * float(wanted.abs().max())
    assert len(tagger.tag(texts, tokenizer, stride=8)) == 1


@pytest.mark.parametrize("scheme", ["BIO", "BIOES", None])
def test_probabilities_are_shares_of_the_partition_function(scheme):
    labels = ["O", "B-X", "I-X", *(["E-X", "S-X"] if scheme == "BIOES" else ["B-Y", "I-Y"])]
    torch.manual_seed(0)
    tagger = StructuredTagger(StructuredTaggerConfig(encoder_config(), labels, scheme, probability_temperature=1.5))
    lengths = torch.tensor([9, 1, 4, 30])
    tensors = {"emission": torch.randn(4, 30, 5), "transition": torch.randn(1, 5, 5).expand(4, -1, -1)}
    potentials = Potentials(tensors, lengths)
    structure = tagger.head.structure
    tags = structure.argmax(potentials).labeling
    by_text = [_chunks(tagger, row[:length].tolist()) for row, length in zip(tags, lengths.tolist(), strict=True)]
    scores = iter(_probabilities(tagger, potentials, tags, by_text))
    every = marginals_at(structure, potentials, 1.5).log_partition
    for row, its_chunks in enumerate(by_text):
        for chunk in its_chunks:
            emission = tensors["emission"].clone()
            for word in range(chunk.start, chunk.stop):
                state = int(tags[row, word])
                emission[row, word, [other for other in range(5) if other != state]] = -torch.inf
            if scheme == "BIO" and chunk.stop < lengths[row]:
                emission[row, chunk.stop, labels.index(f"I-{chunk.type}")] = -torch.inf
            part = marginals_at(structure, potentials.replace({**tensors, "emission": emission}), 1.5).log_partition
            assert next(scores) == pytest.approx(float((part - every)[row].exp()), rel=1e-9)
    assert next(scores, None) is None


def test_items_of_windows_have_each_label_once_and_no_cut_span(tokenizer):
    words = ["red", "house", "in", "old", "rome"] * 12
    tags = ["B-X", "I-X", "O", "B-Y", "I-Y"] * 12
    items = tokenized(tokenizer, [words, ["in"]], [tags, ["O"]], LABELS, stride=9)
    assert [item["window"] for item in items] == [*([k, len(items) - 1] for k in range(len(items) - 1)), [0, 1]]
    assert len(items) > 3
    rows = [[LABELS[label] for label in item["labels"] if label != NO] for item in items]
    assert [tag for row in rows[:-1] for tag in row] == tags
    assert all(row[0][0] != "I" and len(item["input_ids"]) <= LIMIT for row, item in zip(rows, items, strict=True))
    sets = tokenized(tokenizer, [words], [[{tag} for tag in tags]], LABELS, stride=9)
    for item, one in zip(sets, items, strict=False):
        assert [row.index(True) if any(row) else NO for row in item["labels"]] == one["labels"]


@pytest.mark.parametrize("loss", ["softmax-margin", "cross-entropy"])
def test_solved_and_calibrated_on_documents(tokenizer, loss):
    torch.manual_seed(0)
    tagger = StructuredTagger(StructuredTaggerConfig(encoder_config(), LABELS, "BIO", loss=loss)).eval()
    random.seed(0)
    texts = [random.choices(WORDS, k=random.randint(2, 60)) for _ in range(12)]
    tags = [["B-X" if word == "red" else "B-Y" if word == "rome" else "O" for word in text] for text in texts]
    items = tokenized(tokenizer, texts, tags, LABELS, stride=8)
    assert len(items) > 20
    assert len(features_of(tagger, items, 4)) == 12
    solved = tagger.solve(items, items, lam=0.01, progress=False)
    assert solved.certificate.relative_gap <= 0.01
    assert solved.after > 0.9
    assert tagger.calibrate(items) > 0
    spans = tagger.tag(texts, tokenizer, stride=8)
    right = [[(s.label, s.start) for s in row] for row in spans]
    wanted = [[(tag[2:], word) for word, tag in enumerate(row) if tag != "O"] for row in tags]
    assert sum(a == b for a, b in zip(right, wanted, strict=True)) > 6
    output = tagger(**tagger.collate(items))  # as a Trainer calls it: a row for each window
    assert output.loss.isfinite()
    known = tagger.collate(items)["labels"] != NO
    assert torch.equal(output.predictions != NO, known)


def test_a_trainer_takes_windows(tokenizer, tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    # transformers takes any folder of this name for the package
    monkeypatch.setattr(transformers.trainer, "is_datasets_available", lambda: False)
    torch.manual_seed(0)
    tagger = StructuredTagger(StructuredTaggerConfig(encoder_config(), LABELS, "BIO"))
    words, tags = ["red", "house", "in"] * 30, ["B-X", "I-X", "O"] * 30
    items = tokenized(tokenizer, [words, words[:40]], [tags, tags[:40]], LABELS, stride=6)
    trainer = transformers.Trainer(
        model=tagger,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=20, report_to=[], use_cpu=True, disable_tqdm=True
        ),
        train_dataset=items,
        eval_dataset=items,
        data_collator=transformers.DataCollatorForTokenClassification(tokenizer),
        compute_metrics=tagger.compute_metrics,
        optimizers=(torch.optim.AdamW(tagger.parameter_groups(1e-3, head_lr=1e-2)), None),
    )
    trainer.train()
    assert trainer.evaluate()["eval_f1"] > 0.9


def test_groups_of_parameters_decay_as_a_trainers_do(tmp_path):
    torch.manual_seed(0)
    tagger = StructuredTagger(StructuredTaggerConfig(encoder_config(), LABELS, "BIO"))
    groups = tagger.parameter_groups(1e-4, head_lr=1e-2, weight_decay=0.1)
    names = {id(parameter): name for name, parameter in tagger.named_parameters()}
    assert sorted(names[id(p)] for group in groups for p in group["params"]) == sorted(names.values())
    for group in groups:
        assert {names[id(p)].startswith("head") for p in group["params"]} == {group["lr"] == 1e-2}
    vectors = {"head.start_transitions", "head.end_transitions"}  # biases, with other names
    decayed = {names[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == set(transformers.Trainer.get_decay_parameter_names(None, tagger)) - vectors
    tagger.encoder.requires_grad_(False)
    assert {group["lr"] for group in tagger.parameter_groups(1e-4, head_lr=1e-2)} == {1e-2}


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda tagger, tokenizer: tagger.tag(["red " * 30], tokenizer), r"texts\[0\] has 32 pieces.*stride="),
        (lambda _, tokenizer: tokenized(tokenizer, [["red"] * 30], [["O"] * 30], LABELS), r"sentences\[0\].*stride="),
        (lambda tagger, tokenizer: tagger.tag(["red"], tokenizer, stride=22), r"stride=22.*0 to 21"),
        (lambda tagger, tokenizer: tagger.tag(["red"], tokenizer, stride=-1), r"stride=-1"),
        (lambda _, tokenizer: tokenized(tokenizer, [["red"]], [["O"]], LABELS, stride=40), r"stride=40"),
        (lambda tagger, tokenizer: tagger.tag(["red", ""], tokenizer, stride=4), r"texts\[1\]='' has no word"),
        (lambda _, tokenizer: tokenized(tokenizer, [[]], [[]], LABELS, stride=4), r"sentences\[0\]=\[\] has no word"),
        (lambda tagger, tokenizer: tagger.tag(["in " + "a" * 30], tokenizer, stride=4), r"texts\[0\].* 3 to 33 has 30"),
        (
            lambda _, tokenizer: tokenized(tokenizer, [["red"] * 30], [["B-X"] + ["I-X"] * 29], LABELS, stride=4),
            r"sentences\[0\].* 0 to 30 has 30",
        ),
        (lambda _, tokenizer: tokenized(tokenizer, ["red house"], [["O"]], LABELS), r"sentences\[0\].*2 words, 1 tags"),
    ],
)
def test_what_does_not_fit_is_refused(tagger, tokenizer, call, named):
    with pytest.raises(ValueError, match=named):
        call(tagger, tokenizer)


@pytest.mark.parametrize(
    ("sentences", "tags", "named"),
    [
        ("red", ["O"] * 3, "sentences='red'"),
        (["red", "old"], ["O", "O"], r"tags\[0\]='O'"),
        ([["red"]], [0], r"tags\[0\]=0"),
    ],
)
def test_one_sentence_in_place_of_several_is_refused(tokenizer, sentences, tags, named):
    with pytest.raises(TypeError, match=named):
        tokenized(tokenizer, sentences, tags, LABELS)


def test_a_tokeniser_that_does_not_know_the_encoder(tagger, tokenizer):
    blind = copy.deepcopy(tokenizer)
    blind.model_max_length = 10**30
    assert tagger.tag([["red"] * 60], blind, stride=4)  # the tagger knows
    with pytest.raises(ValueError, match="model_max_length"):
        tokenized(blind, [["red"]], [["O"]], LABELS, stride=4)


@pytest.mark.parametrize("change", [lambda x: x[1:], lambda x: x[:-1], lambda x: x[::-1], lambda x: x[:1] + x[2:]])
def test_windows_that_are_apart_are_refused(tagger, tokenizer, change):
    items = tokenized(tokenizer, [["red"] * 60], [["O"] * 60], LABELS, stride=4)
    with pytest.raises(ValueError, match=r"dataset\[0\] is a window"):
        tagger.solve(change(items), lam=1.0)
