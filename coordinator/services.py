"""Everything a request handler may need, opened together and closed together."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from coordinator import journal, log
from coordinator.accounts import Accounts
from coordinator.config import Settings, UpSecrets
from coordinator.dispatch import Dispatcher
from coordinator.hub import WATCH_EVERY_S, Hub
from coordinator.journal import Journal
from coordinator.keys import KeyRing, hashed
from coordinator.limits import RateLimits
from coordinator.placer import Placer
from coordinator.recorder import Recorder
from coordinator.reference import Reference
from coordinator.routability import Teller
from coordinator.store.leadership import Leadership
from coordinator.store.lifetime import open_store
from coordinator.store.postgres import Store
from coordinator.store.records import Sighting, Token, TokenKind, Touch
from provider.protocol import Register

STALLED_AFTER_S = 10 * WATCH_EVERY_S
UP = "up"
"""The name of the tokens that `darkbloom-py up` makes at each start."""


class Health(StrEnum):
    OK = "ok"
    STARTING = "starting"
    STALLED = "stalled"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    store: Store
    keys: KeyRing
    limits: RateLimits
    hub: Hub
    dispatcher: Dispatcher
    accounts: Accounts
    recorder: Recorder
    reference: Reference
    placer: Placer
    explaining: asyncio.Lock
    """Around what looks at every provider on behalf of one caller: one at a time."""

    def health(self) -> Health:
        """Of this process: a coordinator without providers is well."""
        if self.dispatcher.draining:
            return Health.DRAINING
        stalled = time.monotonic() - self.hub.watched_s > STALLED_AFTER_S
        return Health.STALLED if stalled else Health.OK

    async def drain(self) -> None:
        """Takes no more requests, lets those that run finish for a while, then leaves every provider."""
        self.dispatcher.draining = True
        log.event("draining")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.timings.drain_s):
                await self.dispatcher.idle()
        self.dispatcher.admission.give_up()
        await self.hub.close_all("the coordinator is shutting down")


@asynccontextmanager
async def open_services(settings: Settings) -> AsyncIterator[Services]:
    """Waits for a given database; may be cancelled at any moment. Raises CoordinatorError when the store cannot be
    opened."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(settings, patient=True))
        if settings.up is not None:
            await _store_up_tokens(store, settings.up)
        leadership = Leadership(store.url)
        stack.push_async_callback(leadership.close)
        services = _wire(settings, store, leadership)
        stack.callback(services.recorder.close)
        await services.reference.read_first()
        refreshing = services.reference.run(settings.timings.reference_s)
        telling = Teller(services.hub, settings.timings, lambda: services.reference.tables, time.monotonic)
        recording = (services.accounts.run(), services.recorder.run())
        looking = (services.placer.run(), telling.run(), refreshing)
        for endless in (services.hub.watch(), *recording, services.keys.run(), *looking):
            stack.push_async_callback(_stop, asyncio.create_task(endless))
        try:
            yield services
        finally:
            await services.hub.close_all("the coordinator has ended")
            await services.recorder.flush(settings.timings.flush_s)


def _wire(settings: Settings, store: Store, leadership: Leadership) -> Services:
    def seen(message: Register) -> None:
        recorder.add(_sighting(message))

    def used(token: Token) -> None:
        recorder.add(Touch(token.id, datetime.now(UTC)))

    def left_behind() -> Iterator[Journal]:
        return journal.left_behind(settings.data_dir)

    hub = Hub(settings.timings, time.monotonic, seen, settings.bounds)
    recorder = Recorder(store.write, hub.metrics, journal.begun(settings.data_dir), left_behind)
    limits = RateLimits(time.monotonic)
    accounts = Accounts(recorder, limits, lambda: datetime.now(UTC))
    reference = Reference(store, hub.desire, hub.drain)
    dispatcher = Dispatcher(
        hub,
        settings.timings,
        accounts,
        lambda: reference.tables,
        time.monotonic,
        lambda: datetime.now(UTC),
        random.Random(),
        settings.most_waiting,
    )
    keys = KeyRing(store.live_tokens, time.monotonic, used, settings.timings.key_fresh_s)
    placer = Placer(hub, reference, leadership, settings.timings, settings.pace, time.monotonic)
    return Services(
        settings, store, keys, limits, hub, dispatcher, accounts, recorder, reference, placer, asyncio.Lock()
    )


def _sighting(message: Register) -> Sighting:
    return Sighting(
        provider_id=message.provider_id,
        name=message.name,
        version=message.version,
        backend=message.backend,
        chip=message.hardware.chip,
        seen_at=datetime.now(UTC),
    )


async def _store_up_tokens(store: Store, secrets: UpSecrets) -> None:
    now = datetime.now(UTC)
    await store.replace_token(TokenKind.API, UP, hashed(secrets.api_key), now)
    await store.replace_token(TokenKind.PROVIDER, UP, hashed(secrets.provider_token), now)


async def _stop(task: asyncio.Task[None]) -> None:
    """An endless task that ended by itself has failed, which health has shown as a stall."""
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    except Exception as error:
        log.failure("background_task_failed", error)
