"""Frames in, messages or violations out."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.protocol import (
    Cancel,
    Heartbeat,
    ProtocolViolation,
    Registered,
    UnknownType,
    encode,
    is_uuid,
    parse_from_coordinator,
    parse_from_provider,
)

REGISTER = {
    "type": "register",
    "protocol": 1,
    "provider_id": "6f2f6a53-5f0c-4a6b-b8cb-9a4cf5a0a9a1",
    "name": "n",
    "version": "0.9.0",
    "backend": "mlx",
    "hardware": {"chip": "c", "memory_bytes": 1, "memory_kind": "host", "cores": 1},
    "models": [],
}


def test_a_message_comes_back_as_it_was_sent_and_unknown_fields_are_ignored() -> None:
    message = Registered(provider_id="p", heartbeat_s=5, generation=3, gone=["a.1"])
    assert parse_from_coordinator(encode(message)) == message
    assert parse_from_coordinator('{"type": "cancel", "request_id": "x", "later": 1}') == Cancel(request_id="x")


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "{",
        "[]",
        "5",
        '{"type": 5}',
        '{"request_id": "x"}',
        '{"type": "cancel"}',
        '{"type": "cancel", "request_id": 5}',
        '{"type": "cancel", "request_id": "\\ud800"}',
        "[" * 100_000,
    ],
)
def test_what_is_no_message_is_a_violation(frame: str) -> None:
    with pytest.raises(ProtocolViolation):
        parse_from_coordinator(frame)


@pytest.mark.parametrize(
    "change",
    [{"name": "\ud800"}, {"hardware": {**REGISTER["hardware"], "memory_bytes": 10**40}}, {"models": None}],  # type: ignore[dict-item]
)
def test_a_register_that_would_break_those_who_show_it_is_a_violation(change: dict[str, object]) -> None:
    assert parse_from_provider(json.dumps(REGISTER))
    with pytest.raises(ProtocolViolation):
        parse_from_provider(json.dumps({**REGISTER, **change}))


BEAT = {
    "type": "heartbeat",
    "status": "idle",
    "capacity_seq": 1,
    "memory": {"physical_bytes": 8, "effective_cap_bytes": 6, "active_bytes": 0, "cache_bytes": 0},
    "slots": [{"model": "m", "state": "idle", "decode_tps": float("nan")}],
}


def beaten(**memory: object) -> Heartbeat:
    parsed = parse_from_provider(json.dumps({**BEAT, "memory": {**BEAT["memory"], **memory}}))  # type: ignore[dict-item]
    assert isinstance(parsed, Heartbeat)
    return parsed


@pytest.mark.parametrize(
    ("told", "understood"),
    [
        (None, None),
        (0, 0),
        (2**40, 2**40),
        (4.0, 4),
        (4.7, 4),
        (float("nan"), "invalid"),
        (float("inf"), "invalid"),
        (float("-inf"), "invalid"),
        (-1, "invalid"),
        (-0.5, "invalid"),
        (2**63, "invalid"),
        (10**400, "invalid"),
        (True, "invalid"),
        ("4", "invalid"),
        ([], "invalid"),
    ],
)
def test_a_reading_of_memory_that_is_no_number_of_bytes_spoils_nothing_else(told: object, understood: object) -> None:
    beat = beaten(free_for_load_bytes=told, active_bytes=told)
    assert (beat.memory.free_for_load_bytes, beat.memory.active_bytes) == (understood, understood)
    assert (beat.memory.physical_bytes, beat.capacity_seq, beat.slots[0].model) == (8, 1, "m")
    assert beat.slots[0].decode_tps is None
    assert parse_from_provider(encode(beat)) == beat


def test_a_reading_that_was_not_sent_is_not_reported() -> None:
    memory = beaten().memory
    assert (memory.free_for_load_bytes, memory.activation_reserve_bytes) == (None, None)
    with pytest.raises(ProtocolViolation):
        parse_from_provider(json.dumps({**BEAT, "memory": {}}))


def test_an_unknown_type_is_told_apart() -> None:
    with pytest.raises(UnknownType):
        parse_from_provider('{"type": "from the future"}')


@given(st.text() | st.binary())
def test_no_frame_raises_anything_else(frame: str | bytes) -> None:
    with suppress(ProtocolViolation, UnknownType):
        parse_from_provider(frame)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("6f2f6a53-5f0c-4a6b-b8cb-9a4cf5a0a9a1", True),
        ("6F2F6A53-5F0C-4A6B-B8CB-9A4CF5A0A9A1", False),
        ("6f2f6a535f0c4a6bb8cb9a4cf5a0a9a1", False),
        ("{6f2f6a53-5f0c-4a6b-b8cb-9a4cf5a0a9a1}", False),
        ("p1", False),
        ("", False),
        ("\0" * 36, False),
    ],
)
def test_a_provider_goes_by_one_spelling_of_its_uuid(text: str, valid: bool) -> None:
    assert is_uuid(text) is valid
