import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cases.problems import examples
from hypothesis import given
from hypothesis import strategies as st

from torchssvm import BlockGap, CacheOracle, Corrective, DualState, Edges, Labelings, Solver, TorchLoop, check
from torchssvm.datasets import AlignmentErrors, SentencePair, WordAlignment, alignment_errors
from torchssvm.datasets.text.alignment_features import AlignmentFeatures, CoOccurrence, dice, stem
from torchssvm.datasets.text.alignment_text import read_aligned, read_unaligned
from torchssvm.datasets.text.word_alignment import links_of, target_of
from torchssvm.models import align, alignment_matching, best_threshold, matching_links, threshold_links
from torchssvm.structures import POSSIBLE

ALIGNMENT = Path(__file__).parents[3] / "examples" / "alignment.py"


def tagged(sentences) -> str:
    return "".join(f"<s snum={n:04}> {text} </s>\n" for n, text in enumerate(sentences, 1))


def write(folder, name, french, english, links=None):
    """A text as the shared task has it."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = links is None
    for ending, lines in (("f", french), ("e", english)):
        text = "".join(f"{line} \n" for line in lines) if plain else tagged(lines)
        (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")
    if not plain:
        (folder / f"{name}.align").write_text("".join(f"{line}\n" for line in links), encoding="utf-8")
    return [folder / f"{name}.{ending}" for ending in ("f", "e", "align")]


def made_up(count, seed):
    """Sentences of two languages that know 24 words; neighbours may change places, and some words are left out."""
    random = np.random.default_rng(seed)
    french, english, links = [], [], []
    for _ in range(count):
        words = random.choice(24, int(random.integers(2, 7)), replace=False)
        order = list(range(len(words)))
        for place in range(len(order) - 1):
            if random.random() < 0.3:
                order[place : place + 2] = reversed(order[place : place + 2])
        order = [place for place in order if random.random() < 0.85] or [0]
        french.append(" ".join(f"mot{words[place]}" for place in order) + " .")
        english.append(" ".join(f"word{word}" for word in words) + " .")
        pairs = [f"{f}-{e}" for f, e in enumerate(order)] + [f"{len(order)}-{len(words)}"]
        pairs += [f"0-{e}-P" for e in range(len(words)) if e not in order][:1]
        links.append(" ".join(pairs))
    return french, english, links


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Files of the made-up languages: 106 test, 8 dev, and 300 unaligned sentences in two texts."""
    folder = tmp_path_factory.mktemp("data")
    write(folder / "hansards" / "test", "test", *made_up(106, 0))
    write(folder / "hansards" / "dev", "trial", *made_up(8, 1))
    for text in (2, 3):
        write(folder / "hansards" / "train", f"debate{text}", *made_up(150, text)[:2])
    return folder


@pytest.fixture(scope="module")
def train(root):
    return WordAlignment("train", root)


@pytest.fixture(scope="module")
def hansards():
    """The real training sentences."""
    try:
        return WordAlignment("train")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


def test_files_are_read(tmp_path):
    paths = write(tmp_path, "a", ["Le chat «  dort »", "œuf"], ["the cat sleeps", "an egg"], ["0-0 1-1 3-2-P", ""])
    first, second = read_aligned(*paths)
    assert first.french == ("Le", "chat", "«", "dort", "»")
    assert first.english == ("the", "cat", "sleeps")
    assert first.sure == {(0, 0), (1, 1)}
    assert first.possible == {(0, 0), (1, 1), (3, 2)}
    assert second == SentencePair(("œuf",), ("an", "egg"))
    for change in (
        *(lambda text: text.replace("\n", "\r"), lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text),
        *(lambda text: text.replace("\n", " \t\n"), lambda text: text.replace(" ", "\t").replace("<s\t", "<s ")),
    ):
        others = [tmp_path / f"other{path.suffix}" for path in paths]
        for path, other in zip(paths, others, strict=True):
            other.write_bytes(change(path.read_text()).encode())
        assert read_aligned(*others) == [first, second]
    plain = write(tmp_path, "b", ["un œuf"], ["an egg"])
    assert read_unaligned(*plain[:2]) == [SentencePair(("un", "œuf"), ("an", "egg"))]


@pytest.mark.parametrize(
    ("ending", "content", "place"),
    [
        ("align", "0-0 2-0\n0-0\n", r"a\.align, line 1"),
        ("align", "0-0\n0-3-P\n", r"a\.align, line 2"),
        ("align", "0--1\n0-0\n", r"a\.align, line 1"),
        ("align", "0-0 1-0 0-0-P\n\n", r"a\.align, line 1"),
        ("align", "0-0\n", r"a\.align has 1"),
        ("f", "<s snum=0001> a b </s>\n<s snum=0003> a b </s>\n", r"a\.e, line 2"),
        ("e", "<s snum=0001> a b c </s>\n<s snum=0002>  </s>\n", r"a\.e, line 2"),
        ("f", tagged(["a b", "caf\udce9 b"]), r"a\.f, line 2"),
    ],
)
def test_malformed_files_are_named_with_the_line(tmp_path, ending, content, place):
    paths = write(tmp_path, "a", ["a b", "a b"], ["a b c", "a b c"], ["0-0", "1-1"])
    (tmp_path / f"a.{ending}").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=place):
        read_aligned(*paths)
    with pytest.raises(FileNotFoundError, match=r"test\.f"):
        WordAlignment("train", tmp_path)


def pair_with(sure, possible, french=4, english=4):
    return SentencePair(("f",) * french, ("e",) * english, frozenset(sure), frozenset(sure) | frozenset(possible))


def test_known_error_rates():
    pair = pair_with({(0, 0), (1, 1)}, {(2, 2), (2, 3)})
    assert alignment_errors([[(0, 0), (1, 1)]], [pair]) == AlignmentErrors(0.0, 1.0, 1.0)
    assert alignment_errors([[(0, 0), (1, 1), (2, 2)]], [pair]) == AlignmentErrors(0.0, 1.0, 1.0)
    # |A| = 3, |S| = 2; one sure, two possible among them.
    assert alignment_errors([[(0, 0), (2, 3), (3, 3)]], [pair]) == pytest.approx((1 - 3 / 5, 2 / 3, 1 / 2))
    assert alignment_errors([[]], [pair]) == AlignmentErrors(1.0, 1.0, 0.0)
    assert alignment_errors([[(3, 0)]], [pair]) == AlignmentErrors(1.0, 0.0, 0.0)
    assert alignment_errors([[]], [pair_with((), {(0, 0)})]) == AlignmentErrors(0.0, 1.0, 1.0)
    # Counts are over all sentences, not means of each.
    both = alignment_errors([[(0, 0), (1, 1)], [(3, 0)]], [pair, pair_with({(0, 0)}, ())])
    assert both == pytest.approx((1 - 4 / 6, 2 / 3, 2 / 3))
    with pytest.raises(ValueError, match="predicted"):
        alignment_errors([[]], [pair, pair])


def test_the_target_is_the_largest_matching_near_the_diagonal():
    # Word 1 of the left side belongs to three words on the right; 0-0 is only possible.
    target = target_of(pair_with({(1, 0), (1, 1), (1, 3), (3, 3)}, {(0, 0)}))
    assert target.tolist() == [[POSSIBLE, 0, 0, 0], [POSSIBLE, 1, 0, POSSIBLE], [0, 0, 0, 0], [0, 0, 0, 1]]
    # The chain 0-1, 1-1, 1-0 has a matching of two, off the diagonal; 1-1 alone is nearer to it.
    assert links_of(target_of(pair_with({(0, 1), (1, 1), (1, 0)}, ()))) == {(0, 1), (1, 0)}
    assert not links_of(target_of(pair_with((), {(0, 0)})))


@examples(30)
@given(links=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=7))
def test_the_target_is_as_large_as_it_can_be(links):
    target = target_of(pair_with(links, (), 4, 5))
    chosen = links_of(target)
    assert chosen <= links
    largest = max(
        (len(some) for size in range(len(links) + 1) for some in itertools.combinations(links, size)
         if len({f for f, _ in some}) == len({e for _, e in some}) == size),
    )  # fmt: skip
    assert len(chosen) == largest
    assert {tuple(e) for e in (target == POSSIBLE).nonzero().tolist()} == links - chosen


TEXT = [
    SentencePair(("le", "chat", "Dort", "le"), ("The", "cat", "sleeps")),
    SentencePair(("le", "chien"), ("the", "dog")),
    SentencePair(("un", "chat"), ("a", "cat")),
]


def test_known_dice_coefficients():
    """Sentences are counted, not words; capitals do not matter; words never seen have none."""
    pair = SentencePair(("LE", "chat", "oiseau"), ("the", "cat", "bird"))
    expected = [[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.0]]
    assert dice(CoOccurrence(TEXT), pair).tolist() == expected
    assert dice(CoOccurrence(TEXT), pair, discount=4.0)[0].tolist() == [0.5, 0.25, 0.0]
    stems = dice(CoOccurrence(TEXT, stem), SentencePair(("chienne",), ("dogs", "sleepy")))
    assert stems.tolist() == [[0.0, 0.0]]  # dog has only three letters
    assert dice(CoOccurrence(TEXT, stem), SentencePair(("Chiens",), ("dog",))).tolist() == [[1.0]]
    with pytest.raises(ValueError, match="pairs"):
        CoOccurrence([])


def test_known_features():
    features = AlignmentFeatures(TEXT)
    named = features.named(SentencePair(("le", "chat", "municipal", "1998", "."), ("the", "cat", "municipality", ".")))
    assert named["dice_best"][:2, :2].tolist() == [[True, False], [False, True]]
    assert not named["dice_best"][2:].any()  # nothing is known of them, and nothing is best
    assert named["dice_of_french_best"][0].tolist() == [1.0, 0.5, 0.0, 0.0]
    assert named["dice_lead"][0, 0] == 0.5
    assert named["distance"][0, 0] == pytest.approx(0.5 / 4 - 0.5 / 5)
    assert named["distance_squared"][4, 0] == pytest.approx((4.5 / 5 - 0.5 / 4) ** 2)
    assert named["both_first"].sum() == named["both_last"].sum() == 1
    assert named["both_last"][4, 3]
    assert named["same"].nonzero()[0].tolist() == [4]
    assert named["same_punctuation"][4, 3] == 1
    assert named["one_number"][3].all()
    assert named["one_punctuation"][4].tolist() == [True, True, True, False]
    assert named["common_prefix"][2, 2] == pytest.approx(9 / 12)
    assert named["prefix_5"].nonzero()[0].tolist() == [2]
    assert named["common_letters"][2, 2] == pytest.approx(9 / 12)
    # Le and the: twice each, twice together; two more sentences in the denominator.
    assert named["before"][1, 1] == pytest.approx(2 * 2 / (2 + 2 + 2))
    assert named["after"][0, 0] == pytest.approx(2 / 3)
    assert named["around"][1, 1] == pytest.approx(1 / 3)  # nothing is known of what comes after
    assert named["before"][0].tolist() == [0.0] * 4
    assert named["french_unseen"][2].all()
    assert not named["french_unseen"][0].any()


def test_the_splits(root, train):
    test, dev = WordAlignment("test", root, train.features), WordAlignment("dev", root, train.features)
    assert [len(split) for split in (train, test, dev)] == [100, 6, 8]
    everything = read_aligned(*(root / "hansards" / "test" / f"test.{ending}" for ending in ("f", "e", "align")))
    assert train.pairs + test.pairs == everything
    assert test.features is train.features
    assert test.feature_names == train.feature_names


def test_batches_are_padded(train):
    rows = [5, 99, -98, 0]
    batch = train.__getitems__(rows)
    assert batch.index.tolist() == [5, 99, 2, 0]
    assert isinstance(batch.x, Edges)
    for row, i in enumerate(batch.index.tolist()):
        x, y, index = train[i]
        left, right = len(train.pairs[i].french), len(train.pairs[i].english)
        assert (batch.lengths[row], batch.x.widths[row], index) == (left, right, i)
        assert torch.equal(batch.x.features[row, :left, :right], x)
        assert torch.equal(batch.y[row, :left, :right], y)
        for beyond in ((slice(left, None), slice(None)), (slice(None), slice(right, None))):
            assert not batch.x.features[row][beyond].any()
            assert bool((batch.y[row][beyond] == -1).all())
    assert batch.y.shape[1:] == (int(batch.lengths.max()), int(batch.x.widths.max()))
    again = train.collate([train[i] for i in rows])
    assert torch.equal(again.x.features, batch.x.features)
    assert torch.equal(train.__getitems__(torch.tensor(rows)).y, batch.y)
    assert train.collate(batch) is batch


def test_head_and_batches_pass_the_check(train):
    head = alignment_matching(train.in_features)
    head.structure.enumerate = lambda potentials: None  # too many to list: compared with samples
    report = check(head.double(), head.structure, train.__getitems__([3, 50, 77]))
    assert report.ok, str(report)


def fit(dataset, lam, gap):
    head = alignment_matching(dataset.in_features)
    dual = DualState.for_head(head, len(dataset), lam, storage=Labelings())
    loss = BlockGap(dual, Corrective(), oracle=CacheOracle())
    return head, TorchLoop(head, loss, dataset, batch_size=4).solve(gap, max_passes=200)


def test_made_up_languages_are_learned(root, train):
    head, certificate = fit(train, 1.0, 0.02)
    assert certificate.gap <= 0.02
    test = WordAlignment("test", root, train.features)
    result = align(head, test, batch_size=4)
    assert result == align(head, test, batch_size=1)
    assert all(len({f for f, _ in links}) == len({e for _, e in links}) == len(links) for links in result)
    assert alignment_errors(result, test.pairs).error_rate < 0.05


def test_rules_on_a_coefficient():
    values = [torch.tensor([[0.9, 0.8], [0.7, 0.1]])]
    assert threshold_links(values, 0.5) == [{(0, 0), (0, 1), (1, 0)}]
    assert matching_links(values, 0.5) == [{(0, 1), (1, 0)}]
    assert matching_links(values, 0.85) == [{(0, 0)}]

    def error(result):
        return len(result[0] ^ {(0, 0), (0, 1)})

    assert best_threshold(threshold_links, values, error, steps=10) == 0.7
    assert best_threshold(threshold_links, values, lambda result: 0.0) == 0.0


def test_the_data_module(root):
    pytest.importorskip("lightning")
    from cases.lightning_chains import trainer

    from torchssvm.datasets import WordAlignmentData
    from torchssvm.lightning import DualityGap, StructuredSVM

    data = WordAlignmentData(batch_size=8, root=root)
    data.setup("fit")
    assert len(data.val_dataloader().dataset) == 8
    model = StructuredSVM(
        alignment_matching(data.train.in_features), lam=1.0, solver=Solver(direction=Corrective(), storage=Labelings())
    )
    gap = DualityGap(tolerance=0.1, every_n_epochs=5)
    trainer(gap, max_epochs=60, enable_checkpointing=False).fit(model, data)
    assert gap.history[-1].certificate.gap <= 0.1
    (batch,) = data.predict_dataloader()
    assert len(batch.y) == len(data.test) == 6
    assert data.test.features is data.train.features
    assert model.decode(batch.x, batch.lengths).shape == batch.y.shape
    assert len(data.test_dataloader().dataset) == 6


def test_the_example(root, tmp_path, run_script):
    for extra in ("matplotlib", "lightning", "jsonargparse"):
        pytest.importorskip(extra)
    out = run_script(ALIGNMENT, "--data", root, "--gap", "0.05", "--report", tmp_path / "new", "--seed", "3")
    report = json.loads((tmp_path / "new" / "report.json").read_text(encoding="utf-8"))
    assert report["gap"] <= 0.05
    assert report["stopped_because"].startswith("certified gap")
    assert (report["n"], report["lam"], report["seed"]) == (100, 1.0, 3)
    assert report["num_weights"] == WordAlignment("dev", root).in_features
    for row in ("learned matching", "Dice matching", "Dice threshold"):
        assert f"\n{row} " in out
    assert (tmp_path / "new" / "convergence.png").stat().st_size > 10_000


def test_the_hansards_are_whole(hansards):
    test, dev = WordAlignment("test", features=hansards.features), WordAlignment("dev", features=hansards.features)
    assert [len(split) for split in (hansards, test, dev)] == [100, 347, 37]
    pairs = hansards.pairs + test.pairs
    assert sum(len(pair.sure) for pair in pairs) == 4038
    assert sum(len(pair.possible - pair.sure) for pair in pairs) == 13400
    assert hansards.pairs[0].french == ("2", ".")
    assert max(len(pair.french) for pair in pairs) == max(len(pair.english) for pair in pairs) == 30
    assert len(hansards.features.words.french) > 5000
    unaligned = hansards.features.words.french_count[hansards.features.words.french["."]]
    assert 1500 < unaligned <= 2383
    # Few links are lost by asking for a matching: a perfect learner would stay below this error rate.
    reachable = alignment_errors([links_of(y) for _, y, _ in (hansards[i] for i in range(100))], hansards.pairs)
    assert reachable.precision == 1.0
    assert reachable.error_rate < 0.03


def test_the_hansards_are_learned(hansards):
    """On the trial sentences, at a coarse gap: well below the better of the two rules on Dice."""
    head, certificate = fit(hansards, 1.0, 0.05)
    assert certificate.gap <= 0.05
    dev = WordAlignment("dev", features=hansards.features)
    learned = alignment_errors(align(head, dev), dev.pairs).error_rate
    rules = [
        min(alignment_errors(rule(dev.feature("dice"), t / 50), dev.pairs).error_rate for t in range(50))
        for rule in (matching_links, threshold_links)
    ]
    assert learned < 0.75 * min(rules)
