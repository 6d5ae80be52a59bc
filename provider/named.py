"""The models that the operator of this machine has named: served from the beginning, some of them loaded at start."""

import logging
from collections.abc import Awaitable
from typing import Protocol

from provider.catalog import Factory, Model
from provider.config import ProviderConfig
from provider.errors import ConfigError, ModelError, ModelNotFound, WorkerError
from provider.loading import MAX_RESIDENT_MODELS, LoadRefused

log = logging.getLogger(__name__)


class Load(Protocol):
    """residency.Residency.load."""

    def __call__(self, model_id: str, evict: bool) -> Awaitable[None]: ...


class Named:
    """`broken`: those whose files cannot be used, by the name they were given; the others are served without them.
    Raises ModelError where none is left or one does not exist, or ConfigError."""

    def __init__(self, config: ProviderConfig, factory: Factory) -> None:
        self.broken: dict[str, ModelError] = {}
        made = [(one, model) for one in config.models if (model := self._made(one, factory)) is not None]
        self.models: dict[str, Model] = {model.id: model for _, model in made}
        if len(self.models) < len(made):
            raise ConfigError("--model: two of the models have the same id; each id is served once.")
        if self.broken and not made:
            raise next(iter(self.broken.values()))
        for name, error in self.broken.items():
            log.error("model_left_out model=%s reason=%s", name, error)
        self._ids = {name: model.id for name, model in made}
        self._config = config

    def _made(self, name: str, factory: Factory) -> Model | None:
        try:
            return factory.create(name)
        except ModelNotFound:
            raise
        except ModelError as error:
            self.broken[name] = error
            return None

    def preloaded(self) -> list[str]:
        """In this order."""
        if self._config.preload is None:
            return list(self.models)[:MAX_RESIDENT_MODELS]
        ids = [self._ids.get(one, one) for one in self._config.preload if one not in self.broken]
        for id in ids:
            if id not in self.models:
                raise ConfigError(f"models.preload: {id!r} is not among the served models: {list(self.models)}.")
        return ids

    async def preload(self, load: Load) -> None:
        """What cannot be loaded is left for later, unless nothing at all could be: the first reason is raised then, a
        ModelError or WorkerError. The requirement of each is that of its moment, and nobody is evicted."""
        ids = self.preloaded()
        refused = [error for id in ids if (error := await _preload(id, load)) is not None]
        if refused and len(refused) == len(ids):
            raise refused[0]


async def _preload(id: str, load: Load) -> ModelError | WorkerError | None:
    """Why it could not be loaded now and may be later."""
    try:
        await load(id, evict=False)
    except LoadRefused as refused:
        log.warning("preload_refused model=%s reason=%s", id, refused)
        return ModelError(str(refused))
    except (ModelError, WorkerError) as error:  # the log has been told
        return error
    return None
