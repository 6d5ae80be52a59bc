"""TLS by flags: a coordinator that serves https and wss, and who believes it."""

import asyncio
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvloop
from typer.testing import CliRunner
from websockets.sync.client import connect

from coordinator.errors import BadConfiguration
from coordinator.tls import Certificate, Tls
from provider.errors import ConfigError
from provider.probes import Verdict, try_coordinator
from provider.protocol import Registered, encode, parse_from_coordinator
from provider.simulate.command import app as simulate
from provider.simulate.fleet import Plan, SimulatedFleet
from provider.simulate.machines import machines
from provider.tls import authorities
from tests.integration.coordinator_harness import new_database, postgres, process, registration, typed
from tests.integration.processes import running

__all__ = ["postgres"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that vouches for itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command, which makes a certificate, is missing")
    return new_pair(tmp_path_factory.mktemp("tls"))


def new_pair(where: Path) -> tuple[Path, Path]:
    """In the place of the former, where there is one."""
    certificate, key = where / "cert.pem", where / "key.pem"
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-subj", "/CN=darkbloom-test", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-out", str(certificate), "-keyout", str(key))
    subprocess.run(["openssl", *new, *names, *files], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(scope="module")
def serving(
    postgres: str, pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """Its URL, a provider token, and the process."""
    database = new_database(postgres)
    made = typed("token", "create", "--kind", "provider", "--database-url", database)
    where = ("--database-url", database, "--data-dir", str(tmp_path_factory.mktemp("data")))
    certificate, key = pair
    with process(*where, "--tls-cert", str(certificate), "--tls-key", str(key)) as (child, url):
        yield url, made.stdout.split()[-1], child


@pytest.fixture
def served(serving: tuple[str, str, subprocess.Popen[str]]) -> tuple[str, str]:
    """Its URL, and a provider token."""
    return serving[:2]


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
    empty = tmp_path / "empty"
    empty.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for bad in (wrong, empty, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="--coordinator-ca") as refused:
            authorities(bad)
        assert "None" not in str(refused.value)
    assert not (tmp_path / "unused").exists()


def test_a_hangup_has_the_renewed_certificate_served_and_ends_no_connection(
    serving: tuple[str, str, subprocess.Popen[str]], pair: tuple[Path, Path]
) -> None:
    url, token, child = serving
    former = certificate_at(url)
    assert former == pair[0].read_text()
    trusted = authorities(pair[0])
    provider = connect(
        url.replace("https", "wss") + "/ws/provider",
        ssl=trusted,
        additional_headers={"Authorization": f"Bearer {token}"},
    )
    with provider as socket:
        socket.send(encode(registration("renewed")))
        assert isinstance(parse_from_coordinator(socket.recv(30)), Registered)
        new_pair(pair[0].parent)
        assert certificate_at(url) == former
        child.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while certificate_at(url) == former:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert certificate_at(url) == pair[0].read_text()
        assert socket.ping().wait(30), "a connection that there was goes on"
    assert httpx.get(f"{url}/health", verify=authorities(pair[0]) or True).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", verify=trusted or True)


def certificate_at(url: str) -> str:
    """As it is served to who connects now, in PEM."""
    return ssl.get_server_certificate(("127.0.0.1", httpx.URL(url).port or 0), timeout=30)


def test_files_are_looked_at_by_themselves_and_a_broken_pair_changes_nothing(
    pair: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Real sockets, and the loop that the coordinator runs on."""
    files = Tls(tmp_path / "cert.pem", tmp_path / "key.pem")
    new_pair(tmp_path)

    def told(what: str) -> list[str]:
        return [line for line in caplog.messages if line.startswith(what)]

    async def scene() -> None:
        certificate = Certificate(files)
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context)
        keeping = asyncio.create_task(certificate.keep(asyncio.Event(), every_s=0.01))
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"

        async def until(event: str, count: int) -> str:
            while len(told(event)) < count:
                assert not keeping.done()
                await asyncio.sleep(0.01)
            return await asyncio.to_thread(certificate_at, url)

        first = await asyncio.to_thread(certificate_at, url)
        assert first == files.certificate.read_text()
        for number, (file, content, named) in enumerate(broken, 1):
            kept = file.read_text()
            replace(file, content)
            assert await until("tls_not_renewed", number) == first
            assert named in told("tls_not_renewed")[-1]
            replace(file, kept)
            await until("tls_renewed", number)
        new_pair(tmp_path)
        assert await until("tls_renewed", len(broken) + 1) == files.certificate.read_text() != first
        keeping.cancel()
        server.close()
        await server.wait_closed()

    broken = [
        (files.certificate, "nothing", f"--tls-cert {files.certificate}: not a certificate"),
        (files.key, "nothing", f"--tls-key {files.key}: not a private key"),
        (files.key, pair[1].read_text(), f"--tls-key {files.key}: not the key of the certificate"),
    ]
    with caplog.at_level("INFO", "coordinator"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scene(), 60))


def replace(file: Path, content: str) -> None:
    """As those do who renew: nobody reads half of it."""
    (file.parent / "new").write_text(content)
    (file.parent / "new").rename(file)


def test_a_key_with_a_password_is_refused_by_name_and_asks_nobody(pair: tuple[Path, Path], tmp_path: Path) -> None:
    key = tmp_path / "encrypted.pem"
    cipher = ("ec", "-in", str(pair[1]), "-out", str(key), "-aes256", "-passout", "pass:secret")
    subprocess.run(["openssl", *cipher], check=True, capture_output=True)
    with pytest.raises(BadConfiguration, match=r"--tls-key .*encrypted\.pem: it asks for a password"):
        Tls(pair[0], key).loaded()
