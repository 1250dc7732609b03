"""The same numbers as the plain formulas in flows/, computed faster."""
