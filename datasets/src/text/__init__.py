"""Text: chunking, dependency trees, word alignment, spelling."""
