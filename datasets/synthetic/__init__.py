"""Data that was made up."""
