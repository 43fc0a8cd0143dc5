"""Recorded events that last some frames each."""
