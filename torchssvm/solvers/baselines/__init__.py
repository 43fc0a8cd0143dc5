"""The baselines of the papers: subgradient, cutting planes and exponentiated gradient."""
