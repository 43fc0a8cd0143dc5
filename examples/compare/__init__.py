"""What the comparing examples share: tasks, solvers, the clock, the file of results, pictures."""
