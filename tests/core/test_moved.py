"""Names that the top level has no longer say where they went."""

import pytest

import torchssvm
from torchssvm.core import moved


@pytest.mark.parametrize("name", moved.LEFT)
def test_what_has_left_says_so_in_both_ways_to_import_it(name):
    with pytest.raises(ImportError, match=f"torchssvm.{name} (is a baseline|has gone)"):
        getattr(torchssvm, name)
    with pytest.raises(ImportError, match=f"torchssvm.{name} (is a baseline|has gone)"):
        exec(f"from torchssvm import {name}", {})
    assert name not in torchssvm.__all__


@pytest.mark.parametrize("name", moved.MOVED)
def test_what_has_moved_is_found_with_a_warning(name):
    with pytest.warns(DeprecationWarning, match=f"torchssvm.{name} is .* now"):
        assert getattr(torchssvm, name).__name__ == name
    assert name not in torchssvm.__all__


def test_a_name_that_moves_is_found_in_both_ways(monkeypatch):
    monkeypatch.setitem(moved.MOVED, "OracleResult", "torchssvm.structures")
    with pytest.warns(DeprecationWarning, match="OracleResult is torchssvm.structures.OracleResult now") as seen:
        found = torchssvm.OracleResult
    assert found is torchssvm.structures.OracleResult
    assert seen[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="OracleResult") as seen:
        from torchssvm import OracleResult
    assert OracleResult is found
    assert {warning.filename for warning in seen} == {__file__}


def test_other_names_are_not_there():
    assert not hasattr(torchssvm, "Nonsense")
    with pytest.raises(AttributeError, match="'torchssvm' has no attribute 'Nonsense'"):
        torchssvm.Nonsense  # noqa: B018
