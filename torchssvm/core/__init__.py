"""What every room speaks: structures, potentials and their algebra, batches, checks, files, Numba and threads."""
