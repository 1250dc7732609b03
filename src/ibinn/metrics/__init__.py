"""Numbers from arrays, NumPy only."""
