"""Multilabel data, and the formats it comes in."""
