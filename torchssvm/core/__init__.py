"""Shared foundations: structures, potentials and their algebra, batches, checks, files, Numba and threads."""
