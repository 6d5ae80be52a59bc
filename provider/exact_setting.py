"""Which mode of exact concurrency the operator of this machine wants, and who says so.

A flag beats the environment beats provider.toml beats what was stored over HTTP. It counts from the next load on.
"""

import json
import logging
from pathlib import Path
from typing import get_args

from provider.config import ProviderConfig
from provider.errors import ConfigError
from provider.exact.policy import Mode
from provider.identity import write_atomically

log = logging.getLogger(__name__)

FILE_NAME = "settings.json"
KEY = "exact_concurrency"


class ExactSetting:
    """Owner of the data directory's settings.json. Raises ConfigError for one that cannot be used, where it is what
    counts; else a warning, and nothing is stored."""

    def __init__(self, config: ProviderConfig) -> None:
        self.overridden_by = config.exact_told_by
        """What makes the stored setting count for nothing; None: it counts."""
        self._told = config.engine.exact
        self._path = config.data_dir / FILE_NAME
        self.stored = _read(self._path) if self.overridden_by is None else self._read_for_later()

    @property
    def wanted(self) -> Mode:
        """What the next load is told."""
        return self._told if self.overridden_by is not None or self.stored is None else self.stored

    def store(self, mode: Mode | None) -> None:
        """None: nothing any more. Raises OSError, with the setting as it was."""
        if mode is None:
            self._path.unlink(missing_ok=True)
        else:
            write_atomically(self._path, json.dumps({KEY: mode}))
        self.stored = mode

    def _read_for_later(self) -> Mode | None:
        try:
            return _read(self._path)
        except ConfigError as error:
            log.warning("setting_unusable overridden_by=%r error=%s", self.overridden_by, error)
            return None


def _read(path: Path) -> Mode | None:
    try:
        settings = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): delete it to have the default settings.") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} must hold a JSON object: delete it to have the default settings.")
    if KEY not in settings:
        return None
    found = settings[KEY]
    modes: tuple[Mode, ...] = get_args(Mode)
    for mode in modes:
        if found == mode:
            return mode
    raise ConfigError(f"{path}: {KEY} = {found!r}: expected one of {', '.join(modes)}; delete it to have the default.")
