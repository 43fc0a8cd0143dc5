"""Dependency trees: arborescences over the tokens of a sentence."""
