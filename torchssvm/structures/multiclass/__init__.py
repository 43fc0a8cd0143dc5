"""One of several classes."""
