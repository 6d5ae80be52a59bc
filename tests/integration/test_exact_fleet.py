"""A fleet in which one provider is exact and another is not, as processes: what each says, and who gets what."""

import contextlib
from pathlib import Path

import httpx
import pytest

from tests.integration.client import MODEL
from tests.integration.processes import free_port, run, running
from tests.integration.test_fleet import Fleet
from tests.soak import SOAK

pytestmark = pytest.mark.skipif(not SOAK, reason="three processes with models: a part of `make soak`")


def test_what_asks_for_exactness_is_routed_to_whoever_advertises_it(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        fleet = Fleet(tmp_path, free_port(), stack)
        fleet.start_coordinator()
        fleet.key, fleet.token = fleet.create_token("api"), fleet.create_token("provider")
        for name, mode in (("exact", "on"), ("plain", "off")):
            stack.enter_context(running(tmp_path / f"{name}.log", *fleet.arguments(name), "--exact", mode))
        fleet.until_alive("exact", "plain")
        ads = {name: [one["exact"] for one in shown["models"]] for name, shown in fleet.shown().items()}
        assert ads == {"exact": ["on"], "plain": ["off"]}
        asked = {"model": MODEL, "prompt_tokens": 10, "max_tokens": 10, "exact": True}
        answer = httpx.post(f"{fleet.url}/v1/route", json=asked, headers=fleet.api.headers, timeout=30).json()
        assert answer["decision"]["provider"] == fleet.shown()["exact"]["id"]
        reasons = {one["name"]: (one["eligible"], one["reason"]) for one in answer["candidates"]}
        assert reasons == {"exact": (True, None), "plain": (False, "exact_not_on")}
        said = run(tmp_path / "log", "provider", "status", "--data-dir", str(tmp_path / "exact")).stdout
        assert "exact concurrency: on, in lanes of" in said
