"""Lists of graded documents."""
