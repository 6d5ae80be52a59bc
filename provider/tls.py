"""Whom a provider believes when it dials wss://."""

import ssl
from pathlib import Path
from typing import Literal

from provider.errors import ConfigError


def authorities(file: Path | None) -> ssl.SSLContext | None:
    """Those of a PEM file alone; None: the system's. Raises ConfigError."""
    if file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(file))
    except OSError as error:
        said = (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or error
        raise ConfigError(f"--coordinator-ca {file}: not a PEM file of certificates ({said}).") from error


def of(url: str, context: ssl.SSLContext | None) -> ssl.SSLContext | Literal[True] | None:
    """What the WebSocket library is told for that URL."""
    return (context or True) if url.startswith("wss://") else None
