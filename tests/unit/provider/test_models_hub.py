"""A download, and every way it can fail, which is one error that says what to do: asked of a hub on the loopback.

In a process of its own each, because huggingface_hub reads its environment when it is imported.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.commands import readable_bytes

CODE = """
from provider.errors import ModelNotFound
from provider.models.resolve import resolve_model
try:
    resolve_model("org/absent")
except ModelNotFound as error:
    print(error)
"""
PULL = """
from typer.testing import CliRunner
from provider.errors import ModelNotFound
from provider.models.commands import app
for id in ("org/demo", "org/demo", "org/absent"):
    done = CliRunner().invoke(app, ["pull", id])
    lines = [line for line in done.stderr.splitlines() if line]
    print(done.exit_code, isinstance(done.exception, ModelNotFound), lines, done.stdout.strip() or done.exception)
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ANSWERS = {"absent": (404, "RepoNotFound"), "gated": (403, "GatedRepo"), "broken": (500, "")}


class Hub(BaseHTTPRequestHandler):
    """Answers as the first part of the path says."""

    served: ClassVar[list[str]] = []
    """Files whose bytes have been sent."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        where, _, rest = self.path.removeprefix("/").partition("/")
        if where == "whole":
            self._whole(rest.partition("?")[0])
            return
        status, code = ANSWERS[self.path.split("/")[1]]
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _whole(self, path: str) -> None:
        """Of a hub that has the bundled model alone, as `org/demo`."""
        if path.startswith("api/models/org/demo"):
            sizes = {file.name: file.stat().st_size for file in BUNDLED_MODEL_DIR.iterdir() if file.is_file()}
            sizes["pytorch_model.bin"] = 10
            told: object = {"id": "org/demo", "sha": COMMIT, "siblings": [{"rfilename": name} for name in sizes]}
            if "/tree/" in path:
                told = [{"type": "file", "path": name, "size": size, "oid": "0"} for name, size in sizes.items()]
            self._answer(json.dumps(told).encode())
            return
        file = BUNDLED_MODEL_DIR / path.rpartition("/")[2]
        if path.startswith(f"org/demo/resolve/{COMMIT}/") and file.is_file():
            if self.command == "GET":
                self.served.append(file.name)
            self._answer(file.read_bytes(), **{"X-Repo-Commit": COMMIT, "ETag": f'"{file.name}-1"'})
        else:
            self._answer(b"", 404, **{"X-Error-Code": "RepoNotFound"})

    def _answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

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


def resolved(cache: Path, code: str = CODE, **env: str) -> str:
    told = {**os.environ, "HF_HUB_CACHE": str(cache), **env}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=told, timeout=60)
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


def test_a_model_is_pulled_whole_and_once(hub: str, tmp_path: Path) -> None:
    first, again, absent = resolved(tmp_path, PULL, HF_ENDPOINT=f"{hub}/whole", HF_HUB_OFFLINE="0").splitlines()

    directory = tmp_path / "models--org--demo" / "snapshots" / COMMIT
    size = readable_bytes(sum(file.stat().st_size for file in BUNDLED_MODEL_DIR.iterdir() if file.is_file()))
    assert first == f"0 False ['downloading org/demo', 'downloaded org/demo: {size}'] {directory}"
    assert again == f"0 False [] {directory}"
    ours = {file.name: file.read_bytes() for file in BUNDLED_MODEL_DIR.iterdir() if file.is_file()}
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == ours, "and nothing in other formats"
    assert sorted(Hub.served) == sorted(ours), "what is here is not asked for again"
    assert absent.startswith("1 True ['downloading org/absent'] org/absent is not on this machine")
    assert "the hub has no such model" in absent


def test_offline_mode_is_named(tmp_path: Path) -> None:
    assert "HF_HUB_OFFLINE is set" in resolved(tmp_path, HF_HUB_OFFLINE="1")


def test_an_unreachable_hub_is_named(tmp_path: Path) -> None:
    said = resolved(tmp_path, HF_ENDPOINT="http://127.0.0.1:1", HF_HUB_OFFLINE="0")

    assert "org/absent is not on this machine" in said
    assert "Check the network, or pass the directory" in said
