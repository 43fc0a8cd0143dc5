"""Chains: a label for every token, and weights for neighbouring labels."""
