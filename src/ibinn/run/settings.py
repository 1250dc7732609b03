"""config.toml of a run folder. Without torch: a sweep reads the settings of its runs."""

from pathlib import Path

from ibinn._system import write_atomically
from ibinn.config import RunConfig, from_dict, parse_toml, to_toml
from ibinn.run import CONFIG, check_format


def write_config(folder: Path, config: RunConfig) -> None:
    """Write config.toml, and create the folder if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CONFIG, to_toml(config))


def read_config(path: Path) -> RunConfig:
    """Read a config.toml.

    RunError if it is of another format, ConfigError for anything unknown, missing or of the wrong type.
    """
    values = parse_toml(path.read_text(encoding="utf-8"), str(path))
    if "format" in values:
        check_format(path, values["format"])
    return from_dict(RunConfig, values, str(path))
