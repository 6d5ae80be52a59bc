"""What a coordinator asks of a provider's models: load, unload, fetch, and the set that is desired of it.

Each runs as a task that outlives the connection it came by; progress goes to whoever asked, as long as it listens.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, assert_never

from provider.catalog import Model
from provider.errors import ModelError, RequestFailed, WorkerError
from provider.loading import LoadRefused
from provider.protocol import (
    DesiredModels,
    LoadModel,
    LoadModelStatus,
    PrefetchModel,
    PrefetchStatus,
    UnloadModel,
    Wire,
)
from provider.residency import Residency

log = logging.getLogger(__name__)

Operation = LoadModel | UnloadModel | PrefetchModel | DesiredModels
Say = Callable[[Wire], None]
"""Never blocks; what nobody can receive any more is dropped."""
PrefetchState = Literal["started", "downloading", "verified", "failed", "deferred"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that is here and verified, and that there was no room to serve yet."""

    model: Model
    say: Say


class Operations:
    """Owner of the desired set and of what was put off for want of room."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._revision = 0
        self._desired: set[str] = set()
        self._deferred: dict[str, Offer] = {}
        self._offering: set[str] = set()
        self._again: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        residency.on_room(self._offer_again)

    def handle(self, asked: Operation, say: Say) -> None:
        match asked:
            case LoadModel(model_id=model_id):
                self._spawn(self._load(model_id, say))
            case UnloadModel(model_id=model_id):
                self._spawn(self._unload(model_id))
            case PrefetchModel(model_id=model_id, source=source, digest=digest):
                self._spawn(self._prefetch(model_id, source, digest, say))
            case DesiredModels():
                self._desire(asked, say)
            case _:
                assert_never(asked)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self, model_id: str, say: Say) -> None:
        try:
            self._residency.model(model_id)
            say(LoadModelStatus(model_id=model_id, status="started"))
            await self._residency.load(model_id)
        except LoadRefused as refused:
            told = refused.refusal
            required, free = told.required_bytes, told.usable_bytes
            say(_load_failed(model_id, f"memory_cap: {refused}", required, free))
        except RequestFailed as failed:
            failure = failed.failure
            say(_load_failed(model_id, f"{failure.code}: {failure.message}"))
        except (ModelError, WorkerError) as error:
            say(_load_failed(model_id, f"load_failed: {error}"))
        else:
            say(LoadModelStatus(model_id=model_id, status="succeeded"))

    async def _unload(self, model_id: str) -> None:
        try:
            await self._residency.unload(model_id)
        except RequestFailed as failed:
            log.warning("unload_refused model=%s reason=%s", model_id, failed.failure.message)

    def _desire(self, asked: DesiredModels, say: Say) -> None:
        """Of several coordinators the highest revision counts. What is no longer desired is not served any more,
        but for the models that the operator of this machine has named."""
        if asked.revision <= self._revision:
            log.info("desired_models_old revision=%d known=%d", asked.revision, self._revision)
            return
        self._revision = asked.revision
        wanted = {one.id for one in asked.models}
        self._residency.withdraw(self._desired - wanted)
        for id in self._desired - wanted:
            self._deferred.pop(id, None)
        self._desired = wanted - set(self._residency.advertised_ids)
        for one in asked.models:
            if one.id not in self._residency.advertised_ids:
                self._spawn(self._prefetch(one.id, one.source, one.digest, say))

    async def _prefetch(self, model_id: str, source: str, digest: str | None, say: Say) -> None:
        """Fetches, verifies and then serves it. The steps that wait ask again afterwards whether it was retired."""
        if self._refused(model_id, digest, say):
            return
        _say_prefetch(say, model_id, "started")
        try:
            _say_prefetch(say, model_id, "downloading")
            model = await asyncio.to_thread(self._residency.factory.create, source, model_id, digest)
            if digest is not None:
                await _verify(model, digest)
        except ModelError as error:
            _say_prefetch(say, model_id, "failed", str(error))
            return
        if self._refused(model_id, digest, say):
            return
        size = model.checkpoint.size_bytes
        say(PrefetchStatus(model_id=model_id, status="verified", bytes_done=size, bytes_total=size))
        if not self._residency.ever_fits(model):
            reason = f"memory_cap: it would need {self._residency.occupancy.required(model, model.charge)} bytes"
            _say_prefetch(say, model_id, "failed", reason)
            return
        await self._offer(Offer(await self._replaced(model), say))

    async def _replaced(self, model: Model) -> Model:
        """The model to serve: the one that is known where it is the same build; an older build leaves first."""
        known = self._residency.occupancy.models.get(model.id)
        if known is None:
            return model
        if known.checkpoint.directory == model.checkpoint.directory:
            known.digest, known.verified = model.digest, model.verified
            return known
        self._residency.withdraw([model.id])
        await self._residency.unload(model.id)
        return model

    async def _offer(self, offer: Offer) -> None:
        id = offer.model.id
        if id in self._offering:
            self._again.add(id)
            return
        self._offering.add(id)
        try:
            self._deferred[id] = offer
            accepted = await self._residency.advertise(offer.model)
        finally:
            self._offering.discard(id)
        if accepted or self._residency.is_retired(offer.model):
            self._deferred.pop(id, None)
        else:
            _say_prefetch(offer.say, id, "deferred", "a resident model would be left with too little room")
            if id in self._again:  # room has come while this attempt was under way
                self._again.discard(id)
                self._spawn(self._offer(offer))

    def _offer_again(self) -> None:
        for offer in list(self._deferred.values()):
            self._spawn(self._offer(offer))

    def _refused(self, model_id: str, digest: str | None, say: Say) -> bool:
        mark = self._residency.retired.get(model_id)
        if mark is None or not mark.covers(digest):
            return False
        _say_prefetch(say, model_id, "failed", "self_test: this build has failed its self-test on this machine")
        return True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, done: "asyncio.Task[None]") -> None:
        self._tasks.discard(done)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("operation_failed", exc_info=error)


async def _verify(model: Model, digest: str) -> None:
    found = await asyncio.to_thread(model.checkpoint.digest)
    if found != digest:
        raise ModelError(f"digest: its weights hash to {found}, and {digest} was asked for")
    model.verified = True


def _say_prefetch(say: Say, model_id: str, status: PrefetchState, reason: str | None = None) -> None:
    say(PrefetchStatus(model_id=model_id, status=status, reason=reason))


def _load_failed(
    model_id: str, reason: str, required_bytes: int | None = None, free_bytes: int | None = None
) -> LoadModelStatus:
    return LoadModelStatus(
        model_id=model_id, status="failed", reason=reason, required_bytes=required_bytes, free_bytes=free_bytes
    )
