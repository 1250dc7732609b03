"""Layers and mixture make a classifier."""
