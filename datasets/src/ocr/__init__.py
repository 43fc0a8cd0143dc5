"""Handwritten words."""
