import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from coordinator.api.body import _validated, parse_object
from coordinator.api.chat import _model
from coordinator.api.errors import Refusal
from coordinator.api.limited import not_allowed
from provider.api.body import _decoded
from provider.api.surface import _model_id
from provider.api.wire import model_not_found
from provider.errors import RequestFailed

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


def test_half_a_surrogate_pair_is_named() -> None:
    with pytest.raises(Refusal) as refused:
        parse_object(b'{"name": "\\ud800"}')
    assert "half of a surrogate pair" in refused.value.failure.message


def test_a_whole_pair_passes() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ({}, "missing_required_parameter"),
        ({"model": None}, "missing_required_parameter"),
        ({"model": 3}, "invalid_value"),
        ({"model": ["demo"]}, "invalid_value"),
        ({"model": ""}, "invalid_value"),
        ({"model": "m" * 1025}, "invalid_value"),
    ],
)
def test_both_servers_say_the_same_of_the_name_of_a_model(model: dict[str, Any], code: str) -> None:
    with pytest.raises(RequestFailed) as local:
        _model_id(model)
    with pytest.raises(Refusal) as fleet:
        _model(model)
    assert local.value.failure == fleet.value.failure
    assert (fleet.value.failure.status, fleet.value.failure.code, fleet.value.failure.param) == (400, code, "model")


def test_a_long_name_is_not_repeated_in_full() -> None:
    for failure in (model_not_found("m" * 1000, []), not_allowed("m" * 1000)):
        assert len(failure.message) < 300


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"x": [{"y": %s}]}' % ("1" * 5000), "x[0].y"),
        ('{"x": -%s}' % ("1" * 5000), "x"),
        ('{"a": 1, "x": [0.5, 1e999]}', "x[1]"),
        ('{"x": NaN}', None),
        ('{"x": ', None),
    ],
)
def test_both_servers_name_the_number_that_cannot_be_read(body: str, param: str | None) -> None:
    with pytest.raises(RequestFailed) as local:
        _decoded(body.encode())
    with pytest.raises(Refusal) as fleet:
        parse_object(body.encode())
    for failure in (local.value.failure, fleet.value.failure):
        assert (failure.status, failure.code, failure.param) == (400, "invalid_json", param)


def test_both_servers_say_the_same_of_a_body_that_is_nested_too_deeply() -> None:
    body = b'{"x": ' + b"[" * 100_000
    with pytest.raises(Refusal) as here:
        parse_object(body)
    with pytest.raises(RequestFailed) as alone:
        _decoded(body)
    assert here.value.failure == alone.value.failure


class Order(BaseModel):
    model: str
    wait: bool = True


def test_a_null_is_as_good_as_left_out_where_something_is_needed() -> None:
    refusals = []
    for body in ({}, {"model": None}, {"model": "demo", "wait": None}):
        with pytest.raises(Refusal) as refused:
            _validated(body, Order)
        refusals.append(refused.value.failure)
    assert refusals[0] == refusals[1]
    assert (refusals[0].code, refusals[0].param) == ("missing_required_parameter", "model")
    assert refusals[2].code == "invalid_value"
