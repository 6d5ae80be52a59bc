"""The setting of exact concurrency with real workers: stored, overridden, refused by name. They compute no tensors, so
that nothing can be exact."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from provider.api.access import Access
from provider.api.app import create_app
from provider.config import read_config
from provider.exact_setting import ExactSetting
from provider.local import create_residency
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.status import Status
from tests.integration.client import CHAT, MODEL, counting
from tests.integration.processes import run

SETTING = "/v1/settings/exact-concurrency"
WRONG: tuple[Any, ...] = ({"mode": "yes"}, {}, [])
KEY = {"Authorization": "Bearer dbk_of_this_test"}


@contextlib.asynccontextmanager
async def served(
    directory: Path, toml: str = "", exact: str | None = None, **env: str
) -> AsyncIterator[httpx.AsyncClient]:
    """A provider with that data directory."""
    file = directory / "provider.toml"
    file.write_text(toml)
    flags = {"exact": exact}
    config = read_config(flags, (MODEL,), backend="sim", data_dir=directory / "data", file=file, env=env)
    residency = create_residency(config)
    app = create_app(residency, Status(residency), access=Access((KEY["Authorization"].split()[1],)))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    await residency.start()
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://local", headers=KEY) as client:
            yield client
    finally:
        await residency.stop()


def play(act: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120):
            await act()

    asyncio.run(whole())


async def props(client: httpx.AsyncClient) -> tuple[str, str]:
    told = (await client.get("/props")).json()
    return told["exact_concurrency"], told["exact_concurrency_reason"]


async def setting(client: httpx.AsyncClient, mode: str | None = None) -> dict[str, Any]:
    answer = await (client.get(SETTING) if mode is None else client.put(SETTING, json={"mode": mode}))
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_it_is_stored_and_counts_from_the_next_load_on(tmp_path: Path) -> None:
    async def act() -> None:
        async with served(tmp_path) as client:
            told = await setting(client)
            assert (told["mode"], told["wanted"], told["actual"], told["overridden_by"]) == (None, "off", "off", None)
            told = await setting(client, "auto")
            assert (told["mode"], told["wanted"], told["actual"]) == ("auto", "auto", "off")
            assert told == await setting(client)
            assert "next load" in told["reason"]
        async with served(tmp_path) as client:  # the next load
            state, reason = await props(client)
            assert state == "unavailable"
            assert reason.endswith("serve it with exact off")
            (model,) = (await setting(client))["models"]
            assert (model["mode"], model["state"], model["code"]) == ("auto", "unavailable", "backend_unsupported")
            answer = await client.post(CHAT, json=counting(3, 4))
            assert answer.status_code == 200, "under auto it is served all the same"
            for body in WRONG:
                refused = await client.put(SETTING, json=body)
                assert refused.status_code == 400
                assert body == [] or "off, auto, on" in refused.json()["error"]["message"]
            for keyless in (await client.get(SETTING, headers={"Authorization": ""}),
                            await client.put(SETTING, json={"mode": "on"}, headers={"Authorization": ""})):  # fmt: skip
                assert keyless.status_code == 401
            assert (await setting(client))["mode"] == "auto"
            cleared = await client.put(SETTING, json={"mode": None})
            assert (cleared.status_code, cleared.json()["mode"], cleared.json()["wanted"]) == (200, None, "off")

    play(act)


def test_a_flag_or_a_variable_overrides_what_is_stored_and_is_named(tmp_path: Path) -> None:
    async def act() -> None:
        async with served(tmp_path, exact="off", DARKBLOOM_EXACT="auto") as client:
            told = await setting(client, "on")
            assert (told["mode"], told["wanted"], told["actual"]) == ("on", "off", "off")
            assert told["overridden_by"] == "--exact"
            assert await props(client) == ("off", "exact concurrency is switched off (--exact)")
        async with served(tmp_path, DARKBLOOM_EXACT="auto") as client:
            told = await setting(client)
            assert (told["mode"], told["wanted"], told["actual"]) == ("on", "auto", "unavailable")
            assert told["overridden_by"] == "DARKBLOOM_EXACT"

    play(act)


def test_a_request_for_what_cannot_be_exact_is_refused_by_name(tmp_path: Path) -> None:
    async def act() -> None:
        toml = '[engine]\nexact = "on"\n[models]\npreload = []\n'
        async with served(tmp_path, toml) as client:
            assert (await props(client))[0] == "unavailable", "it is known before anything is loaded"
            for _ in range(2):
                answer = await client.post(CHAT, json=counting(1, 3))
                error = answer.json()["error"]
                assert (answer.status_code, error["type"]) == (503, "service_unavailable")
                assert (error["code"], error["param"]) == ("exact_unavailable", "model")
                assert (error["reason"], error["remedy"]) == ("backend_unsupported", "--exact off")
                assert "serve it with exact off" in error["message"]
            assert (await props(client))[0] == "unavailable"
            [model] = (await client.get("/props")).json()["models"]
            assert (model["exact"]["mode"], model["exact"]["code"]) == ("on", "backend_unsupported")
            assert (model["state"], model["reason"]) == ("failed", model["exact"]["reason"])
            told = await setting(client, "off")
            assert (told["wanted"], told["overridden_by"]) == ("on", "engine.exact in provider.toml")

    play(act)


def test_a_server_that_was_told_to_be_exact_and_cannot_does_not_start(tmp_path: Path) -> None:
    """Told by what was stored."""
    data = tmp_path / "data"
    ExactSetting(read_config({}, data_dir=data, file=tmp_path / "none.toml", env={})).store("on")
    command = ("local", "--model", MODEL, "--backend", "sim", "--port", "0", "--data-dir", str(data))
    done = run(tmp_path / "log", *command)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    begin = f"error: {BUNDLED_MODEL_DIR}: exact mode is on, and cannot be guaranteed: "
    assert said.startswith(begin), "docs/exact.md quotes it"
    assert "exact off" in said
    assert "Traceback" not in done.stderr
