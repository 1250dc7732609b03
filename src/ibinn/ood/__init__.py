"""Out-of-distribution inputs: scores, p-values, sets."""
