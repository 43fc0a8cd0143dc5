"""What tests share: problems, counterexamples, checkers, and test classes to inherit."""
