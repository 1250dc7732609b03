"""Numbers become figures and tables."""
