"""The models that the operator of this machine has named: served from the beginning, some of them loaded at start."""

import logging
from collections.abc import Awaitable
from typing import Protocol

from provider.catalog import Factory, Model
from provider.config import ProviderConfig
from provider.errors import ConfigError, ExactUnavailable, ModelError, SelfTestFailed
from provider.loading import MAX_RESIDENT_MODELS, LoadRefused

log = logging.getLogger(__name__)


class Load(Protocol):
    """residency.Residency.load."""

    def __call__(self, model_id: str, evict: bool) -> Awaitable[None]: ...


class Named:
    """Raises ModelError or ConfigError."""

    def __init__(self, config: ProviderConfig, factory: Factory) -> None:
        models = [factory.create(one) for one in config.models]
        self.models: dict[str, Model] = {one.id: one for one in models}
        if len(self.models) < len(models):
            raise ConfigError("--model: two of the models have the same id; each id is served once.")
        self._ids = dict(zip(config.models, (one.id for one in models), strict=True))
        self._config = config

    def preloaded(self) -> list[str]:
        """In this order."""
        if self._config.preload is None:
            return list(self.models)[:MAX_RESIDENT_MODELS]
        ids = [self._ids.get(one, one) for one in self._config.preload]
        for id in ids:
            if id not in self.models:
                raise ConfigError(f"models.preload: {id!r} is not among the served models: {list(self.models)}.")
        return ids

    async def preload(self, load: Load) -> None:
        """Raises the first ModelError or WorkerError; what memory refuses is left for later, unless nothing at all
        could be loaded. The requirement of each is that of its moment, and nobody is evicted."""
        ids = self.preloaded()
        refused = [error for id in ids if (error := await _preload(id, load)) is not None]
        if refused and len(refused) == len(ids):
            raise refused[0]


async def _preload(id: str, load: Load) -> ModelError | None:
    """Why it could not be loaded now and may be later."""
    try:
        await load(id, evict=False)
    except LoadRefused as refused:
        log.warning("preload_refused model=%s reason=%s", id, refused)
        return ModelError(str(refused))
    except (SelfTestFailed, ExactUnavailable) as error:
        return error
    return None
