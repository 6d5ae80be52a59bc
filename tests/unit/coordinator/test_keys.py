import asyncio
from datetime import UTC, datetime

import pytest

from coordinator.config import SECRET_FORM
from coordinator.errors import StoreDown
from coordinator.keys import GRACE_S, KeyRing, hashed, new_secret
from coordinator.store.records import Token, TokenKind

KEY = "dbk_" + "k" * 43
TOKEN = Token(1, TokenKind.API, "one", datetime(2026, 1, 1, tzinfo=UTC))


class Scene:
    """A key ring over a store and a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stored: dict[bytes, Token] = {hashed(KEY): TOKEN}
        self.down = False
        self.lookups = 0
        self.used: list[Token] = []
        self.ring = KeyRing(self.lookup, lambda: self.now, self.used.append, fresh_s=3)

    async def lookup(self, sha256: bytes) -> Token | None:
        self.lookups += 1
        await asyncio.sleep(0)
        if self.down:
            raise StoreDown("away")
        return self.stored.get(sha256)

    def ask(self, secret: str = KEY) -> Token | None:
        return asyncio.run(self.ring.token(secret))


def test_a_secret_has_the_promised_form() -> None:
    assert SECRET_FORM.fullmatch(new_secret())
    assert new_secret() != new_secret()


def test_a_known_key_is_looked_up_once_while_it_is_fresh() -> None:
    scene = Scene()
    assert [scene.ask() for _ in range(5)] == [TOKEN] * 5
    assert scene.lookups == 1
    scene.now = 3.0
    scene.ask()
    assert scene.lookups == 2
    assert scene.used == [TOKEN, TOKEN]


def test_a_revoked_key_is_refused_once_it_is_no_longer_fresh() -> None:
    scene = Scene()
    scene.ask()
    scene.stored.clear()
    assert scene.ask() == TOKEN
    scene.now = 3.0
    assert scene.ask() is None
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
    scene.down = True
    scene.now = GRACE_S - 1
    assert scene.ask() == TOKEN
    scene.now = GRACE_S + 10
    with pytest.raises(StoreDown):
        scene.ask()


def test_an_unknown_key_cannot_be_judged_when_the_store_is_down() -> None:
    scene = Scene()
    scene.down = True
    with pytest.raises(StoreDown):
        scene.ask()


def test_many_who_hold_a_stale_key_cause_one_lookup() -> None:
    scene = Scene()
    scene.ask()
    scene.now = 5.0

    async def all_at_once() -> list[Token | None]:
        return list(await asyncio.gather(*(scene.ring.token(KEY) for _ in range(50))))

    assert asyncio.run(all_at_once()) == [TOKEN] * 50
    assert scene.lookups == 2
