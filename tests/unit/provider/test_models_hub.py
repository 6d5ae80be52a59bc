"""Every way a download can fail is one error that says what to do: asked of a hub on the loopback.

In a process of its own each, because huggingface_hub reads its environment when it is imported.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

CODE = """
from provider.errors import ModelNotFound
from provider.models.resolve import resolve_model
try:
    resolve_model("org/absent")
except ModelNotFound as error:
    print(error)
"""
ANSWERS = {"absent": (404, "RepoNotFound"), "gated": (403, "GatedRepo"), "broken": (500, "")}


class Hub(BaseHTTPRequestHandler):
    """Answers as the first part of the path says."""

    def do_GET(self) -> None:
        status, code = ANSWERS[self.path.split("/")[1]]
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def resolved(cache: Path, **env: str) -> str:
    told = {**os.environ, "HF_HUB_CACHE": str(cache), **env}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=told, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("absent", "the hub has no such model. Check the spelling"),
        ("gated", "access to it is gated. Accept its terms"),
        ("broken", "the hub cannot be reached"),
    ],
)
def test_the_hubs_refusals_are_told_apart(hub: str, tmp_path: Path, answer: str, said: str) -> None:
    assert said in resolved(tmp_path, HF_ENDPOINT=f"{hub}/{answer}", HF_HUB_OFFLINE="0")


def test_offline_mode_is_named(tmp_path: Path) -> None:
    assert "HF_HUB_OFFLINE is set" in resolved(tmp_path, HF_HUB_OFFLINE="1")


def test_an_unreachable_hub_is_named(tmp_path: Path) -> None:
    said = resolved(tmp_path, HF_ENDPOINT="http://127.0.0.1:1", HF_HUB_OFFLINE="0")

    assert "org/absent is not on this machine" in said
    assert "Check the network, or pass the directory" in said
