"""Metrics: numbers from arrays, with NumPy and SciPy."""
