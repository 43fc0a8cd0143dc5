"""Atomic checkpoints: written as a whole, and read back before they replace the previous one."""

from __future__ import annotations

import copy
import io
import os
import pickle
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchssvm.core.files import damage, whole_file, whole_or_previous
from torchssvm.core.interrupts import undisturbed
from torchssvm.core.random_state import RandomState
from torchssvm.core.ranks import Ranks
from torchssvm.core.states import Stateful
from torchssvm.dual.state import DualState
from torchssvm.solvers.running_average import Average
from torchssvm.steps.sampler import GapBatchSampler

_KIND = "torchssvm checkpoint"
_FORMAT = 1


def save_checkpoint(path: str | os.PathLike[str], /, *, random_state: bool = True, **contents: Any) -> None:
    """Write the states of ``contents``, and torch's random state, to ``path`` atomically.

    ``save_checkpoint("run.pt", optim=optim, sampler=sampler, passes=3)``. The file is written beside ``path``, flushed
    to disk, read back and renamed; the previous checkpoint is kept as ``path`` with ``.previous`` added. A process
    killed at any moment leaves the new checkpoint or the one that ``load_checkpoint`` would have loaded before. Of
    several processes, all call it, and the first writes the states of all; they can be loaded by another number of
    processes. May be called anywhere in a training loop: after ``optim.step()`` in the loop's body, a resumed run
    begins with the next batch.

    Args:
        path: The file. A missing folder is made; the permission bits of an existing file are kept.
        random_state: Whether torch's random state, on the CPU and on CUDA devices, is saved too. The random states of
            Python and NumPy are not saved.
        **contents: By name, objects with ``state_dict`` and ``load_state_dict`` (``BCFW``, ``GDMM``, ``KernelSSVM``,
            ``DualState``, samplers, averages, compiled loops, modules, optimizers, schedulers), and values: numbers,
            strings, tensors, and lists, tuples and dicts of them.

    Raises:
        ValueError: There are no contents; a compiled loop or a sampler is saved without its dual; or a state or value
            cannot be loaded without running code, such as a NumPy array. An existing file is unchanged.
        TypeError: A class was given, not an object.
        OSError: See :func:`torchssvm.core.files.whole_file`.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> trainer = make_trainer(LinearMulticlass(4, 3), data, lam=0.01)
        >>> save_checkpoint(f"{folder.name}/run.pt", trainer=trainer, dual=trainer.dual, epoch=3)
        >>> load_checkpoint(f"{folder.name}/run.pt", trainer=trainer, dual=trainer.dual)
        {'epoch': 3}
    """
    if not contents:
        raise ValueError("contents are empty: give objects by name, as optim=optim")
    objects = {name: value for name, value in contents.items() if _is_object(name, value)}
    ranks = Ranks.here()
    states: dict[str, Any] = {}
    for name, value in objects.items():  # one after another: two of them may hold the same dual
        if ranks and hasattr(value, "consolidate_state_dict"):
            value.consolidate_state_dict()
        states[name] = ranks.run_on_all((lambda: None) if ranks.rank else value.state_dict)
    random = ranks.collect(RandomState().state_dict()) if random_state else None
    ranks.run_on_all(lambda: None if ranks.rank else _write(path, contents, objects, states, random))


def _write(
    path: str | os.PathLike[str],
    contents: dict[str, Any],
    objects: dict[str, Any],
    states: dict[str, Any],
    random: list[dict[str, Any]] | None,
) -> None:
    """Write ``states`` of ``objects`` and the other ``contents``; ``random`` has one state for each process."""
    _check_duals(objects, states)
    content = {
        "kind": _KIND,
        "format": _FORMAT,
        "objects": states,
        "values": {name: value for name, value in contents.items() if name not in objects},
        "random": random if random is None or len(random) > 1 else random[0],
    }
    with whole_file(path, keep_previous=True) as file:
        try:
            torch.save(content, file)
            file.flush()
            if (damaged := damage(Path(file.name))) is not None:
                raise OSError(damaged)
            _read(Path(file.name), mmap=True)
        except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
            wrong = [name for name in contents if not _survives(states.get(name, contents[name]))]
            if not wrong:
                raise
            raise ValueError(
                f"{wrong} cannot be loaded without running code: use tensors, numbers, strings, lists, tuples, dicts"
            ) from error


def load_checkpoint(path: str | os.PathLike[str], /, *, random_state: bool = True, **objects: Any) -> dict[str, Any]:
    """Load the states of ``objects`` from a file of :func:`save_checkpoint`, all of them or none.

    ``values = load_checkpoint("run.pt", optim=optim, sampler=sampler)``, with objects made as the saved ones were. If
    ``path`` is missing or damaged, the previous checkpoint (``.previous``) is loaded, with a warning. Runs no code from
    the file.

    Args:
        random_state: Whether torch's random state is restored, if the file holds it.
        **objects: The objects that were saved, under the same names; None leaves one out.

    Returns:
        The saved values, with tensors on the CPU.

    Raises:
        FileNotFoundError: Neither the file nor the previous one exists.
        ValueError: The file is not a checkpoint, or both it and the previous one are damaged; names are missing or not
            in the file; or an object refuses its state. Nothing changes then.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> head = LinearMulticlass(4, 3)
        >>> save_checkpoint(f"{folder.name}/head.pt", head=head)
        >>> load_checkpoint(f"{folder.name}/head.pt", head=LinearMulticlass(4, 3))
        {}
    """
    ranks = Ranks.here()
    whole, content = ranks.run_on_all(lambda: _read_checked(path, objects))
    states, values = content["objects"], content["values"]
    if ranks:
        ranks.check_same(path=(whole.name, zlib.crc32(whole.read_bytes())))
    objects = {name: value for name, value in objects.items() if value is not None and _is_object(name, value, True)}
    random = _random_state(content["random"]) if random_state else None
    stateful = {name: value for name, value in objects.items() if isinstance(value, Stateful)}
    others = {name: value for name, value in objects.items() if name not in stateful}

    def check() -> None:
        for name, value in stateful.items():
            try:
                value.check_state(states[name])
            except ValueError as error:
                raise _refused(whole, name, error) from error

    ranks.run_on_all(check)
    before = {name: copy.deepcopy(value.state_dict()) for name, value in others.items()}  # torch's states are views
    for name in sorted(others, key=lambda name: not isinstance(others[name], nn.Module)):
        try:
            ranks.run_on_all(partial(others[name].load_state_dict, states[name]))
        except BaseException as error:
            for again, value in others.items():
                value.load_state_dict(before[again])
            if isinstance(error, ValueError | TypeError | KeyError | RuntimeError):
                raise _refused(whole, name, error) from error
            raise
    with undisturbed():  # the states were checked; an average belongs to a step of its dual, and comes last
        for name in sorted(stateful, key=lambda name: isinstance(stateful[name], Average)):
            stateful[name].restore(states[name])
    if random is not None:
        random.restore()
        for value in objects.values():
            if isinstance(value, GapBatchSampler):  # the loader draws a number when its iterator is made
                value.before_continuing(random.restore)
    return dict(values)


def _read_checked(path: str | os.PathLike[str], objects: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    path = Path(os.path.realpath(path))
    whole = whole_or_previous(path)
    content = _read(whole)
    if (saved := sorted(content["objects"])) != (given := sorted(objects)):
        raise ValueError(f"objects {given} are not the saved {saved}: name each, with None to leave one out")
    return whole, content


def _is_object(name: str, value: Any, required: bool = False) -> bool:
    """Whether a value has a state, as a ``required`` one must."""
    has = all(callable(getattr(value, method, None)) for method in ("state_dict", "load_state_dict"))
    if isinstance(value, type) or (required and not has):
        raise TypeError(f"{name}={value!r} must be an object with state_dict and load_state_dict")
    return has


def _random_state(saved: Any) -> RandomState | None:
    ranks = Ranks.here()
    every = saved if isinstance(saved, list) else [saved]
    return RandomState(every[ranks.rank]) if len(every) == ranks.size and every[ranks.rank] is not None else None


def _check_duals(objects: dict[str, Any], states: dict[str, Any]) -> None:
    kept = {id(value) for value in objects.values() if isinstance(value, DualState)}
    kept |= {
        id(value.dual)
        for name, value in objects.items()
        if isinstance(states[name], dict) and "dual" in states[name] and hasattr(value, "dual")
    }
    for name, value in objects.items():
        dual = value.bound_dual if isinstance(value, GapBatchSampler) else getattr(value, "dual", None)
        if isinstance(dual, DualState) and id(dual) not in kept:
            raise ValueError(f"{name} needs its dual, which holds the training result: save optim=optim or dual=dual")


def _survives(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # a user's object may raise anything
        return False
    return True


def _read(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    try:
        content = torch.load(str(path), map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:
        raise ValueError(f"{path} is no checkpoint: give a file of save_checkpoint") from error
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        raise ValueError(f"{path} is no checkpoint: give a file of save_checkpoint")
    if content.get("format") != _FORMAT:
        raise ValueError(f"{path} has format {content.get('format')}, this version reads format {_FORMAT}")
    return content


def _refused(path: Path, name: str, error: BaseException) -> ValueError:
    return ValueError(f"{path} has a state that {name} refuses: {error}")
