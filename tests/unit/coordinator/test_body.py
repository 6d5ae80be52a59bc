import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.api.body import parse_object
from coordinator.api.errors import Refusal

TEXT = st.text(st.characters(codec="utf-8"))
LEAF = st.none() | st.booleans() | st.integers() | TEXT
JSON = st.recursive(LEAF, lambda of: st.lists(of, max_size=2) | st.dictionaries(TEXT, of, max_size=2), max_leaves=4)


@given(st.binary())
def test_any_bytes_are_an_object_or_a_refusal(body: bytes) -> None:
    try:
        assert isinstance(parse_object(body), dict)
    except Refusal as error:
        refusal = error
    else:
        return
    assert (refusal.failure.status, refusal.failure.code) == (400, "invalid_json")


@given(st.dictionaries(TEXT, JSON, max_size=3), st.booleans())
def test_an_object_arrives_as_it_was_sent(value: dict[str, Any], ascii_only: bool) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@pytest.mark.parametrize(
    "body", ['{"a": "\\ud83d"}', '{"\\uDC00": 1}', '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', "3", '"x"']
)
def test_what_could_not_be_sent_on_is_refused(body: str) -> None:
    with pytest.raises(Refusal):
        parse_object(body.encode())


def test_a_whole_pair_passes() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
