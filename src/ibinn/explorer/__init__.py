"""The explorer: a web page to explore one trained model, and its server."""
