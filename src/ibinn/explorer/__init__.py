"""The explorer: a page to look at what a model knows, and the server behind it."""
