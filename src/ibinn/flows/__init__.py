"""Invertible layers, x <-> z."""
