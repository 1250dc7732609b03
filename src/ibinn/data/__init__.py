"""Images and tables in, tensors out."""
