"""Sets of labels with pairwise scores."""
