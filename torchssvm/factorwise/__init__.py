"""Training that decouples the factors of an output: greedy direction method of multipliers [Y16]."""
