"""A trained model on disk: the run folder, its results, its card."""

CONFIG, MODEL, HISTORY, RESULTS = "config.toml", "model.safetensors", "history.jsonl", "results.json"
