"""Frames in, messages or violations out."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provider.protocol import (
    Cancel,
    Heartbeat,
    MemoryReport,
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
        '{"type": "load_model", "model_id": "a\\nb"}',
        json.dumps({"type": "unload_model", "model_id": "m" * 1025}),
        json.dumps({"type": "desired_models", "revision": 1, "models": [{"id": "", "source": "x"}]}),
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
        (2**53 - 1, 2**53 - 1),
        (2**53, "invalid"),
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


def test_memory_that_is_null_is_unknown() -> None:
    beat = parse_from_provider(json.dumps({**BEAT, "memory": None}))
    assert isinstance(beat, Heartbeat)
    assert beat.memory == MemoryReport()


@pytest.mark.parametrize("memory", [{}, None, {"cache_bytes": 0}])
def test_a_reading_that_was_not_sent_is_not_reported(memory: dict[str, int] | None) -> None:
    told = {key: value for key, value in BEAT.items() if key != "memory"} | (
        {} if memory is None else {"memory": memory}
    )
    beat = parse_from_provider(json.dumps(told))
    assert isinstance(beat, Heartbeat)
    assert beat.memory.model_dump(exclude_none=True) == (memory or {})


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


CHUNK = {"type": "inference_chunk", "request_id": "a.1", "seq": 0, "data": {}}
COMPLETE = {"type": "inference_complete", "request_id": "a.1", "seq": 0, "usage": {}}
ERROR = {
    "type": "inference_error", "request_id": "a.1", "seq": 0, "status": 500, "code": "c", "message": "m",
    "retryable": True,
}  # fmt: skip
AD = {
    "id": "m", "model_type": "t", "size_bytes": 1, "context_length": 1, "kv_bytes_per_token": 1, "state_bytes": 1,
    "mtp": {"active": False},
}  # fmt: skip
MEGABYTE = "x" * 2**20
BEYOND: list[dict[str, object]] = [
    {**REGISTER, "name": MEGABYTE},
    {**REGISTER, "version": MEGABYTE},
    {**REGISTER, "backend": MEGABYTE},
    {**REGISTER, "hardware": {**REGISTER["hardware"], "chip": MEGABYTE}},  # type: ignore[dict-item]
    {**REGISTER, "models": [{**AD, "id": MEGABYTE}]},
    {**REGISTER, "models": [{**AD, "context_length": 2**62}]},
    {**REGISTER, "models": [{**AD, "weight_digest": MEGABYTE}]},
    {**REGISTER, "models": [{**AD, "mtp": {"active": False, "reason": MEGABYTE}}]},
    {**REGISTER, "models": [{**AD, "id": f"{one:1000}"} for one in range(132)]},
    {"type": "models_update", "models": [{**AD, "id": f"{one:1000}"} for one in range(132)]},
    {**REGISTER, "models": [{**AD, "id": f"{one}"} for one in range(257)]},
    {**BEAT, "slots": [{"model": f"{one}", "state": "idle"} for one in range(257)]},
    {**REGISTER, "resume": [{"request_id": f"{one}", "next_seq": 0} for one in range(4097)]},
    {**REGISTER, "protocol": "1"},
    {**REGISTER, "models": [{**AD, "id": ""}]},
    {**REGISTER, "models": [{**AD, "id": "a\0b"}]},
    {**REGISTER, "models": [{**AD, "id": "a\n"}]},
    {**REGISTER, "models": [{**AD, "vision": "yes"}]},
    {**REGISTER, "models": [{**AD, "size_bytes": "1"}]},
    {**REGISTER, "models": [{**AD, "mtp": {"active": 1}}]},
    {**BEAT, "slots": [{"model": "m", "state": "idle", "decode_tps": "5"}]},
    {**BEAT, "slots": [{"model": "m\x85", "state": "idle"}]},
    {**BEAT, "slots": [{"model": MEGABYTE, "state": "idle"}]},
    {**BEAT, "slots": [{"model": "m", "state": "idle", "tokens_used": 2**62}]},
    {**CHUNK, "request_id": MEGABYTE},
    {**CHUNK, "seq": "0"},
    {**CHUNK, "seq": True},
    {**CHUNK, "completion_tokens": 2**62},
    {**CHUNK, "data": {"logprob": float("-inf")}},
    {**COMPLETE, "usage": {"prompt_tokens": 2**62}},
    {**COMPLETE, "usage": {"prompt_tokens": -1}},
    {**COMPLETE, "usage": {"completion_tokens": "7"}},
    {**COMPLETE, "usage": {"details": {"cached_tokens": 2**62}}},
    {**COMPLETE, "usage": {MEGABYTE: 1}},
    {**COMPLETE, "usage": {str(one): 1 for one in range(65)}},
    {**COMPLETE, "usage": {"a": {"b": {"c": {"d": {}}}}}},
    {**COMPLETE, "body": {"n": float("nan")}},
    {**ERROR, "code": MEGABYTE},
    {**ERROR, "message": MEGABYTE},
    {**ERROR, "status": 2**62},
    {**ERROR, "status": "500"},
    {**ERROR, "retryable": "no"},
    {**ERROR, "detail": {"n_ctx": 10**400}},
    {**ERROR, "detail": {"what": [[[[[]]]]]}},
    {"type": "load_model_status", "model_id": "m", "status": "failed", "reason": MEGABYTE},
    {"type": "prefetch_status", "model_id": MEGABYTE, "status": "started"},
]


@pytest.mark.parametrize("message", BEYOND, ids=lambda one: one["type"])
def test_what_is_beyond_a_limit_is_a_violation(message: dict[str, object]) -> None:
    with pytest.raises(ProtocolViolation) as violation:
        parse_from_provider(json.dumps(message))
    assert len(str(violation.value)) < 500
    assert violation.value.request_id == ("a.1" if message.get("request_id") == "a.1" else None)


@pytest.mark.parametrize(
    "message",
    [
        {**COMPLETE, "usage": {"prompt_tokens": 2**31 - 1, "completion_tokens": None, "a": {"b": {"c": {"d": 1}}}}},
        {**COMPLETE, "usage": {"cost": 0.5, "tier": "x" * 4096}},
        {**ERROR, "detail": {"type": "t", "param": None, "free_bytes": 2**53 - 1}},
        {**ERROR, "message": "x" * 65536},
        {**CHUNK, "data": {"text": MEGABYTE, "n": 2**62}},
        {**BEAT, "slots": [{"model": "m", "state": "idle", "decode_tps": 5, "prefill_tps": None}]},
        {**REGISTER, "models": [{**AD, "id": f"{one:200}"} for one in range(256)]},
    ],
    ids=lambda one: one["type"],
)
def test_what_is_within_the_limits_is_a_message(message: dict[str, object]) -> None:
    assert parse_from_provider(json.dumps(message))


@pytest.mark.parametrize(
    ("frame", "request_id"),
    [
        ('{"type":"inference_chunk","request_id":"a.1","seq":1,"data":{', "a.1"),
        ('{ "seq": 1, "type": "inference_chunk", "request_id": "a.1", "data"', "a.1"),
        ('{"request_id":"a.1"', "a.1"),
        ('{"request_id":"' + "a" * 1025 + '"', None),
        ('{"data":{"request_id":"b.1"', None),
        ('{"type":"x\\"request_id\\":"a.1"', None),
        ("[", None),
    ],
)
def test_of_a_frame_that_is_cut_off_its_request_is_read_where_it_begins_with_it(
    frame: str, request_id: str | None
) -> None:
    with pytest.raises(ProtocolViolation) as violation:
        parse_from_provider(frame)
    assert violation.value.request_id == request_id
