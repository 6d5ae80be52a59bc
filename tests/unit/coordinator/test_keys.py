import asyncio
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from coordinator.config import SECRET_FORM
from coordinator.errors import StoreDown
from coordinator.keys import GRACE_S, IDLE_S, LOOKUPS, KeyRing, hashed, new_secret
from coordinator.store.records import KeyLimits, Token, TokenKind

KEY = "dbk_" + "k" * 43
TOKEN = Token(1, TokenKind.API, "one", datetime(2026, 1, 1, tzinfo=UTC))


class Scene:
    """A key ring over a store and a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stored: dict[bytes, Token] = {hashed(KEY): TOKEN}
        self.down = False
        self.lookups: list[int] = []
        self.used: list[Token] = []
        self.ring = KeyRing(self.live, lambda: self.now, self.used.append, fresh_s=3)

    async def live(self, hashes: Collection[bytes]) -> dict[bytes, Token]:
        self.lookups.append(len(hashes))
        await asyncio.sleep(0)
        if self.down:
            raise StoreDown("away")
        return {one: self.stored[one] for one in hashes if one in self.stored}

    def ask(self, secret: str = KEY) -> Token | None:
        return asyncio.run(self.ring.token(secret))

    def refresh(self) -> None:
        asyncio.run(self.ring.refresh())


def test_a_secret_has_the_promised_form() -> None:
    assert SECRET_FORM.fullmatch(new_secret())
    assert new_secret() != new_secret()


def test_a_known_key_never_waits_for_the_store() -> None:
    scene = Scene()
    assert [scene.ask() for _ in range(5)] == [TOKEN] * 5
    scene.now = GRACE_S - 1
    assert scene.ask() == TOKEN
    assert scene.lookups == [1]


def test_all_known_keys_are_looked_up_again_in_one_query() -> None:
    scene = Scene()
    others = [new_secret() for _ in range(9)]
    scene.stored |= {hashed(one): TOKEN for one in others}
    for secret in [KEY, *others]:
        scene.ask(secret)
    scene.lookups.clear()
    scene.refresh()
    assert scene.lookups == [10]


def test_a_revoked_key_is_refused_once_it_has_been_looked_up_again() -> None:
    scene = Scene()
    scene.ask()
    scene.stored.clear()
    assert scene.ask() == TOKEN
    scene.refresh()
    assert scene.ask() is None
    assert scene.ask() is None


def test_what_a_key_may_use_changes_once_it_has_been_looked_up_again() -> None:
    scene = Scene()
    scene.ask()
    limited = replace(TOKEN, limits=KeyLimits(requests_per_minute=3))
    scene.stored[hashed(KEY)] = limited
    scene.refresh()
    assert scene.ask() == limited


def test_a_key_that_is_revoked_here_is_refused_at_once() -> None:
    scene = Scene()
    scene.ask()
    scene.stored.clear()
    scene.ring.revoked(TOKEN.id)
    assert scene.ask() is None


def test_an_unknown_key_may_become_known_at_once() -> None:
    scene = Scene()
    other = new_secret()
    assert scene.ask(other) is None
    scene.stored[hashed(other)] = TOKEN
    assert scene.ask(other) == TOKEN


def test_a_known_key_is_trusted_for_a_while_when_the_store_is_down() -> None:
    scene = Scene()
    scene.ask()
    scene.now = 100
    scene.refresh()
    scene.down = True
    with pytest.raises(StoreDown):
        scene.refresh()
    scene.now = 100 + GRACE_S - 1
    assert scene.ask() == TOKEN
    scene.now = 100 + GRACE_S
    with pytest.raises(StoreDown):
        scene.ask()
    scene.down = False
    assert scene.ask() == TOKEN


def test_an_unknown_key_cannot_be_judged_when_the_store_is_down() -> None:
    scene = Scene()
    scene.down = True
    with pytest.raises(StoreDown):
        scene.ask()


def test_a_flood_of_made_up_keys_takes_few_of_the_stores_connections() -> None:
    scene = Scene()
    at_once = most = 0

    async def live(hashes: Collection[bytes]) -> dict[bytes, Token]:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return {}

    ring = KeyRing(live, lambda: 0.0, scene.used.append, fresh_s=3)

    async def flood() -> list[Token | None]:
        return list(await asyncio.gather(*(ring.token(new_secret()) for _ in range(50))))

    assert asyncio.run(flood()) == [None] * 50
    assert most == LOOKUPS


def test_the_use_of_a_key_is_told_once_a_minute() -> None:
    scene = Scene()
    for second in range(121):
        scene.now = second
        scene.ask()
    assert scene.used == [TOKEN] * 3


def test_whoever_holds_a_key_open_learns_of_its_end() -> None:
    scene = Scene()
    scene.ask()

    async def held() -> None:
        with scene.ring.holding(KEY) as revoked:
            scene.now = 2 * IDLE_S
            await scene.ring.refresh()
            assert not revoked.is_set()
            scene.stored.clear()
            await scene.ring.refresh()
            assert revoked.is_set()
        with scene.ring.holding(KEY) as revoked:
            assert revoked.is_set()

    asyncio.run(held())


def test_a_key_nobody_uses_is_forgotten() -> None:
    scene = Scene()
    scene.ask()
    scene.now = IDLE_S
    scene.refresh()
    scene.down = True
    with pytest.raises(StoreDown):
        scene.ask()


def test_refreshing_goes_on_after_a_failure() -> None:
    scene = Scene()
    ring = KeyRing(scene.live, lambda: scene.now, scene.used.append, fresh_s=0)

    async def turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def run() -> None:
        await ring.token(KEY)
        running = asyncio.create_task(ring.run())
        scene.down = True
        await turns()
        scene.down = False
        scene.stored.clear()
        await turns()
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(run())
    assert asyncio.run(ring.token(KEY)) is None


def test_no_more_keys_than_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.keys.REMEMBERED", 3)
    scene = Scene()
    secrets = [new_secret() for _ in range(5)]
    scene.stored = {hashed(one): TOKEN for one in secrets}
    for one in secrets:
        scene.ask(one)
    scene.lookups.clear()
    scene.refresh()
    assert scene.lookups == [3]
