"""Who this provider is: a UUID kept in the data directory, so that a restart is not a new node."""

import contextlib
import json
import os
import uuid
from pathlib import Path

from provider.errors import ConfigError


def provider_id(data_dir: Path) -> str:
    """Reads `identity.json`, or makes it."""
    path = data_dir / "identity.json"
    try:
        return str(uuid.UUID(str(json.loads(path.read_text())["provider_id"])))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): delete it to become a new provider.") from error
    made = str(uuid.uuid4())
    write_atomically(path, json.dumps({"provider_id": made}))
    return made


def write_atomically(path: Path, text: str) -> None:
    """A reader sees the old file or the new one, never a part. Raises OSError, with nothing left behind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # it may be what could not be written
            beside.unlink(missing_ok=True)
        raise
