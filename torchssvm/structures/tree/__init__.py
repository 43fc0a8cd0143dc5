"""Trees of labels with given edges."""
