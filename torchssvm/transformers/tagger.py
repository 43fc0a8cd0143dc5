"""A tagger on a pretrained encoder: a chain over the words, and a loss for ordinary trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from torchssvm.core.arguments import check_choice, check_positive, check_whole, describe, places_of
from torchssvm.core.operators import plain
from torchssvm.core.potentials import Potentials
from torchssvm.core.structure import Structure
from torchssvm.datasets.text.chunk_f1 import chunk_scores
from torchssvm.datasets.text.tag_schemes import SCHEMES, to_bio
from torchssvm.solvers.feature_losses import SoftmaxMargin
from torchssvm.solvers.solver import Relative, Solver, Tolerance
from torchssvm.structures.chain.head import LinearChain
from torchssvm.structures.chain.structure import Chain
from torchssvm.structures.chain.transitions import Transitions
from torchssvm.structures.hidden_states.structure import HiddenStates
from torchssvm.transformers.batches import NO_WORD, Words, collate, words_of
from torchssvm.transformers.model_card import note_solved, write_card
from torchssvm.transformers.solving import Solved, calibrate, solve_head
from torchssvm.transformers.tagging import Span, tag_texts


class StructuredTaggerConfig(PretrainedConfig):
    """The configuration of the encoder, the labels, and how the head is trained.

    Args:
        encoder: The encoder's configuration, or its dictionary.
        labels: The label of every state, at least one.
        scheme: ``"BIO"`` or ``"BIOES"``: sequences that are none of the scheme are never predicted; None allows all.
        layers: The hidden states that the head reads, concatenated; -1 is the last.
        loss: ``"softmax-margin"`` of the whole sequence, or ``"cross-entropy"`` of each word.
        freeze_encoder: Whether the encoder keeps its weights, and is run in evaluation mode; or how many of its layers
            do so, with the embeddings, while those above them train.
        probability_temperature: Scores are divided by it for probabilities; ``StructuredTagger.calibrate`` fits it.

    Raises:
        ValueError: An argument has another value.

    Example:
        >>> StructuredTaggerConfig(encoder, labels, scheme="BIO").id2label
        {0: 'O', 1: 'B-LOC', 2: 'I-LOC'}
    """

    model_type = "torchssvm-tagger"
    keys_to_ignore_at_inference = ["logits"]  # noqa: RUF012  # Trainer's predictions are tags

    def __init__(
        self,
        encoder: Any = None,
        labels: Sequence[str] = ("O",),
        scheme: str | None = None,
        layers: Sequence[int] = (-1,),
        loss: str = "softmax-margin",
        freeze_encoder: bool | int = False,
        probability_temperature: float = 1.0,
        **others: Any,
    ) -> None:
        if isinstance(encoder, dict):  # from a file; the tagger's dtype applies
            encoder = AutoConfig.for_model(**{k: v for k, v in encoder.items() if k not in ("dtype", "torch_dtype")})
        self.encoder = encoder
        self.labels = [str(label) for label in labels]
        check_whole(len(self.labels), "len(labels)")
        check_choice(scheme, "scheme", *SCHEMES)
        self.scheme = scheme
        self.layers = list(layers)
        check_choice(loss, "loss", "softmax-margin", "cross-entropy")
        self.loss = loss
        if not isinstance(freeze_encoder, bool):
            check_whole(freeze_encoder, "freeze_encoder", advice=", or True or False")
        self.freeze_encoder = freeze_encoder
        self.probability_temperature = check_positive(probability_temperature, "probability_temperature")
        others |= {"id2label": dict(enumerate(self.labels)), "label2id": places_of(self.labels)}
        super().__init__(**others)

    def transitions(self) -> Transitions | None:
        """Which labels may follow each other."""
        return SCHEMES[self.scheme](self.labels)


@dataclass
class TaggerOutput(ModelOutput):
    """The output of a tagger.

    Attributes:
        loss: A scalar; None where no labels were given.
        predictions: ``[B, N]`` int64, the state of each word at its position, -100 elsewhere; None while training.
        logits: ``[B, N, K]`` in the dtype of the head, of a forward in evaluation that gets neither labels nor
            word_mask, else None: the best score of a sequence with a state at a piece less the best score of all,
            divided by the temperature; 0 where no piece is tagged. ``pipeline("token-classification")`` reads it.

    Example:
        >>> tagger = StructuredTagger(StructuredTaggerConfig(encoder, labels, "BIO")).eval()
        >>> tagger(torch.tensor([[4, 5, 2, 3]]), labels=torch.tensor([[0, -100, 0, 1]])).predictions
        tensor([[   0, -100,    0,    0]])
    """

    loss: Tensor | None = None
    predictions: Tensor | None = None
    logits: Tensor | None = None


class StructuredTagger(PreTrainedModel):
    """A linear chain over the words of a sentence, on the hidden states of a pretrained encoder.

    ``labels`` are as ``DataCollatorForTokenClassification`` makes them: a state at the first piece of every word and
    -100 at all other positions, wherever they are; or the labels that words may have, as :meth:`collate` makes them. In
    ``transformers.Trainer`` it trains by the loss of its configuration, with clipping, accumulation and 16-bit steps as
    any model; :meth:`solve` trains the head to a certified gap. Make it by :meth:`from_classifier` or
    :meth:`from_pretrained`.

    The head is in float32, as sums over a sentence are, whatever ``dtype`` the encoder is loaded in;
    ``tagger.to(dtype)`` casts it too, and :meth:`solve` then asks for ``tagger.head.float()``.

    Args:
        config: See :class:`StructuredTaggerConfig`.
        encoder: The encoder; None makes one with random weights.

    Raises:
        ValueError: The configuration has no encoder, or a layer that the encoder does not have. Or ``freeze_encoder``
            is a number, and the encoder has no ``nn.ModuleList`` of more layers.

    Example:
        >>> tagger = StructuredTagger(StructuredTaggerConfig(encoder, labels, "BIO"))
        >>> solved = tagger.solve(tokenized(tokenizer, sentences, tags, labels), lam=0.01, progress=False)
        >>> solved.certificate.relative_gap <= 0.01
        True
        >>> [(span.label, span.text) for span in tagger.tag(["are we in Rome"], tokenizer)[0]]
        [('LOC', 'Rome')]
    """

    config_class = StructuredTaggerConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # the loss is the mean of a batch: Trainer divides it where steps accumulate
    _keep_in_fp32_modules_strict = ["head"]  # noqa: RUF012
    _keys_to_ignore_on_load_missing = [r"^encoder\.pooler\."]  # noqa: RUF012  # no tag depends on it
    _keys_to_ignore_on_load_unexpected = _keys_to_ignore_on_load_missing

    def __init__(self, config: StructuredTaggerConfig, encoder: nn.Module | None = None) -> None:
        super().__init__(config)
        layers = config.encoder.num_hidden_layers + 1
        if not config.layers or not all(-layers <= layer < layers for layer in config.layers):
            raise ValueError(f"layers={config.layers} must be hidden states of the encoder, 0 to {layers - 1}")
        self.encoder = AutoModel.from_config(config.encoder) if encoder is None else encoder
        states = len(config.labels)
        structure = Chain(states, normalize=False, transitions=config.transitions())
        self.head = LinearChain(len(config.layers) * config.encoder.hidden_size, states, structure=structure).float()
        self._freeze()
        self.post_init()

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls, name: Any, *args: Any, labels: Sequence[str] | None = None, scheme: str | None = None, **options: Any
    ) -> StructuredTagger:
        """A saved tagger; or, with ``labels``, a new one on a pretrained encoder.

        Args:
            name: A folder or a name, as in ``AutoModel.from_pretrained``.
            *args: As in ``AutoModel.from_pretrained``.
            labels: The label of every state; None reads a tagger that ``save_pretrained`` wrote.
            scheme: As in :class:`StructuredTaggerConfig`, like ``layers``, ``loss`` and ``freeze_encoder``.
            **options: These, and options of ``AutoModel.from_pretrained``: ``num_hidden_layers=4`` keeps four layers.

        Raises:
            ValueError: ``scheme`` is given without ``labels``, or ``labels`` of a saved tagger.
        """
        if labels is None:
            if scheme is not None:
                raise ValueError(f"scheme={scheme!r} is for a new tagger: give labels too, or leave scheme out")
            saved: StructuredTagger = super().from_pretrained(name, *args, **options)
            (saved[0] if isinstance(saved, tuple) else saved)._freeze()  # transformers makes new parameters
            return saved
        settings = {key: options.pop(key) for key in ("layers", "loss", "freeze_encoder") if key in options}
        encoder = AutoModel.from_pretrained(name, *args, **options)
        config = StructuredTaggerConfig(encoder.config, labels, scheme, **settings)
        return cls(config, encoder).eval()  # as from_pretrained leaves the encoder

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, *args: Any, **options: Any) -> None:
        """As in ``transformers``, with a model card, README.md, unless the folder has one that you wrote or edited.

        The card says how to load the tagger, and has the certificate of the last :meth:`solve` if its weights are kept.
        With ``push_to_hub=True``, ``transformers`` writes the card of the repository in its place.
        """
        if is_main_process and not Path(save_directory).is_file():
            write_card(self, save_directory)
        super().save_pretrained(save_directory, is_main_process, *args, **options)

    @classmethod
    @torch.no_grad()
    def from_classifier(cls, model: PreTrainedModel, scheme: str | None = "BIO") -> StructuredTagger:
        """The tagger with the encoder and the weights of a token classifier, which need no training.

        Sequences that are none of the scheme are no longer predicted, and the rest scores as before.

        Args:
            model: Such as an ``AutoModelForTokenClassification``; the tagger shares its encoder.
            scheme: As in :class:`StructuredTaggerConfig`.

        Raises:
            TypeError: The model's classifier is not one ``nn.Linear`` on the last hidden states, as in ModernBERT.
            ValueError: Its labels do not fit the scheme.
        """
        encoder = getattr(model, model.base_model_prefix, None)
        classifier = getattr(model, "classifier", getattr(model, "score", None))
        taken = {id(p) for part in (encoder, classifier) if isinstance(part, nn.Module) for p in part.parameters()}
        others = [p for p in model.parameters() if id(p) not in taken]
        if encoder is None or not isinstance(classifier, nn.Linear) or others:
            raise TypeError(
                f"model={type(model).__name__} is no encoder below one nn.Linear: train "
                "StructuredTagger.from_pretrained(name, labels=...)"
            )
        names = cast(dict[int, str], model.config.id2label)
        labels = [names[state] for state in range(classifier.out_features)]
        tagger = cls(StructuredTaggerConfig(encoder.config, labels, scheme, loss="cross-entropy"), encoder)
        tagger.head.emission.copy_(classifier.weight)
        if classifier.bias is not None and tagger.head.bias is not None:
            tagger.head.bias.copy_(classifier.bias)
        return tagger.train(model.training)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LinearChain):
            for weights in module.parameters():
                if not getattr(weights, "_is_hf_initialized", False):  # transformers 5.0 asks for loaded ones too
                    nn.init.zeros_(weights)

    def train(self, mode: bool = True) -> StructuredTagger:
        """As in torch; frozen layers of the encoder stay in evaluation mode."""
        super().train(mode)
        if self.config.freeze_encoder:
            self.encoder.eval()
            for layer in self._trained_layers():
                layer.train(mode)
        return self

    def _freeze(self) -> None:
        if self.config.freeze_encoder:
            self.encoder.requires_grad_(False)
            for layer in self._trained_layers():
                layer.requires_grad_(True)

    def _trained_layers(self) -> list[nn.Module]:
        """The layers of the encoder above the frozen ones; none where all or no layers are frozen."""
        count, frozen = self.config.encoder.num_hidden_layers, self.config.freeze_encoder
        if isinstance(frozen, bool):
            return []
        stacks = [m for m in self.encoder.modules() if isinstance(m, nn.ModuleList) and len(m) == count > frozen]
        if not stacks:
            raise ValueError(f"freeze_encoder={frozen} needs an encoder with more layers: give True or False")
        return list(stacks[0])[frozen:]

    def hidden(self, **inputs: Any) -> Tensor:
        """The features of every position, ``[B, N, F]``: hidden states of the encoder, concatenated."""
        several = self.config.layers != [-1]
        output = self.encoder(**inputs, output_hidden_states=several)
        return torch.cat([output.hidden_states[i] for i in self.config.layers], -1) if several else output[0]

    def words(self, labels: Tensor | None = None, word_mask: Tensor | None = None, **inputs: Any) -> Words:
        """The features of the words of a batch.

        Args:
            labels: ``[B, N]`` int64, -100 where no word is. Or the K labels that are allowed, bool ``[B, N, K]``: True
                at one or more for every word, and all False where no word is.
            word_mask: ``[B, N]`` bool, the first piece of each word; None is where labels are not -100. With both, a
                label of -100 at a word is unknown: the loss sums over all labels that the word may have. Without
                either, every piece is a word, but for padding and the special pieces whose ids ``config.encoder``
                names.
            **inputs: Other arguments of the encoder.

        Raises:
            ValueError: Neither is given while training, ``labels`` have another shape or dtype, or a row has no word.
        """
        if labels is None and word_mask is None:
            if self.training:
                raise ValueError("labels=None while training: give labels and label_smoothing_factor=0, or call eval()")
            hidden = self.hidden(**inputs)
            return words_of(hidden, self._pieces(hidden, **inputs), None)
        if labels is None:
            mask = cast(Tensor, word_mask).bool()
        else:
            sets, states = labels.ndim == 3, len(self.config.labels)
            if (labels.dtype == torch.bool) != sets or (sets and labels.shape[2] != states):
                raise ValueError(f"labels must be int64 [B, N] or bool [B, N, {states}], got {describe(labels)}")
            labelled = labels.any(2) if sets else torch.as_tensor(labels != NO_WORD)
            mask = labelled if word_mask is None else word_mask.bool()
        return words_of(self.hidden(**inputs), mask, labels)

    def _pieces(
        self, hidden: Tensor, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **others: Any
    ) -> Tensor:
        """The pieces to tag without labels or word_mask, ``[B, N]`` bool: without special ones, unless all are."""
        ones = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        real = ones if attention_mask is None else attention_mask.bool()
        if input_ids is None:
            return real
        mask = real
        for name in ("pad", "bos", "eos", "cls", "sep"):
            special = getattr(self.config.encoder, f"{name}_token_id", None)  # some encoders have several
            for one in special if isinstance(special, list) else [special]:
                mask = mask if one is None else mask & (input_ids != one)
        return torch.where(mask.any(1, keepdim=True), mask, real)

    def collate(self, items: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """The batch of some items of :func:`tokenized`, for ``Trainer(data_collator=tagger.collate)``.

        Unlike ``DataCollatorForTokenClassification`` it takes sets of labels too.

        Raises:
            ValueError: Some items have one label for each word, and others sets.
        """
        return collate(items, self.config.encoder.pad_token_id or 0)

    def potentials(self, words: Words) -> Potentials:
        """The scores of the labels of words."""
        potentials: Potentials = self.head(words.features, words.lengths)
        return potentials

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        word_mask: Tensor | None = None,
        **inputs: Any,
    ) -> TaggerOutput:
        """Loss and predictions of a batch; see :meth:`words` for the arguments.

        With ``input_ids`` and ``attention_mask`` alone it tags every piece, and returns ``logits``. It was trained on
        the first pieces of words: where words have several, :meth:`tag` is right, and in a pipeline
        ``aggregation_strategy="first"``. An encoder that does not name its special pieces, as BERT's, is told them by
        ``tagger.config.encoder.cls_token_id = tokenizer.cls_token_id``, and ``sep_token_id``.

        Raises:
            ValueError: A label is no state, or the labels of a sentence are none of the scheme.
        """
        words = self.words(labels, word_mask, input_ids=input_ids, attention_mask=attention_mask, **inputs)
        potentials = self.potentials(words)
        loss = predictions = logits = None
        if words.labels is not None:
            loss = self._loss(potentials, words)
        if not self.training:
            potentials = potentials.detach()
            predictions = words.scatter(self.head.structure.argmax(potentials).labeling)
            if labels is None and word_mask is None:
                margins = self.head.structure.max_marginals(potentials).clamp(max=0.0)  # of the best state, 0
                logits = words.scatter((margins / self.config.probability_temperature).to(potentials.dtype), fill=0.0)
        return TaggerOutput(loss=loss, predictions=predictions, logits=logits)

    def _loss(self, potentials: Potentials, words: Words) -> Tensor:
        labels, structure = cast(Tensor, words.labels), cast(Structure, self.head.structure)
        sets = labels.ndim == 3
        if sets or bool((labels == NO_WORD).any()):
            structure = HiddenStates(structure)
        if self.config.loss == "softmax-margin":
            return SoftmaxMargin(structure)(potentials, labels)
        structure.check_target(labels, potentials)
        known = labels.any(2) & ~labels.all(2) if sets else labels >= 0
        scores, labels = potentials["emission"][known], labels[known]
        if sets:
            total = -scores.log_softmax(1).masked_fill(~labels, -torch.inf).logsumexp(1).sum()
        else:
            total = nn.functional.cross_entropy(scores, labels, reduction="sum")
        return total / known.sum().clamp(min=1)

    def parameter_groups(self, lr: float, head_lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """What trains, for ``Trainer(optimizers=(torch.optim.AdamW(groups), None))``: the head has a separate rate.

        Biases, norms and other vectors are not decayed. The Trainer's schedule scales both rates; it ignores
        ``learning_rate`` and ``weight_decay`` of its arguments.

        Args:
            lr: The learning rate of the encoder.
            head_lr: The learning rate of the head, which is new: some 10 to 100 times as large.
            weight_decay: The decay of matrices.
        """
        groups = [
            {
                "params": [p for p in part.parameters() if p.requires_grad and (p.ndim > 1) == matrices],
                **{"lr": rate, "weight_decay": weight_decay * matrices},
            }
            for part, rate in ((self.encoder, lr), (self.head, head_lr))
            for matrices in (True, False)
        ]
        return [group for group in groups if group["params"]]

    def compute_metrics(self, predicted: Any) -> dict[str, float]:
        """For ``Trainer(compute_metrics=tagger.compute_metrics)``: accuracy of words and sentences, F1 of spans.

        Raises:
            ValueError: The labels are sets, so that the right one is unknown.
        """
        tags, labels = (torch.as_tensor(each) for each in (predicted.predictions, predicted.label_ids))
        if labels.ndim == 3:
            raise ValueError("label_ids are sets of labels: give one label for each word, or leave compute_metrics out")
        real = labels != NO_WORD
        right = (tags == labels) | ~real
        scores = {
            "accuracy": float(right[real].double().mean()),
            "sentence_accuracy": float(right.all(1).double().mean()),
        }
        if self.config.scheme is not None:
            names = self.config.labels

            def chunked(rows: Tensor) -> list[list[str]]:
                pairs = zip(rows, real, strict=True)
                return [to_bio([names[state] for state in row[kept].tolist()]) for row, kept in pairs]

            overall = chunk_scores(chunked(labels), chunked(tags)).overall
            scores |= {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}
        return scores

    def solve(
        self,
        dataset: Any,
        held_out: Any = None,
        *,
        lam: float | None = None,
        batch_size: int = 32,
        tolerance: Tolerance = Relative(0.01),  # noqa: B008  # frozen
        solver: Solver | None = None,
        progress: bool = True,
    ) -> Solved:
        """Train the head on the encoder's features, computed once, to a certified gap; the encoder is not trained.

        A new head has the temperature 1 until :meth:`calibrate` fits another.

        Args:
            dataset: Map-style; an item maps ``input_ids``, ``attention_mask`` and ``labels`` to lists of numbers, as
                the items of :func:`tokenized`, and ``word_mask`` where words have no label. For these and among sets of
                labels, the head as it is chooses the best sequence, and the certificate holds for these labels: a call
                is one round of :func:`torchssvm.latent`. All windows of a text, one after another, are one example.
            held_out: Examples that are not trained on. Their F1 of spans, or share of right words without a scheme,
                chooses lambda and decides between the old head and the new one. None needs ``lam`` and keeps the new
                head.
            lam: Regularisation; None chooses it by :func:`torchssvm.choose_lam`.
            solver: As in :func:`torchssvm.solve`.

        Raises:
            ValueError: Neither ``held_out`` nor ``lam`` is given; labels do not fit; ``held_out`` has sets of them, or
                words without a label; or ``dataset`` has, and the head is zero; or a window of a text is missing.
            TypeError: The head is within an adapter.
        """
        options: Any = {"tolerance": tolerance, "solver": solver, "progress": progress}
        solved = solve_head(self, dataset, held_out, lam, batch_size, **options)
        note_solved(self, solved, 0 if held_out is None else len(held_out))
        return solved

    def calibrate(self, held_out: Any, *, batch_size: int = 32) -> float:
        """Fit the temperature of probabilities to examples that were not trained on; returns it.

        It is the T that makes the labels of the examples most probable, ``P(y) = exp(score(y) / T) / Z`` (Guo et al.,
        *On Calibration of Modern Neural Networks*, ICML 2017), and is kept in the configuration. Tags stay as they are.

        Args:
            held_out: As in :meth:`solve`.
            batch_size: As in :meth:`solve`.
        """
        return calibrate(self, held_out, batch_size)

    def tag(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        tokenizer: Any,
        *,
        batch_size: int = 32,
        stride: int | None = None,
    ) -> list[list[Span]]:
        """The spans of raw texts, or of lists of words, with their probabilities.

        Args:
            texts: Sentences, or with ``stride`` texts of any length. A string is split into words by the tokeniser, as
                ``word_ids`` says; spaces alone are no word.
            tokenizer: The encoder's, a fast one.
            batch_size: How many texts are decoded together, and how many windows of them are encoded.
            stride: Cuts a text that has more pieces than the encoder takes into windows of whole words, of which
                neighbours share up to ``stride`` pieces. A word's scores are those of the window in which it stands
                farthest from an edge, and one Viterbi decodes the text. None refuses such texts.

        Returns:
            For every text its spans; with ``scheme=None`` one for each word.

        Raises:
            TypeError: ``texts`` is one text.
            ValueError: A text has no word, or more pieces than the encoder takes: nothing is cut off. With ``stride``:
                it is not less than a window takes, or a word is longer than a window.
        """
        return tag_texts(self, texts, tokenizer, batch_size, stride)


class TaggerDecoder(nn.Module):
    """Pieces to tags: encoder, head and decoding, for ``torch.export``, ``torch.compile`` and ``torch.onnx.export``.

    It gives the predictions of the tagger, with any batch size and length. It shares the tagger's weights and puts it
    into evaluation mode.

    Example:
        >>> decoder = TaggerDecoder(StructuredTagger(StructuredTaggerConfig(encoder, labels, "BIO")))
        >>> ids = torch.tensor([[4, 5, 2, 3]])
        >>> decoder(ids, torch.ones_like(ids), torch.tensor([[True, False, True, True]]))
        tensor([[   0, -100,    0,    0]])
    """

    def __init__(self, tagger: StructuredTagger) -> None:
        super().__init__()
        self.tagger = tagger
        rule = tagger.head.structure.plain_decoder()
        assert rule is not None  # chains have one
        self.rule = rule
        self.eval()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, word_mask: Tensor) -> Tensor:
        """The tags, ``[B, N]`` int64: a state at the first piece of every word, -100 elsewhere.

        Args:
            input_ids: ``[B, N]`` int64.
            attention_mask: ``[B, N]`` int64, 0 in the padding.
            word_mask: ``[B, N]`` bool, the first piece of each word, at least one in a row: no graph checks it.
        """
        tagger = self.tagger
        with torch.no_grad():
            hidden = tagger.hidden(input_ids=input_ids, attention_mask=attention_mask)
            lengths = word_mask.sum(1)
            # where each position goes: words to the left, in their order, and the others behind them
            behind = lengths.unsqueeze(1) + (~word_mask).cumsum(1) - 1
            place = torch.where(word_mask, word_mask.cumsum(1) - 1, behind)
            words = torch.zeros_like(hidden).scatter(1, place.unsqueeze(2).expand(hidden.shape), hidden)
            potentials = tagger.head(words, lengths).detach()
            tags: Tensor = (
                self.rule(potentials.tensors, lengths) if plain() else tagger.head.structure.argmax(potentials).labeling
            )
            return tags.gather(1, place).masked_fill(~word_mask, NO_WORD)
