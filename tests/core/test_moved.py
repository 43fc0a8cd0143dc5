"""Names that stood at the top level are found with a warning that says where they lie."""

import pytest

import torchssvm


@pytest.mark.parametrize(
    "name",
    [
        *("Decoding", "Marginals", "RankError", "Away", "RegularizationPath", "SuffixAverage", "primal", "CheckReport"),
        *("Penalty", "KernelSSVM", "Projective", "Transitions", "ShortestPath", "MinCut", "EdgePotentials"),
        *("BranchAndBound", "TreeReweighted", "PoseMaps", "NDCG", "EveryClass"),
    ],
)
def test_names_of_a_room_are_found_with_a_warning(name):
    with pytest.warns(DeprecationWarning, match=rf"torchssvm\.{name} is torchssvm\.[a-z_.]+\.{name} now") as seen:
        found = getattr(torchssvm, name)
    assert found.__name__ == name
    assert seen[0].filename == __file__
    assert name not in torchssvm.__all__


def test_they_are_imported_with_a_warning():
    with pytest.warns(DeprecationWarning, match="torchssvm.Away is torchssvm.steps.Away now") as seen:
        from torchssvm import Away
    assert Away is torchssvm.steps.Away
    assert {warning.filename for warning in seen} == {__file__}


@pytest.mark.parametrize("name", ["Nonsense", "Tensor", "inner", "Box", "OneSlack", "_private"])
def test_other_names_are_not_there(name):
    assert not hasattr(torchssvm, name)
    with pytest.raises(AttributeError, match=f"'torchssvm' has no attribute '{name}': see CHANGELOG.md"):
        getattr(torchssvm, name)
