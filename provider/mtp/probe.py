"""The first look at a checkpoint: does its config.json declare a head? Asked once per decision, and never again.

Looser than the inspection on purpose: a config too large for that one still counts as a declaration here, so that it
is refused with a reason instead of being taken for a checkpoint without a head.
"""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.models.json_file import MAX_JSON_BYTES
from provider.mtp.declaration import declared_drafts
from provider.mtp.policy import Declaration, in_family


@dataclass(frozen=True, slots=True)
class Probe:
    """What config.json said. `model_type` is None where it could not be read, and empty where it names none. `drafts`:
    the most in a round of a head that is declared soundly, for a model that is drafted for; else 0."""

    declaration: Declaration
    model_type: str | None
    detail: str
    drafts: int = 0


def probe(directory: Path) -> Probe:
    """Never raises: missing, unreadable, not a JSON object or beyond 64 MiB is `undeterminable`."""
    path = directory / "config.json"
    try:
        raw = _read(path)
        config = json.loads(raw)
    except OSError as error:
        return _undeterminable(f"{path} cannot be read: {error.strerror or error}")
    except (ValueError, RecursionError) as error:
        return _undeterminable(f"{path} is not JSON: {error}")
    if not isinstance(config, dict):
        return _undeterminable(f"{path} does not hold a JSON object")
    return probe_config(config)


def probe_config(config: Mapping[str, Any]) -> Probe:
    """As probe, of a config.json that has been read already."""
    model_type = config.get("model_type")
    known = model_type if isinstance(model_type, str) else ""
    declared = config.get("mtplx_mtp")
    if isinstance(declared, dict) and declared.get("included") is True:
        drafts = declared_drafts(config) if in_family(known) else 0
        return Probe(Declaration.DECLARED, known, "config.json declares a head (mtplx_mtp)", drafts)
    return Probe(Declaration.ABSENT, known, "config.json declares no head (mtplx_mtp)")


def _undeterminable(detail: str) -> Probe:
    return Probe(Declaration.UNDETERMINABLE, None, detail)


def _read(path: Path) -> bytes:
    """At most the limit: the file may grow while it is read."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("not a regular file")
    with path.open("rb") as file:
        raw = file.read(MAX_JSON_BYTES + 1)
    if len(raw) > MAX_JSON_BYTES:
        raise OSError(f"larger than {MAX_JSON_BYTES >> 20} MiB")
    return raw
