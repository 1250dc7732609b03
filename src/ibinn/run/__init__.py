"""A trained model on disk: the run folder, its results, its card."""

CONFIG, MODEL, CARD = "config.toml", "model.safetensors", "README.md"
HISTORY, RESULTS = "history.jsonl", "results.json"
