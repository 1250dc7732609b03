"""Faster code for the formulas in flows/, with the same results."""
