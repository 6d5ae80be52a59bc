"""Reads the JSON files of a checkpoint, so that a broken one is an error naming the file and the remedy."""

import json
from pathlib import Path
from typing import Any

from provider.errors import ModelError

MAX_JSON_BYTES = 64 * 2**20
"""Beyond any real config or tokenizer; a larger file is damage or an attack on memory."""


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in `path`. Raises ModelError when it is missing, unreadable, too large or not an object."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"{path} is larger than {MAX_JSON_BYTES >> 20} MiB: download the model again.")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: download the model again, or point at its directory.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON ({error}): download the model again.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object: download the model again.")
    return value


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """As read_json_object, and empty when there is no such file."""
    return read_json_object(path) if path.exists() else {}
