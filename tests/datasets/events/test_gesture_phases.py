"""Phases of gestures: the reader on little files of the same form, and the published files where they are."""

import hashlib
import io
import itertools
import zipfile

import numpy as np
import pytest
import torch

from torchssvm import Segments
from torchssvm.datasets import GesturePhases
from torchssvm.datasets import files as files_module
from torchssvm.datasets.events import gesture_phases as module
from torchssvm.datasets.files import find

FRAMES = 40
VIDEOS = ("a1", "a2", "a3", "b1", "b3", "c1", "c3")


def video(seed):
    """Numbers ``[N, 18]`` of a video, and the names of its phases."""
    random = np.random.default_rng(seed)
    numbers = (random.normal(size=(FRAMES + seed, 18)) + 3.0).round(6)
    names = [GesturePhases.phases[int(k)] for k in random.integers(0, 5, 20).repeat(5)]
    return numbers, names[: len(numbers)]


def text(seed):
    numbers, names = video(seed)
    rows = [
        ",".join([*map(str, row), str(1000 + t), name])
        for t, (row, name) in enumerate(zip(numbers, names, strict=True))
    ]
    return "lhx,...,phase\n" + "".join(f"{row}\n" for row in rows)


TEXTS = {f"{name}_raw.csv": text(seed) for seed, name in enumerate(VIDEOS)}


@pytest.fixture
def published(monkeypatch):
    """The checksums are those of the little files."""
    digests = {name: hashlib.sha256(TEXTS[f"{name}_raw.csv"].encode()).hexdigest() for name in VIDEOS}
    monkeypatch.setattr(module, "_SHA256", digests)


@pytest.fixture
def folder(published, tmp_path):
    (tmp_path / "gestures").mkdir()
    for name, content in TEXTS.items():
        (tmp_path / "gestures" / name).write_bytes(content.replace("\n", "\r\n").encode())
    return tmp_path


def features(numbers):
    """From the definition, frame by frame."""
    scale = np.sort(np.hypot(*(numbers[:, 6:8] - numbers[:, 9:11]).T))[(len(numbers) - 1) // 2]
    joints = [(numbers[:, at : at + 3] - numbers[:, 9:12]) / [scale, scale, 1.0] for at in (0, 3, 12, 15)]

    def change(values):
        last = len(values) - 1
        ends = [(max(t - 3, 0), min(t + 3, last)) for t in range(last + 1)]
        return np.stack([(values[b] - values[a]) / (b - a) for a, b in ends])

    velocities = [change(joint) for joint in joints]
    accelerations = [change(velocity) for velocity in velocities]
    lengths = [np.sqrt((each**2).sum(1, keepdims=True)) for each in (*velocities, *accelerations)]
    return np.concatenate([*joints, *velocities, *accelerations, *lengths], 1)


@pytest.mark.parametrize("every", [1, 4])
def test_features_are_standardised_by_the_training_videos(folder, every):
    of_video = {name: features(video(seed)[0]) for seed, name in enumerate(VIDEOS)}
    frames = np.concatenate([of_video[name] for name in ("a1", "a2", "a3", "b1", "b3")])
    for split, names in (("train", VIDEOS[:5]), ("test", VIDEOS[5:])):
        data = GesturePhases(split, test=("c3", "c1"), every=every, root=folder)
        assert data.videos == names
        assert data.x.dtype == torch.float32
        for place, name in enumerate(names):
            expected = (of_video[name] - frames.mean(0)) / frames.std(0, ddof=1)
            torch.testing.assert_close(data[place].x.double().numpy(), expected[::every], atol=1e-5, rtol=1e-5)


def test_runs_of_phases_are_segments(folder):
    data = GesturePhases("test", root=folder)
    assert data.videos == ("a3", "b3", "c3")
    structure = Segments(5, 1)
    for row, seed in enumerate((2, 4, 6)):
        names = video(seed)[1]
        runs = [(name, len(list(run))) for name, run in itertools.groupby(names)]
        spans = structure.spans(data.y)[row]
        assert [(data.phases[label], end - start) for start, end, label in spans] == runs
    coarse = GesturePhases("test", every=3, root=folder)
    assert torch.equal(structure.frames(coarse.y)[0, :14], structure.frames(data.y)[0, :42:3])
    assert coarse.lengths.tolist() == [14, 15, 16]


@pytest.mark.parametrize(
    "wrong", [{"split": "dev"}, {"test": "a3"}, {"test": ["a4"]}, {"test": ()}, {"test": VIDEOS}, {"every": 2.5}]
)
def test_a_wrong_argument_is_named(folder, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GesturePhases(**{"root": folder, **wrong})


def test_a_file_that_is_not_the_published_one(folder):
    file = folder / "gestures" / "b1_raw.csv"
    file.write_bytes(file.read_bytes().replace(b"Rest", b"Hold", 1))
    with pytest.raises(RuntimeError, match=r"b1_raw.csv"):
        GesturePhases(root=folder)


def packed(texts):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return content.getvalue()


def test_files_are_unpacked_from_one_download(published, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(files_module, "_download", lambda url: asked.append(url) or packed(TEXTS))
    data = GesturePhases(root=tmp_path)
    assert len(asked) == 1
    assert sorted(file.name for file in (tmp_path / "gestures").iterdir()) == sorted(TEXTS)
    (tmp_path / "gestures" / "c1_raw.csv").unlink()
    assert torch.equal(GesturePhases(root=tmp_path).x, data.x)
    GesturePhases(root=tmp_path)
    assert len(asked) == 2


def test_the_published_files():
    try:
        for name in TEXTS:
            find(f"gestures/{name}", "https://archive.ics.uci.edu/dataset/302")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    train, test = GesturePhases(), GesturePhases("test")
    assert train.lengths.tolist() == [1747, 1264, 1073, 1111]
    assert test.lengths.tolist() == [1834, 1424, 1448]
    structure = Segments(5, 1)
    spans = structure.spans(train.y) + structure.spans(test.y)
    assert sum(map(len, spans)) == 395
    assert max(end - start for video in spans for start, end, _ in video) == 214
    frames = torch.cat([structure.frames(each.y).flatten() for each in (train, test)])
    assert frames[frames >= 0].bincount().tolist() == [2769, 2097, 2950, 998, 1087]
    # One video has x and y in another unit than others; features do not show it.
    assert 0.5 < float(test[1].x.std(0).min()) < float(test[1].x.std(0).max()) < 2.0
