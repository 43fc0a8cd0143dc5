"""The reader of poses, on images made here and on the real ones where they are."""

import shutil

import numpy as np
import pytest
import torch

from torchssvm import DualState, Multiclass
from torchssvm.datasets import LSPET, PoseTargets

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """1000 images of 12 x 8 pixels, left half black and right half white, with joints all over them."""
    folder = tmp_path_factory.mktemp("data") / "lspet"
    (folder / "images").mkdir(parents=True)
    pixels = np.zeros((8, 12, 3), np.uint8)
    pixels[:, 6:] = 255
    first = folder / "images" / "im00003.jpg"
    Image.fromarray(pixels).save(first, quality=95)
    numbers = 3 + 2 * np.arange(1000)
    for number in numbers[1:]:
        shutil.copyfile(first, folder / "images" / f"im{number:05d}.jpg")
    random = np.random.default_rng(0)
    joints = (random.random((1000, 14, 2)) * [12, 8]).astype(np.float32)
    joints[0, 0], joints[0, 1] = (0.0, 0.0), (11.99, 7.99)
    np.savez(folder / "joints_1000.npz", image=numbers.astype(np.int32), joints=joints)
    return folder.parent


@pytest.fixture
def copy(made, tmp_path):
    """The same, to damage: all images but the first 100 are those of ``made``."""
    folder = tmp_path / "lspet"
    (folder / "images").mkdir(parents=True)
    for file in sorted((made / "lspet" / "images").iterdir())[:100]:
        shutil.copyfile(file, folder / "images" / file.name)
    shutil.copyfile(made / "lspet" / "joints_1000.npz", folder / "joints_1000.npz")
    return tmp_path


def test_splits(made):
    train, test = LSPET(root=made), LSPET("test", root=made)
    assert (len(train), len(test), len(LSPET(size="small", root=made))) == (800, 200, 100)
    assert train.numbers[:2] == [3, 5]
    assert test.numbers[-1] == 3 + 2 * 999
    assert not set(train.numbers) & set(test.numbers)


def test_images_and_joints_are_scaled_alike(made):
    data = LSPET(size="small", canvas=(48, 48), root=made)
    assert data.scales[0] == 4.0
    image, joints, index = data[0]
    assert image.shape == (3, 48, 48)
    assert image.dtype == joints.dtype == torch.float32
    assert index == 0
    assert float(image[:, :32, :20].max()) < 0.1
    assert float(image[:, :32, 28:].min()) > 0.9
    assert bool((image[:, 32:] == 128 / 255).all())  # beside the image
    torch.testing.assert_close(joints[:2], torch.tensor([[0.0, 0.0], [47.96, 31.96]]))
    places = data.places(4)
    assert places[0, 0].tolist() == [0.0, 0.0]
    assert places.round().long().amax((0, 1)).tolist() == [11, 7]
    torch.testing.assert_close(places[0, 2], (joints[2] / 4 - 0.5).clamp(min=0.0, max=11.0))
    batch = data.collate([data[3], data[-1]])
    assert batch.x.shape == (2, 3, 48, 48)
    assert torch.equal(batch.y, data.joints[[3, 99]])
    assert batch.index.tolist() == [3, 99]


IMAGE, JOINTS = "images/im00005.jpg", "joints_1000.npz"


@pytest.mark.parametrize(
    ("name", "damage", "error"),
    [
        (IMAGE, lambda file: file.unlink(), FileNotFoundError),
        (IMAGE, lambda file: file.write_bytes(file.read_bytes()[:-20]), RuntimeError),
        (IMAGE, lambda file: file.write_bytes(b"no image"), RuntimeError),
        (IMAGE, lambda file: Image.new("RGB", (1, 1)).save(file), RuntimeError),
        (JOINTS, lambda file: file.unlink(), FileNotFoundError),
        (JOINTS, lambda file: file.write_bytes(b"nothing"), RuntimeError),
        (JOINTS, lambda file: np.savez(file, image=np.arange(3), joints=np.zeros((3, 14, 2))), RuntimeError),
    ],
)
def test_damaged_files_are_named(copy, name, damage, error):
    damage(copy / "lspet" / name)
    with pytest.raises(error, match=name.split("/")[-1]):
        LSPET(size="small", root=copy)[1]


@pytest.mark.parametrize("options", [{"split": "val"}, {"size": "tiny"}, {"canvas": (0, 5)}])
def test_options_that_make_no_sense(made, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        LSPET(**options, root=made)


def test_images_that_are_kept_are_read_once(made, monkeypatch):
    data = LSPET(size="small", canvas=(48, 48), root=made, keep=True)
    first = data[2]
    first[0].zero_()  # an item is a copy
    monkeypatch.setattr(data, "_read", None)
    again = LSPET(size="small", canvas=(48, 48), root=made)[2]
    assert torch.equal(data[2][0], again[0])
    assert torch.equal(data[2][1], again[1])


def test_places_and_pixels_are_inverse(made):
    data = LSPET(size="small", canvas=(48, 48), root=made)
    middle = data.pixels(torch.tensor([[0, 0], [11, 7]]), 4)
    assert middle.tolist() == [[2.0, 2.0], [46.0, 30.0]]
    back = data.pixels(data.places(4).round(), 4)
    assert float((back - data.joints).abs().max()) <= 2.0 + 1e-5


def test_scores_are_in_pixels_of_the_images(made):
    data = LSPET("test", canvas=(48, 48), root=made)  # four pixels of the canvas are one of the image
    perfect = data.scores(data.joints)
    assert perfect == (1.0, 1.0, 0.0, 0.0)
    moved = data.scores(data.joints + torch.tensor([8.0, 0.0]))
    assert moved.mean_error == pytest.approx(2.0, abs=1e-5)
    with pytest.raises(ValueError, match="predicted"):
        data.scores(data.joints[:5])


def test_targets_are_labelings_of_some_images(made):
    images = LSPET(size="small", canvas=(48, 48), root=made)
    seen = []
    data = PoseTargets(images, lambda joints: seen.append(joints) or joints.round().long(), 4, range(3, 7))
    assert torch.equal(seen[0], images.places(4)[3:7])
    image, labeling, index = data[1]
    assert torch.equal(image, images[4][0])
    assert torch.equal(labeling, images.places(4)[4].round().long())
    assert (len(data), index, data[-1][2]) == (4, 1, 3)
    batch = data.collate([data[0], data[2]])
    assert (batch.x.shape, batch.y.shape, batch.index.tolist()) == ((2, 3, 48, 48), (2, 14, 2), [0, 2])
    with pytest.raises(IndexError):
        data[4]


def test_the_data_module(made):
    pytest.importorskip("lightning")
    from torchssvm.datasets import LSPETData

    options = {"label": lambda joints: joints.round().long(), "canvas": (48, 48), "root": made, "size": "small"}
    data = LSPETData(**options, hold_out=0.25, batch_size=4)
    data.setup("fit")
    assert (len(data.train), len(data.val), len(data.test)) == (75, 25, 200)
    assert torch.equal(data.val.y[0], data.train.images.places(4)[75].round().long())
    loader = data.train_dataloader()
    loader.batch_sampler.bind(DualState.for_head(torch.nn.Linear(1, 1), 75, 1.0, structure=Multiclass(1)))
    assert next(iter(loader)).x.shape == (4, 3, 48, 48)
    assert [len(b.index) for b in data.val_dataloader()] == [16, 9]
    whole = LSPETData(**options)
    assert len(whole.train) == 100
    assert whole.val is whole.test
    for share in (1.5, 0.001):
        with pytest.raises(ValueError, match="hold_out="):
            LSPETData(**options, hold_out=share).setup("fit")


def test_the_real_images():
    try:
        train, test = LSPET(canvas=(192, 192)), LSPET("test")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    assert (len(train), len(test)) == (800, 200)
    image, joints, _ = train[0]
    assert image.shape == (3, 192, 192)
    assert 0.0 <= float(image.min()) < 0.2 < 0.8 < float(image.max()) <= 1.0
    assert bool(((joints >= 0) & (joints < 192)).all())
    # Bodies: most heads are above most ankles, and people of the canvas' size have trunks of some length.
    assert float((train.joints[:, 13, 1] < train.joints[:, 0, 1]).float().mean()) > 0.6
    assert 20 < float((train.joints[:, 9] - train.joints[:, 2]).norm(dim=1).median()) < 60
