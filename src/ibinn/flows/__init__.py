"""Invertible layers."""
