"""The directory in which a provider or a coordinator keeps what is its own."""

import os
from pathlib import Path


def why_unusable(data_dir: Path) -> str | None:
    """Makes it where it is not there. None: it can be written to."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"--data-dir {data_dir} cannot be a directory: {error.strerror}."
    if not os.access(data_dir, os.W_OK | os.X_OK):
        return f"--data-dir {data_dir} cannot be written to."
    return None
