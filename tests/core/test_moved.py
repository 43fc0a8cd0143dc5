"""Names that are not at the top level say where they lie."""

import pytest

import torchssvm


@pytest.mark.parametrize("name", ["Away", "ShortestPath", "SuffixAverage", "Penalty"])
def test_names_of_a_room_are_named_with_it(name):
    with pytest.raises(ImportError, match=rf"torchssvm\.{name} is torchssvm\.[a-z_.]+\.{name}"):
        getattr(torchssvm, name)
    with pytest.raises(ImportError, match=rf"torchssvm\.{name} is torchssvm\."):
        exec(f"from torchssvm import {name}", {})


def test_other_names_are_not_there():
    assert not hasattr(torchssvm, "Nonsense")
    with pytest.raises(AttributeError, match="'torchssvm' has no attribute 'Nonsense'"):
        torchssvm.Nonsense  # noqa: B018
