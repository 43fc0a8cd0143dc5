"""Numba, as the library uses it: decorators, the cache on disk, the code of kernels, vector operations."""
