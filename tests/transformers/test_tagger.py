"""Taggers on a tiny encoder with random weights; one on a packaged encoder where that is installed."""

import copy
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from torchssvm import HiddenStates, LinearChain, SoftmaxMargin
from torchssvm.datasets import PaddedDataset, PrecomputedFeatures, chunk_scores

transformers = pytest.importorskip("transformers")

from cases.taggers import LABELS, NO, batch_of, encoder_config, random_batch  # noqa: E402

from torchssvm.transformers import StructuredTagger, StructuredTaggerConfig, TaggerDecoder, tokenized  # noqa: E402
from torchssvm.transformers.batches import batches_of  # noqa: E402
from torchssvm.transformers.solving import features_of  # noqa: E402


def test_the_loss_is_that_of_the_packed_words(tagger):
    batch = random_batch()
    hidden = tagger.encoder(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    tagger.config.loss = "softmax-margin"
    total = 0.0
    for row in range(3):
        real = batch["labels"][row] != NO
        potentials = tagger.head(hidden[row : row + 1, real], torch.tensor([int(real.sum())]))
        loss = SoftmaxMargin(tagger.head.structure)(potentials, batch["labels"][row : row + 1, real])
        total += loss.item() / 3
    output = tagger(**batch)
    assert float(output.loss) == pytest.approx(total, rel=1e-5)
    assert torch.equal(output.predictions == NO, batch["labels"] == NO)
    tagger.train()
    output = tagger(**batch)
    output.loss.backward()
    assert output.predictions is None
    assert all(p.grad is not None for p in tagger.head.parameters())
    assert float(tagger.encoder.embeddings.word_embeddings.weight.grad.abs().sum()) > 0


def test_words_whose_labels_are_unknown(tagger):
    batch = random_batch()
    mask = batch["labels"] != NO
    whole = tagger(**batch, word_mask=mask)
    assert torch.equal(whole.loss, tagger(**batch).loss)
    tagger.config.loss = "softmax-margin"
    labels = batch["labels"].clone()
    labels[0, 3], labels[2, 6] = NO, NO
    result = tagger(**{**batch, "labels": labels}, word_mask=mask)
    assert torch.equal(result.predictions, whole.predictions)
    words = tagger.words(labels, mask, input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    hidden = SoftmaxMargin(HiddenStates(tagger.head.structure))(tagger.potentials(words), words.labels)
    torch.testing.assert_close(result.loss, hidden)
    assert float(result.loss.detach()) < float(tagger(**batch).loss.detach())  # fewer sequences are wrong
    tagger.config.loss = "cross-entropy"
    assert bool(torch.isfinite(tagger(**{**batch, "labels": labels}, word_mask=mask).loss))
    none = torch.full_like(labels, NO)
    assert float(tagger(**{**batch, "labels": none}, word_mask=mask).loss.detach()) == 0.0
    for wrong in (-1, 9):
        labels[0, 2] = wrong
        with pytest.raises(ValueError, match=f"label {wrong}"):
            tagger(**{**batch, "labels": labels}, word_mask=mask)


def test_words_without_a_label_stay_words_in_batches_and_are_completed(tagger, items):
    some = [{**item, "word_mask": [label != NO for label in item["labels"]]} for item in items]
    place = some[0]["word_mask"].index(True)
    some[0]["labels"] = [NO if i == place else label for i, label in enumerate(some[0]["labels"])]
    batch = tagger.collate(some)
    assert batch["word_mask"].sum() == (batch_of(items)["labels"] != NO).sum()
    with pytest.raises(ValueError, match="word_mask"):
        tagger.collate([some[0], items[1]])
    words = features_of(tagger, some, 4)
    assert torch.equal(words.lengths, features_of(tagger, items, 4).lengths)
    assert words.first_unknown == [0, 0]
    tagger.config.probability_temperature = 0.5
    assert tagger.solve(some, lam=0.1, progress=False).certificate.relative_gap <= 0.01
    assert tagger.config.probability_temperature == 1.0  # not that of another head
    with pytest.raises(ValueError, match="held_out"):
        tagger.calibrate(some)
    tagger.head.reset_parameters()
    with pytest.raises(ValueError, match="dataset"):
        tagger.solve(some, lam=0.1, progress=False)


def test_padding_on_either_side_changes_nothing(tagger):
    batch = random_batch()
    for before, after in ((2, 0), (0, 3)):
        wide = {name: torch.nn.functional.pad(batch[name], (before, after), value=0) for name in batch}
        wide["labels"] = torch.nn.functional.pad(batch["labels"], (before, after), value=NO)
        position = torch.arange(wide["input_ids"].shape[1]).sub(before).clamp(0, 8).expand(3, -1)
        output = tagger(**wide, position_ids=position)
        torch.testing.assert_close(output.loss, tagger(**batch).loss)
        columns = slice(before, before + batch["labels"].shape[1])
        assert torch.equal(output.predictions[:, columns], tagger(**batch).predictions)


def test_a_classifier_decodes_as_before_but_within_the_scheme(classifier):
    batch = random_batch()
    scores = classifier(batch["input_ids"], batch["attention_mask"]).logits
    mask = batch["labels"] != NO
    free = StructuredTagger.from_classifier(classifier, scheme=None)(**batch)
    assert torch.equal(free.predictions[mask], scores.argmax(2)[mask])
    torch.testing.assert_close(free.loss, torch.nn.functional.cross_entropy(scores[mask], batch["labels"][mask]))
    for seed in range(5):
        batch["input_ids"] = torch.randint(4, 70, (3, 9), generator=torch.Generator().manual_seed(seed))
        tags = StructuredTagger.from_classifier(classifier)(**batch).predictions
        for row, kept in zip(tags, mask, strict=True):
            names = [LABELS[state] for state in row[kept].tolist()]
            pairs = zip(["O", *names], names, strict=False)
            assert all(name[0] != "I" or before[1:] == name[1:] for before, name in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_and_loaded(tagger, tmp_path, dtype):
    tagger.config.probability_temperature = 0.5
    tagger.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path, dtype=dtype)
    assert type(loaded) is StructuredTagger
    assert loaded.config.probability_temperature == 0.5
    assert loaded.head.emission.dtype == torch.float32
    assert loaded.encoder.embeddings.word_embeddings.weight.dtype == dtype
    for saved, other in zip(tagger.head.parameters(), loaded.head.parameters(), strict=True):
        assert torch.equal(saved, other)
    assert loaded.head.structure.same_as(tagger.head.structure)
    batch = random_batch()
    torch.testing.assert_close(
        loaded(**batch).loss, tagger(**batch).loss, rtol=1e-5 if dtype == torch.float32 else 0.1, atol=0.0
    )


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("asked", [torch.float32, torch.bfloat16, "bfloat16", "auto"])
def test_the_dtype_asked_for_is_that_of_the_encoder(classifier, tmp_path, stored, asked):
    copy.deepcopy(classifier.bert).to(stored).save_pretrained(tmp_path / "encoder")
    StructuredTagger.from_pretrained(tmp_path / "encoder", labels=LABELS).save_pretrained(tmp_path / "tagger")
    name = "torch_dtype" if asked == "bfloat16" else "dtype"
    dtype = stored if asked == "auto" else torch.bfloat16 if asked == "bfloat16" else asked
    loaded = StructuredTagger.from_pretrained(tmp_path / "tagger", **{name: asked})
    loaded.save_pretrained(tmp_path / "again")
    for tagger in (loaded, StructuredTagger.from_pretrained(tmp_path / "again", dtype="auto")):
        assert {p.dtype for p in tagger.encoder.parameters()} == {dtype}
        assert {p.dtype for p in tagger.head.parameters()} == {torch.float32}
    assert StructuredTagger.from_pretrained(tmp_path / "again", dtype=torch.float32).encoder.dtype == torch.float32


def test_a_forward_without_words_tags_every_piece(tagger):
    ids = torch.tensor([[2, 5, 6, 3, 0], [2, 7, 8, 9, 3], [2, 3, 0, 0, 0]])
    mask = (ids > 0).long()
    output = tagger(ids, mask)
    assert torch.equal(output.predictions >= 0, mask.bool())
    assert torch.equal(output.logits.argmax(2)[mask.bool()], output.predictions[mask.bool()])
    assert bool((output.logits[~mask.bool()] == 0).all())
    assert float(output.logits.max()) == 0
    tagger.config.probability_temperature = 2.0
    torch.testing.assert_close(tagger(ids, mask).logits, output.logits / 2)
    tagger.config.encoder.cls_token_id, tagger.config.encoder.sep_token_id = 2, 3
    words = mask.bool() & (ids > 3)
    words[2] = mask[2]  # nothing else is there
    assert torch.equal(tagger(ids, mask).predictions, tagger(ids, mask, word_mask=words).predictions)
    assert tagger(ids, mask, word_mask=words).logits is None
    assert tagger(input_ids=ids[1:2]).logits.shape == (1, 5, len(LABELS))
    assert tagger(inputs_embeds=torch.randn(1, 4, 16)).logits.shape == (1, 4, len(LABELS))


@pytest.mark.parametrize("strategy", ["simple", "first"])
def test_in_a_pipeline(items, tokenizer, tmp_path, strategy):
    torch.manual_seed(0)
    transformers.BertModel(encoder_config()).save_pretrained(tmp_path)
    tagger = StructuredTagger.from_pretrained(tmp_path, labels=LABELS, scheme="BIO")
    tagger.solve(items, lam=0.01, progress=False)
    tagger.config.encoder.cls_token_id, tagger.config.encoder.sep_token_id = 2, 3
    entities = transformers.pipeline(
        "token-classification", model=tagger, tokenizer=tokenizer, aggregation_strategy=strategy
    )
    texts = ["the red house in rome", "old red rome ."]
    spans = [[(span.label, span.start, span.stop) for span in sentence] for sentence in tagger.tag(texts, tokenizer)]
    assert any(spans)
    for result, wanted in zip(entities(texts), spans, strict=True):
        assert [(e["entity_group"], e["start"], e["end"]) for e in result] == wanted
        assert all(1 / len(LABELS) < e["score"] <= 1 for e in result)
    assert entities("") == []


def test_a_new_head_is_zero_however_the_model_is_made(tmp_path):
    transformers.BertModel(encoder_config()).save_pretrained(tmp_path)
    loaded = StructuredTagger.from_pretrained(tmp_path, labels=LABELS, scheme="BIO", layers=[-1, 0])
    assert loaded.head.in_features == 32
    assert not any(bool(p.any()) for p in loaded.head.parameters())
    with torch.device("meta"):
        made = StructuredTagger(StructuredTaggerConfig(encoder_config(), LABELS, "BIO"))
    made = made.to_empty(device="cpu")
    assert not any(bool(p.any()) for p in made.head.parameters())
    assert made.head.structure.transitions.pairs.device.type == "cpu"


@pytest.fixture
def trained(items, tokenizer, tmp_path, monkeypatch):
    """Trains a model by a Trainer."""
    pytest.importorskip("accelerate")
    # transformers takes any folder of this name for the package
    monkeypatch.setattr(transformers.trainer, "is_datasets_available", lambda: False)

    def fit(model, **options):
        options = {"num_train_epochs": 30, "learning_rate": 3e-3, "save_strategy": "no"} | options
        quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True}
        torch.manual_seed(0)
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(output_dir=str(tmp_path), **quiet, **options),
            train_dataset=items,
            eval_dataset=items[:10],
            data_collator=transformers.DataCollatorForTokenClassification(tokenizer),
            compute_metrics=getattr(model, "compute_metrics", None),
        )
        trainer.train()
        return trainer

    return fit


def new_tagger(**dropout):
    torch.manual_seed(0)
    return StructuredTagger(StructuredTaggerConfig(encoder_config(**dropout), LABELS, "BIO"))


def test_under_a_trainer(trained, items):
    tagger = new_tagger()
    before = tagger.eval()(**batch_of(items)).predictions
    after = trained(tagger, per_device_train_batch_size=8, max_grad_norm=1.0, bf16=True).evaluate()
    assert not torch.equal(before, tagger.eval()(**batch_of(items)).predictions)
    assert after["eval_f1"] > 0.9
    assert after["eval_accuracy"] > 0.95


def test_accumulated_steps_are_those_of_the_whole_batch(trained):
    """Clipped, too: the norm is that of the sum. The loss is the mean of sentences, whatever words they have."""
    ends = []
    for size, parts in ((8, 1), (4, 2)):
        tagger = new_tagger(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": parts, "max_grad_norm": 0.1}
        trained(tagger, max_steps=3, optim="sgd", learning_rate=1.0, **options)
        ends.append([p.detach().clone() for p in tagger.parameters()])
    for whole, accumulated in zip(*ends, strict=True):
        torch.testing.assert_close(whole, accumulated, rtol=1e-4, atol=5e-6)


def test_lora(trained, items, tmp_path):
    peft = pytest.importorskip("peft")
    tagger = new_tagger()
    config = peft.LoraConfig(target_modules=["query", "value"], modules_to_save=["head"], r=2)
    model = peft.get_peft_model(tagger, config)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert all("lora" in name or "head" in name for name in names)
    assert any("head" in name for name in names)
    trained(model, per_device_train_batch_size=8, max_steps=3)
    expected = model.eval()(**batch_of(items))
    with pytest.raises(TypeError, match="ModulesToSaveWrapper"):
        model.solve(items, lam=0.1)
    merged = model.merge_and_unload()
    assert type(merged) is StructuredTagger
    assert isinstance(merged.head, LinearChain)
    assert bool(merged.head.emission.any())
    merged.save_pretrained(tmp_path / "merged")
    loaded = StructuredTagger.from_pretrained(tmp_path / "merged").eval()(**batch_of(items))
    torch.testing.assert_close(loaded.loss, expected.loss)
    assert torch.equal(loaded.predictions, expected.predictions)


def test_metrics_against_hand_counts(tagger):
    labels = np.array([[NO, 1, 2, 0], [NO, 3, NO, NO]])
    tags = np.array([[NO, 1, 0, 0], [NO, 3, NO, NO]])
    result = tagger.compute_metrics(SimpleNamespace(predictions=tags, label_ids=labels))
    assert result == {"accuracy": 0.75, "sentence_accuracy": 0.5, "f1": 0.5, "precision": 0.5, "recall": 0.5}


def test_solved_to_a_gap_with_the_better_head_kept(tagger, items):
    certificate = tagger.solve(items[:16], items[16:], progress=False)
    assert certificate.certificate.relative_gap <= 0.01
    assert certificate.certificate.exact
    assert certificate.kept
    assert certificate.after >= certificate.before
    assert "kept" in str(certificate)
    batch = batch_of(items[16:])
    predictions = tagger.eval()(**batch).predictions
    metrics = tagger.compute_metrics(SimpleNamespace(predictions=predictions, label_ids=batch["labels"]))
    assert certificate.after == metrics["f1"]
    kept = [p.clone() for p in tagger.head.parameters()]
    worse = tagger.solve(items[:2], items[16:], lam=1e3, progress=False)
    assert not worse.kept
    assert all(torch.equal(a, b) for a, b in zip(kept, tagger.head.parameters(), strict=True))
    assert tagger.solve(items[:4], lam=1.0, progress=False).kept
    assert not tagger.training


def test_the_temperature_is_the_most_likely_one(tagger, items):
    def likelihood(temperature):
        total = 0.0
        for batch in batches_of(items, 8, 0, torch.device("cpu")):
            words = tagger.words(**batch)
            potentials = tagger.potentials(words)
            warm = potentials.replace({name: t.double() / temperature for name, t in potentials.tensors.items()})
            parts = tagger.head.structure.parts(words.labels)
            scores = sum((parts[name] * warm[name]).flatten(1).sum(1) for name in parts)
            total += float((scores - tagger.head.structure.marginals(warm).log_partition).sum())
        return total

    with torch.no_grad():
        result = tagger.calibrate(items)
        assert result == tagger.config.probability_temperature
        assert all(likelihood(result) >= likelihood(result * factor) for factor in (0.9, 0.99, 1.01, 1.1))


def test_spans_of_raw_text_and_their_probabilities(tagger, tokenizer):
    tagger.config.probability_temperature = 2.0
    text = "the Red house, in rome"  # "," has no piece of its own vocabulary: unknown, and a word all the same
    (spans,) = tagger.tag([text], tokenizer)
    words = ["the", "Red", "house", ",", "in", "rome"]
    (listed,) = tagger.tag([words], tokenizer)
    assert [(span.label, span.text) for span in spans] == [(span.label, span.text) for span in listed]
    assert all(text[span.start : span.stop] == span.text for span in spans)
    assert all(" ".join(words[span.start : span.stop]) == span.text for span in listed)
    # the probability of a span, from a list of all sequences of the scheme
    (item,) = tokenized(tokenizer, [words], [["O"] * 6], LABELS)
    with torch.no_grad():
        potentials = tagger.potentials(tagger.words(**batch_of([item])))
    emission, transition = (potentials[name][0].double() / 2.0 for name in ("emission", "transition"))
    states = torch.tensor(list(itertools.product(range(5), repeat=6)))
    states = states[tagger.head.structure.transitions.allows(states)]
    scores = emission[torch.arange(6), states].sum(1) + transition[states[:, :-1], states[:, 1:]].sum(1)
    weight = (scores - scores.logsumexp(0)).exp()
    assert listed
    for span in listed:
        begin, inside = LABELS.index(f"B-{span.label}"), LABELS.index(f"I-{span.label}")
        is_there = (states[:, span.start] == begin) & (states[:, span.start + 1 : span.stop] == inside).all(1)
        if span.stop < 6:
            is_there &= states[:, span.stop] != inside
        assert span.score == pytest.approx(float(weight[is_there].sum()), rel=1e-6)


def test_tagging_does_not_depend_on_the_batch(tagger, tokenizer):
    texts = ["red", "the red house in rome is old .", "rome is red"]
    alone = [tagger.tag([text], tokenizer)[0] for text in texts]
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    for using, size in ((tokenizer, 3), (tokenizer, 2), (left, 3)):
        for mine, other in zip(tagger.tag((text for text in texts), using, batch_size=size), alone, strict=True):
            assert [span[:4] for span in mine] == [span[:4] for span in other]


def test_without_a_scheme_every_word_is_a_span(classifier, tokenizer):
    tagger = StructuredTagger.from_classifier(classifier, scheme=None)
    (spans,) = tagger.tag(["the red house"], tokenizer)
    assert [span.text for span in spans] == ["the", "red", "house"]
    assert all(span.label in LABELS and 0.2 <= span.score <= 1.0 for span in spans)


@pytest.fixture
def masked():
    batch = random_batch(longest=12)
    mask = torch.rand(3, 12, generator=torch.Generator().manual_seed(2)) < 0.5
    mask[:, 4] = True
    return batch["input_ids"], batch["attention_mask"], mask


def test_the_whole_in_plain_operators(tagger, masked):
    tagger.train()
    decoder = TaggerDecoder(tagger)
    assert not tagger.training
    assert torch.equal(decoder(*masked), tagger(*masked[:2], word_mask=masked[2]).predictions)


@pytest.mark.slow
def test_exported_and_in_onnx(tagger, masked, tmp_path):
    decoder = TaggerDecoder(tagger)
    sizes = {0: torch.export.Dim("batch", min=2, max=512), 1: torch.export.Dim("pieces", min=2, max=24)}
    few = tuple(each[:2, 3:8].clone() for each in masked)
    program = torch.export.export(decoder, few, dynamic_shapes=(sizes, sizes, sizes))
    expected = decoder(*masked)
    assert torch.equal(program.module()(*masked), expected)
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    torch.onnx.export(program, dynamo=True, verbose=False).save(tmp_path / "tagger.onnx")
    session = runtime.InferenceSession(tmp_path / "tagger.onnx")
    names = [each.name for each in session.get_inputs()]
    (result,) = session.run(None, {name: each.numpy() for name, each in zip(names, masked, strict=True)})
    assert result.tolist() == expected.tolist()


def test_the_lower_layers_of_an_encoder_are_frozen_by_their_number(tmp_path):
    transformers.BertModel(encoder_config()).save_pretrained(tmp_path)
    options = {"labels": LABELS, "num_hidden_layers": 2}
    tagger = StructuredTagger.from_pretrained(tmp_path, freeze_encoder=1, **options).train()
    layers = tagger.encoder.encoder.layer
    assert [layer.training for layer in layers] == [False, True]
    assert not tagger.encoder.embeddings.training
    torch.nn.init.normal_(tagger.head.emission)
    tagger(**random_batch()).loss.backward()
    trained = {name for name, p in tagger.encoder.named_parameters() if p.grad is not None}
    assert trained == {name for name, _ in tagger.encoder.named_parameters() if name.startswith("encoder.layer.1.")}
    assert not any(module.training for module in tagger.eval().modules())
    tagger.save_pretrained(tmp_path / "tagger")
    again = StructuredTagger.from_pretrained(tmp_path / "tagger").train()
    assert [layer.training for layer in again.encoder.encoder.layer] == [False, True]
    assert {name for name, p in again.encoder.named_parameters() if p.requires_grad} == trained
    whole, _ = StructuredTagger.from_pretrained(tmp_path / "tagger", freeze_encoder=True, output_loading_info=True)
    assert not any(p.requires_grad for p in whole.encoder.parameters())
    short = StructuredTagger.from_pretrained(tmp_path, labels=LABELS, num_hidden_layers=1)
    assert len(short.encoder.encoder.layer) == 1


class Naive(torch.nn.Module):
    """Ids without a mask."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, x):
        return self.encoder(x).last_hidden_state


def test_an_encoder_below_a_head():
    torch.manual_seed(0)
    encoder = transformers.BertModel(encoder_config())
    ids, lengths = torch.randint(4, 70, (6, 8)), torch.tensor([8, 3, 5, 8, 2, 7])
    words = PaddedDataset(ids, torch.randint(0, 5, (6, 8)), lengths)
    features = PrecomputedFeatures(words, encoder)
    with torch.no_grad():
        for example, length in zip(features, lengths.tolist(), strict=True):
            alone = encoder.eval()(ids[example.index : example.index + 1, :length]).last_hidden_state[0]
            torch.testing.assert_close(example.x[:length], alone, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="Naive"):
        PrecomputedFeatures(words, Naive(encoder))
    L = pytest.importorskip("lightning")
    from torchssvm.lightning import FactorwiseSVM, JointTraining, SpanF1, StructuredSVM

    before = [p.clone() for p in encoder.parameters()]
    joint = JointTraining(epochs=1, clip=1.0, accumulate=2, warmup=0.5)
    model = StructuredSVM(LinearChain(16, 5), 0.1, encoder.train(), joint=joint)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    loader = torch.utils.data.DataLoader(words, batch_size=2, collate_fn=words.collate)
    trainer = L.Trainer(max_epochs=3, callbacks=[SpanF1(LABELS)], **quiet)
    trainer.fit(model, loader, loader)
    assert model.choice is not None
    result = trainer.validate(model, loader, verbose=False)[0]
    tags, true = [], []
    for batch in loader:
        for states, target, length in zip(model.decode(batch.x, batch.lengths), batch.y, batch.lengths, strict=True):
            tags.append([LABELS[state] for state in states[:length].tolist()])
            true.append([LABELS[state] for state in target[:length].tolist()])
    assert result["val_f1"] == pytest.approx(chunk_scores(true, tags).overall.f1)
    assert result["val_loss"] >= 0.0
    assert sum(not torch.equal(a, b) for a, b in zip(before, encoder.parameters(), strict=True)) > 10
    for kind, options in ((StructuredSVM, {"joint": joint}), (StructuredSVM, {}), (FactorwiseSVM, {})):
        with pytest.raises(ValueError, match="Naive"):
            naive = kind(LinearChain(16, 5), lam=0.1, features=Naive(encoder), **options)
            L.Trainer(max_epochs=3, **quiet).fit(naive, loader)


BAD_CONFIGS = [
    ({"freeze_encoder": 0}, "freeze_encoder=0"),
    ({"freeze_encoder": 2}, "freeze_encoder=2"),
    ({"labels": ["A", "A"]}, "labels"),
    ({"scheme": "IOB"}, "scheme"),
    ({"layers": []}, "layers"),
    ({"layers": [5]}, r"layers=\[5\]"),
    ({"loss": "hinge"}, "loss"),
    ({"labels": ["I-X"], "scheme": "BIO"}, "I-X"),
    ({"probability_temperature": 0.0}, "probability_temperature"),
]


@pytest.mark.parametrize(("given", "named"), BAD_CONFIGS)
def test_configurations_that_are_refused(given, named):
    with pytest.raises(ValueError, match=named):
        StructuredTagger(StructuredTaggerConfig(**{"encoder": encoder_config(), "labels": LABELS, **given}))


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda tagger, batch, *_: tagger.train()(batch["input_ids"], batch["attention_mask"]), "labels=None"),
        (
            lambda tagger, batch, *_: tagger(**{**batch, "labels": torch.tensor([[1] * 9, [NO] * 9, [1] * 9])}),
            r"rows \[1\]",
        ),
        (lambda tagger, batch, *_: tagger(**{**batch, "labels": batch["labels"].clamp(min=5)}), "5"),
        (lambda tagger, _, items, __: tagger.solve(items), "held_out"),
        (lambda tagger, *_: tagger.solve([], lam=1.0), "dataset"),
        (lambda tagger, *_: tagger.solve([{"input_ids": [2, 5, 3]}], lam=1.0), "dataset"),
        (lambda tagger, _, __, tokenizer: tagger.tag("the red house", tokenizer), "texts="),
        (lambda tagger, _, __, tokenizer: tagger.tag(["red", ""], tokenizer), r"texts\[1\]"),
        (lambda tagger, _, __, tokenizer: tagger.tag([["red", "", "house"]], tokenizer), r"texts\[0\]"),
        (lambda tagger, _, __, tokenizer: tagger.tag(["red " * 30], tokenizer), r"texts\[0\]"),
        (lambda *_: StructuredTagger.from_pretrained("tagger", scheme="BIO"), "scheme="),
        (lambda tagger, *_: StructuredTagger.from_classifier(tagger.encoder), "BertModel"),
    ],
)
def test_what_does_not_fit_is_refused(tagger, items, tokenizer, call, argument):
    with pytest.raises((TypeError, ValueError), match=argument):
        call(tagger, random_batch(), items, tokenizer)


@pytest.mark.parametrize(
    ("sentences", "tags", "named"),
    [
        ([["red"]], [["O", "O"]], r"sentences\[0\]"),
        ([["red"]], [["B-Z"]], r"tags\[0\]"),
        ([["red"]], [np.array([5])], r"tags\[0\]"),
        ([["red"]], [[True]], r"tags\[0\]"),
        ([["red"] * 30], [["O"] * 30], r"sentences\[0\]"),
        ([["red", " "]], [["O", "O"]], r"sentences\[0\]"),
    ],
)
def test_tags_that_do_not_fit(tokenizer, sentences, tags, named):
    with pytest.raises(ValueError, match=named):
        tokenized(tokenizer, sentences, tags, LABELS)


@pytest.mark.parametrize(
    "tags",
    [
        [[1, 2, 0]],
        torch.tensor([[1, 2, 0]]),
        [np.array(["B-X", "I-X", "O"])],
        [[1, "I-X", "O"]],
    ],
    ids=repr,
)
def test_tags_are_names_or_their_numbers(tokenizer, tags):
    assert tokenized(tokenizer, [["red", "abc", "old"]], tags, LABELS)[0]["labels"] == [NO, 1, 2, NO, NO, 0, NO]
