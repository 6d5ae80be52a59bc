"""schemathesis draws requests from each server's OpenAPI document: no 500, and nothing it does not say."""

import json
from pathlib import Path

import pytest

from tests.integration.client import Api
from tests.integration.side_packages import run_beside, side_packages
from tests.soak import SOAK

SCHEMATHESIS = ("schemathesis==4.32.5", "graphql-core", "harfile", "hypothesis-graphql", "jsonschema-rs")
BENEATH = ("pyrate-limiter", "requests", "urllib3", "charset-normalizer", "werkzeug")

HOOKS = '''
import schemathesis

GENERATION = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")


@schemathesis.hook
def map_body(context, body):
    """Asks the model that there is, for little; what is wrong with a body stays wrong."""
    if not isinstance(body, dict) or not context.operation.path.startswith(GENERATION):
        return body
    if isinstance(body.get("model"), str) and body["model"]:
        body["model"] = "darkbloom-demo"
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        if type(body.get(name)) is int and 4 < body[name] < 2**31:
            body[name] = 4
    if type(body.get("n")) is int and 2 < body["n"] <= 128:
        body["n"] = 2
    if context.operation.path != "/v1/messages":
        body.setdefault("max_output_tokens" if "input" in body else "max_tokens", 4)
    return body
'''

NOT_HELD = "positive_data_acceptance"
"""A schema cannot say which models are served, or how long a conversation may be."""


@pytest.mark.parametrize("server", ["local", "fleet"] if SOAK else ["local"])
def test_nothing_contradicts_the_document(apis: dict[str, Api], server: str, tmp_path: Path) -> None:
    api = apis[server]
    (tmp_path / "hooks.py").write_text(HOOKS)
    options = ["--phases", "coverage,fuzzing" if SOAK else "fuzzing", "-n", "100" if SOAK else "5", "--seed", "1"]
    arguments = [f"{api.url}/openapi.json", "-H", f"Authorization: Bearer {api.key}", "--request-timeout", "120"]
    directory = side_packages(*SCHEMATHESIS, *BENEATH)
    hooks = {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": f"{directory}:{tmp_path}"}
    command = ["-m", "schemathesis.cli", "run", *arguments, *options, "--exclude-checks", NOT_HELD]
    # Of how quickly bodies are drawn: this machine may be busy.
    command += ["--suppress-health-check", "all"]
    said = run_beside(
        directory, *command, "--continue-on-failure", timeout_s=3600 if SOAK else 280, cwd=tmp_path, **hooks
    )
    assert "passed" in said
    assert api.get("/health").json() == {"status": "ok"}
    assert "/v1/chat/completions" in json.dumps(api.get("/openapi.json").json())
