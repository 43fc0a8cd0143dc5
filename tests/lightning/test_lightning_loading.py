"""Models from checkpoints: their heads are made from plain words, of classes of this package only."""

from __future__ import annotations

import io
import pickle
import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

L = pytest.importorskip("lightning")

from cases.every_head import HEADS  # noqa: E402
from cases.lightning_chains import Words, trainer  # noqa: E402

import torchssvm.structures as structures  # noqa: E402
from torchssvm import Chain, LinearChain, LinearMulticlass, Multiclass, SlackRescaling, Solver  # noqa: E402
from torchssvm.deployment import files  # noqa: E402
from torchssvm.deployment.files import describe, rebuild  # noqa: E402
from torchssvm.lightning import FactorwiseSVM, StructuredSVM  # noqa: E402
from torchssvm.structures.slack_rescaling import EveryClass  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_made_again_from_plain_values(name: str):
    head = HEADS[name]()
    file = io.BytesIO()
    torch.save(describe(head), file)
    file.seek(0)
    again = rebuild(torch.load(file, weights_only=True))
    assert type(again) is type(head)
    shapes = [{key: (value.shape, value.dtype) for key, value in h.state_dict().items()} for h in (head, again)]
    assert shapes[0] == shapes[1]
    assert again.structure.same_as(head.structure)
    settings = [{k: v for k, v in vars(h.structure).items() if not isinstance(v, torch.Tensor)} for h in (head, again)]
    assert repr(settings[0]) == repr(settings[1])  # the oracles of structures too
    for setting in ("sparse_gradient", "positions"):
        assert getattr(again, setting, None) == getattr(head, setting, None)
    assert not any(p.any() for p in again.parameters())


def test_every_head_of_the_package_is_among_them():
    public = vars(structures).items()
    heads = {name for name, value in public if isinstance(value, type) and issubclass(value, nn.Module)}
    assert {type(make()).__name__ for make in HEADS.values()} == heads


def test_a_new_kind_is_declared_in_its_folder_alone(monkeypatch):
    monkeypatch.setattr(structures, "MyChain", MyChain, raising=False)
    monkeypatch.setattr(structures, "__all__", [*structures.__all__, "MyChain"])
    fresh = runpy.run_path(files.__file__)
    again = fresh["rebuild"](fresh["describe"](LinearChain(3, 3, structure=MyChain(3))))
    assert type(again.structure) is MyChain


class MyHead(LinearChain):
    """A head of a user."""


class MyChain(Chain):
    """A structure of a user."""


def test_what_is_not_of_this_package_has_no_recipe():
    assert describe(MyHead(3, 3)) is None
    assert describe(LinearChain(3, 3, structure=MyChain(3))) is None
    assert describe(nn.Linear(3, 3)) is None
    changed = LinearChain(3, 3)
    changed.emission = nn.Parameter(torch.zeros(4, 3), requires_grad=False)
    changed.bias = nn.Parameter(torch.zeros(7))  # edited by hand
    assert describe(changed) is None


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"class": "os.system", "arguments": {"command": "true"}}, "no recipe"),
        ({"class": "torch.nn.Linear", "arguments": {"in_features": 3, "out_features": 3}}, "no recipe"),
        ({"class": "LinearPose", "arguments": {"structure": {"class": "eval", "arguments": {}}}}, "'eval'"),
        ({"class": "LinearChain", "arguments": {"in_features": -1, "num_states": 3, "positions": None}}, "-1"),
        ({"class": "LinearChain"}, "no recipe"),
        ("LinearChain", "no recipe"),
        ({"class": ["LinearChain"], "arguments": {}}, "no recipe"),
    ],
)
def test_no_other_class_is_made_from_a_checkpoint(recipe, words: str):
    with pytest.raises(ValueError, match=re.escape(words)):
        rebuild(recipe)


def features() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Tanh())


CASES = {
    "compiled": lambda: StructuredSVM(LinearChain(3, 3), lam=0.1),
    "torch": lambda: StructuredSVM(
        LinearChain(3, 3), lam=0.1, solver=Solver(compiled=False, bounds={"transition": (0.0, None)})
    ),
    "features": lambda: StructuredSVM(LinearChain(5, 3), lam=0.1, features=features()),
    "factorwise": lambda: FactorwiseSVM(LinearChain(3, 3), lam=0.1, seed=3),
    "factorwise features": lambda: FactorwiseSVM(LinearChain(5, 3), lam=0.1, features=features()),
}


def fitted(model: L.LightningModule, path: Path, *, weights_only: bool = False) -> L.LightningModule:
    fitting = trainer(max_epochs=2, enable_checkpointing=False)
    fitting.fit(model, Words().training())
    fitting.save_checkpoint(path, weights_only=weights_only)
    return model


@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_model_is_loaded_as_it_was(name: str, only: bool, tmp_path: Path):
    model, path, words = (
        fitted(CASES[name](), tmp_path / "model.ckpt", weights_only=only),
        tmp_path / "model.ckpt",
        Words(),
    )
    given = {} if "features" not in name else {"features": features()}
    again = type(model).load_from_checkpoint(path, **given)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert again.lam == 0.1
    lengths = torch.full((len(words),), 4)
    assert torch.equal(model.decode(words.x, lengths), again.decode(words.x, lengths))
    loaded, kept = (trainer().predict(module, words.everything()) for module in (again, model))
    assert all(torch.equal(a, b) for a, b in zip(loaded, kept, strict=True))
    if "features" in name:
        with pytest.raises(ValueError, match=r"features=\.\.\."):
            type(model).load_from_checkpoint(path)
    else:
        with path.open("rb") as file:
            assert torch.equal(type(model).load_from_checkpoint(file).head.emission, model.head.emission)


def test_what_cannot_be_made_is_asked_for(tmp_path: Path):
    path = tmp_path / "model.ckpt"
    fitted(StructuredSVM(MyHead(3, 3), lam=0.1), path)
    with pytest.raises(ValueError, match="head="):
        StructuredSVM.load_from_checkpoint(path)
    assert type(StructuredSVM.load_from_checkpoint(path, head=MyHead(3, 3)).head) is MyHead
    with pytest.raises(RuntimeError, match="size mismatch"):
        StructuredSVM.load_from_checkpoint(path, head=LinearChain(4, 3))
    fitted(StructuredSVM(LinearChain(3, 3), lam=0.1, structure=MyChain(3), solver=Solver(compiled=False)), path)
    with pytest.raises(ValueError, match="structure="):
        StructuredSVM.load_from_checkpoint(path)
    assert type(StructuredSVM.load_from_checkpoint(path, structure=MyChain(3)).structure) is MyChain


def test_a_structure_of_the_package_in_the_place_of_the_heads(tmp_path: Path):
    path, random = tmp_path / "model.ckpt", torch.Generator().manual_seed(0)
    rescaled = SlackRescaling(Multiclass(3), EveryClass())
    from torchssvm.datasets import PaddedDataset

    data = PaddedDataset(torch.randn(9, 4, generator=random), torch.randint(3, (9,), generator=random))
    fitting = trainer(max_epochs=1, enable_checkpointing=False)
    fitting.fit(
        StructuredSVM(LinearMulticlass(4, 3), lam=0.1, structure=rescaled),
        torch.utils.data.DataLoader(data, batch_size=3, collate_fn=data.collate),
    )
    fitting.save_checkpoint(path)
    again = StructuredSVM.load_from_checkpoint(path)
    assert again.structure.same_as(rescaled)
    assert isinstance(again.structure.oracle, EveryClass)


def test_import_paths_in_hyperparameters_are_not_followed(tmp_path: Path):
    """Lightning's loading would make an argument of any class: its allowlist names only the function that makes it."""
    path = tmp_path / "model.ckpt"
    fitted(StructuredSVM(LinearChain(3, 3), lam=0.1), path)
    content = torch.load(path, weights_only=True)
    content["hyper_parameters"] |= {
        "_instantiator": "lightning.pytorch.cli.instantiate_module",
        "_class_path": "torchssvm.lightning.StructuredSVM",
        "features": {"class_path": "torch.nn.Linear", "init_args": {"in_features": 3, "out_features": 3}},
    }
    torch.save(content, path)
    with pytest.raises(ValueError, match="_instantiator"):
        StructuredSVM.load_from_checkpoint(path)


@pytest.mark.parametrize("given", [{}, {"head": LinearChain(3, 3)}])
def test_a_checkpoint_of_another_format_says_so(given, tmp_path: Path):
    """Square weights of 0.1 would load transposed."""
    path = tmp_path / "model.ckpt"
    fitted(StructuredSVM(LinearChain(3, 3), lam=0.1), path)
    content = torch.load(path, weights_only=True)
    del content["torchssvm_model"]["format"]
    torch.save(content, path)
    with pytest.raises(ValueError, match="format 1"):
        StructuredSVM.load_from_checkpoint(path, **given)


def test_a_pickle_is_not_read(tmp_path: Path):
    class Evil:
        def __reduce__(self):
            return (pytest.fail, ("it was run",))

    path = tmp_path / "model.ckpt"
    fitted(StructuredSVM(LinearChain(3, 3), lam=0.1), path)
    content = torch.load(path, weights_only=True)
    torch.save(content | {"note": Evil()}, path)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        StructuredSVM.load_from_checkpoint(path)
