"""Events, one line each on stderr: time, level, name, then `key=value` fields. Never a key, never a prompt."""

import json
import logging
import re
import sys

_LOG = logging.getLogger("coordinator")
_PLAIN = re.compile(r"[\w.:/@+-]+")

Value = str | int | float | bool | None


def event(name: str, **fields: Value) -> None:
    _emit(logging.INFO, name, fields)


def warning(name: str, **fields: Value) -> None:
    _emit(logging.WARNING, name, fields)


def failure(name: str, error: BaseException, **fields: Value) -> None:
    """With the traceback, on the lines after."""
    _LOG.error(line(name, {**fields, "error": repr(error)}), exc_info=error)


def line(name: str, fields: dict[str, Value]) -> str:
    return " ".join([name, *(f"{key}={_shown(value)}" for key, value in fields.items())])


def to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    _LOG.setLevel(logging.INFO)


def _emit(level: int, name: str, fields: dict[str, Value]) -> None:
    if _LOG.isEnabledFor(level):
        _LOG.log(level, "%s", line(name, fields))


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
