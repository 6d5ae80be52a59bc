"""TLS by flags: a coordinator that serves https and wss, and who believes it."""

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from provider.errors import ConfigError
from provider.probes import Verdict, try_coordinator
from provider.simulate.command import app as simulate
from provider.simulate.fleet import Plan, SimulatedFleet
from provider.simulate.machines import machines
from provider.tls import authorities
from tests.integration.coordinator_harness import new_database, postgres, process, typed
from tests.integration.processes import running

__all__ = ["postgres"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that vouches for itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command, which makes a certificate, is missing")
    where = tmp_path_factory.mktemp("tls")
    certificate, key = where / "cert.pem", where / "key.pem"
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-subj", "/CN=darkbloom-test", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-out", str(certificate), "-keyout", str(key))
    subprocess.run(["openssl", *new, *names, *files], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def served(
    postgres: str, pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Its URL, and a provider token."""
    database = new_database(postgres)
    made = typed("token", "create", "--kind", "provider", "--database-url", database)
    where = ("--database-url", database, "--data-dir", str(tmp_path_factory.mktemp("data")))
    certificate, key = pair
    with process(*where, "--tls-cert", str(certificate), "--tls-key", str(key)) as (_, url):
        yield url, made.stdout.split()[-1]


def test_https_is_served_to_who_believes_the_certificate(served: tuple[str, str], pair: tuple[Path, Path]) -> None:
    url, _ = served
    assert url.startswith("https://127.0.0.1:")
    assert httpx.get(f"{url}/health", verify=ssl.create_default_context(cafile=str(pair[0]))).json()["status"] == "ok"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_a_provider_dials_wss_with_the_authorities_it_is_given(
    served: tuple[str, str], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    url, token = served
    dialled = url.replace("https", "wss") + "/ws/provider"
    assert try_coordinator(dialled, token, pair[0]).verdict is Verdict.ACCEPTED
    assert try_coordinator(dialled, token).verdict is Verdict.UNREACHABLE
    start = (
        "provider",
        "start",
        "--coordinator",
        dialled,
        "--token",
        token,
        "--model",
        "darkbloom-demo",
        "--backend",
        "sim",
    )
    with running(tmp_path / "log", *start, "--coordinator-ca", str(pair[0]), "--data-dir", str(tmp_path / "p")):
        until_logged(tmp_path / "log", "link_up")


def test_a_simulated_fleet_dials_wss_with_the_authorities_it_is_given(
    served: tuple[str, str], pair: tuple[Path, Path], tmp_path: Path
) -> None:
    url, token = served
    urls = [url.replace("https", "wss") + "/ws/provider"]

    async def connected(trusted: ssl.SSLContext | None) -> None:
        plan = Plan("tls", urls, token, ["darkbloom-demo"], 8, tmp_path, trusted)
        fleet = SimulatedFleet(machines(["instant"], 2), plan)
        running = asyncio.create_task(fleet.run())
        try:
            while fleet.totals().connected < 2:
                assert not running.done()
                await asyncio.sleep(0.02)
        finally:
            running.cancel()
            await asyncio.wait({running})

    asyncio.run(asyncio.wait_for(connected(authorities(pair[0])), 60))
    wrong = ["simulate", "--providers", "1", "--coordinator", urls[0], "--token", token]
    done = CliRunner().invoke(simulate, [*wrong, "--coordinator-ca", str(tmp_path / "missing")])
    assert isinstance(done.exception, ConfigError)
    assert "--coordinator-ca" in str(done.exception)


def until_logged(file: Path, said: str) -> None:
    deadline = time.monotonic() + 60
    while said not in (file.read_text() if file.exists() else ""):
        assert time.monotonic() < deadline, file.read_text()
        time.sleep(0.05)


def test_files_that_are_none_are_told_at_the_start(pair: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = (str(path) for path in pair)
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    for flags in (
        ("--tls-cert", certificate),
        ("--tls-key", key),
        ("--tls-cert", str(wrong), "--tls-key", key),
        ("--tls-cert", certificate, "--tls-key", str(tmp_path / "missing")),
    ):
        done = typed("serve", "--port", "0", "--data-dir", str(tmp_path / "unused"), *flags)
        assert done.exit_code == 1
        assert "--tls-" in done.stderr
    for bad in (wrong, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="--coordinator-ca"):
            authorities(bad)
    assert not (tmp_path / "unused").exists()
