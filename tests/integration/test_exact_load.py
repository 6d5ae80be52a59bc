"""Exact mode as a worker meets it: on, unavailable with a reason, or a refusal."""

import pytest

from provider.errors import ExactUnavailable
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.pipe import LoadSpec
from provider.worker import build


def test_a_backend_without_lanes_is_refused_under_on_and_reported_under_auto() -> None:
    spec = LoadSpec(backend="sim", directory=str(BUNDLED_MODEL_DIR), max_concurrent=2)
    _, loaded = build(spec)
    assert loaded.exact.state == "off"
    _, loaded = build(LoadSpec(backend="sim", directory=str(BUNDLED_MODEL_DIR), max_concurrent=2, exact="auto"))
    assert (loaded.exact.state, loaded.exact.code) == ("unavailable", "backend_unsupported")
    with pytest.raises(ExactUnavailable, match="exact off"):
        build(LoadSpec(backend="sim", directory=str(BUNDLED_MODEL_DIR), max_concurrent=2, exact="on"))
