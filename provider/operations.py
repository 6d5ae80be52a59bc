"""What a coordinator asks of a provider's models: load, unload, fetch, and the set that is desired of it.

Each runs as a task that outlives the connection it came by; progress goes to whoever asked, as long as it listens.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, assert_never

from provider.background import Background
from provider.catalog import Model
from provider.errors import ExactUnavailable, ModelError, RequestFailed, WorkerError
from provider.loading import LoadRefused
from provider.protocol import (
    DIGEST_FORM,
    DesiredModels,
    LoadModel,
    LoadModelStatus,
    PrefetchModel,
    PrefetchStatus,
    UnloadModel,
    Wire,
)
from provider.residency import Residency
from provider.wire_limits import MOST_REASON

log = logging.getLogger(__name__)

Operation = LoadModel | UnloadModel | PrefetchModel | DesiredModels
Say = Callable[[Wire], None]
"""Never blocks; what nobody can receive any more is dropped."""
PrefetchState = Literal["started", "downloading", "verified", "failed", "deferred"]


OFFER_AGAIN_S = 30.0
"""At the latest; most often room comes first."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that is here and verified, and is to be served as soon as there is room for its floor. `desired`: only as
    long as it is among the desired models."""

    model: Model
    desired: bool
    say: Say


class Operations:
    """Owner of the desired set and of what was put off for want of room."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._revision = 0
        self._named = frozenset(residency.advertised_ids)
        self._desired: set[str] = set()
        self._offers: dict[str, Offer] = {}
        self._offering: set[str] = set()
        self._again: set[str] = set()
        self._waiting = False
        self._background = Background("operations")
        residency.on_room(self._offer_again)

    def handle(self, asked: Operation, say: Say) -> None:
        match asked:
            case LoadModel(model_id=model_id):
                self._background.spawn(self._load(model_id, say))
            case UnloadModel(model_id=model_id):
                self._background.spawn(self._unload(model_id))
            case PrefetchModel():
                self._background.spawn(self._prefetch(asked, say))
            case DesiredModels():
                self._desire(asked, say)
            case _:
                assert_never(asked)

    @property
    def deferred(self) -> list[str]:
        """Models that are here and wait for room to be served."""
        return list(self._offers)

    async def stop(self) -> None:
        await self._background.stop()

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
        except ExactUnavailable as error:
            say(_load_failed(model_id, f"{error.code}: {error}"))
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
        former, self._desired = self._desired, {one.id for one in asked.models} - self._named
        self._residency.withdraw(former - self._desired)
        for one in asked.models:
            if one.id not in self._residency.advertised_ids:
                wanted = PrefetchModel(model_id=one.id, source=one.source, digest=one.digest)
                self._background.spawn(self._prefetch(wanted, say, desired=one.id in self._desired))

    async def _prefetch(self, asked: PrefetchModel, say: Say, desired: bool = False) -> None:
        """Fetches, verifies and then serves it. The steps that wait ask again afterwards whether it was retired."""
        id = asked.model_id
        if self._refused(asked, say):
            return
        if asked.digest is not None and not re.fullmatch(DIGEST_FORM, asked.digest):
            _say_prefetch(say, id, "failed", "invalid_digest: not a SHA-256 in hex, which is 64 digits in lower case")
            return
        _say_prefetch(say, id, "started")
        try:
            _say_prefetch(say, id, "downloading")
            model = await self._residency.factory.fetch(asked.source, id, asked.digest)
            if asked.digest is not None:
                await self._verify(model, asked.digest)
        except ModelError as error:
            _say_prefetch(say, id, "failed", str(error))
            return
        if self._refused(asked, say):
            return
        size = model.checkpoint.size_bytes
        say(PrefetchStatus(model_id=id, status="verified", bytes_done=size, bytes_total=size))
        if not self._residency.ever_fits(model):
            needs = self._residency.occupancy.required(model, model.charge.target_only)
            _say_prefetch(say, id, "failed", f"memory_cap: it would need {needs} bytes")
            return
        self._offers[id] = Offer(model, desired, say)
        await self._offer(id)

    async def _verify(self, model: Model, digest: str) -> None:
        found = await self._residency.factory.digest_of(model)
        if found != digest:
            raise ModelError(f"digest: its weights hash to {found}, and {digest} was asked for")
        model.verified = True

    async def _offer(self, id: str) -> None:
        """The newest offer of that model; asked for again meanwhile, it is made again."""
        if id in self._offering:
            self._again.add(id)
            return
        self._offering.add(id)
        try:
            while (offer := self._offers.get(id)) is not None:
                self._again.discard(id)
                if await self._is_settled(offer):
                    if self._offers.get(id) is offer:
                        del self._offers[id]
                elif id not in self._again:
                    _say_prefetch(offer.say, id, "deferred", "a resident model would be left with too little room")
                    self._offer_later()
                    return
        finally:
            self._offering.discard(id)

    async def _is_settled(self, offer: Offer) -> bool:
        """Whether it is served now, or never will be."""
        if not self._is_wanted(offer):
            return True
        model = await self._to_serve(offer.model)
        accepted = await self._residency.advertise(model, lambda: self._is_wanted(offer))
        return accepted or self._residency.retired.covers(model.id, model.digest) or not self._is_wanted(offer)

    async def _to_serve(self, model: Model) -> Model:
        """The one that is known where it is the same build; another build of it leaves first."""
        known = self._residency.occupancy.models.get(model.id)
        if known is None or known is model:
            return model
        if known.checkpoint == model.checkpoint:
            known.digest, known.verified = model.digest, model.verified
            return known
        self._residency.withdraw([model.id])
        await self._residency.unload(model.id)
        return model

    def _is_wanted(self, offer: Offer) -> bool:
        return not offer.desired or offer.model.id in self._desired

    def _offer_again(self) -> None:
        for id in list(self._offers):
            self._background.spawn(self._offer(id))

    def _offer_later(self) -> None:
        """A chat that stood in the way ends without a word."""
        if not self._waiting:
            self._waiting = True
            self._background.spawn(self._wait_and_offer())

    async def _wait_and_offer(self) -> None:
        await asyncio.sleep(OFFER_AGAIN_S)
        self._waiting = False
        self._offer_again()

    def _refused(self, asked: PrefetchModel, say: Say) -> bool:
        if not self._residency.retired.covers(asked.model_id, asked.digest):
            return False
        reason = "self_test: this build has failed its self-test on this machine"
        _say_prefetch(say, asked.model_id, "failed", reason)
        return True


def _say_prefetch(say: Say, model_id: str, status: PrefetchState, reason: str | None = None) -> None:
    say(PrefetchStatus(model_id=model_id, status=status, reason=None if reason is None else reason[:MOST_REASON]))


def _load_failed(
    model_id: str, reason: str, required_bytes: int | None = None, free_bytes: int | None = None
) -> LoadModelStatus:
    return LoadModelStatus(
        model_id=model_id,
        status="failed",
        reason=reason[:MOST_REASON],
        required_bytes=required_bytes,
        free_bytes=free_bytes,
    )
