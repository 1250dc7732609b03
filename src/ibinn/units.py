"""Numbers as a person reads them. Imports nothing of ours."""


def clock(seconds: float) -> str:
    """4:06, or 1:04:06 from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
