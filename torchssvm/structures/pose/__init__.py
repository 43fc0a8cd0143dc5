"""Poses: places on a grid for the joints of a body."""
