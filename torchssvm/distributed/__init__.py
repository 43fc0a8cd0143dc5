"""Training by several processes: rounds of directions, combined by a box QP over the ranks."""
