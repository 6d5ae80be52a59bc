"""The provider's side of the link without its socket: every message of a coordinator, and what is said to it."""

import logging

import pytest

from provider.protocol import (
    HEARTBEAT_S,
    PROTOCOL_VERSION,
    Ack,
    Cancel,
    DesiredModels,
    FromCoordinator,
    Hardware,
    InferenceRequest,
    LoadModel,
    MemoryReport,
    ModelAd,
    MtpStatus,
    PrefetchModel,
    ProtocolErrorMessage,
    Registered,
    ResumePoint,
    Routability,
    Routable,
    Slot,
    Stats,
    UnloadModel,
)
from provider.session import Abandon, Action, Identity, Operate, Resume, Session, Settle, Start

MEMORY = MemoryReport(
    physical_bytes=64, effective_cap_bytes=48, active_bytes=2, cache_bytes=1, activation_reserve_bytes=3,
    free_for_load_bytes=40,
)  # fmt: skip
DESIRED = DesiredModels(revision=1, models=[])
PREFETCH = PrefetchModel(model_id="m", source="org/m")
REQUEST = InferenceRequest(request_id="j.1", endpoint="/v1/completions", body={"model": "m"}, deadline_ms=1000)
REGISTERED = Registered(
    provider_id="p", heartbeat_s=0.5, generation=3, gone=["a.1", "b.2"],
    resume=[ResumePoint(request_id="c.1", next_seq=7)],
)  # fmt: skip
MODEL = ModelAd(
    id="m", model_type="qwen3_5", size_bytes=1, context_length=2, kv_bytes_per_token=3, state_bytes=4,
    mtp=MtpStatus(active=False),
)  # fmt: skip


@pytest.fixture
def session() -> Session:
    hardware = Hardware(chip="chip", memory_bytes=64, memory_kind="host", cores=2)
    return Session(Identity("p", "name", "0.9.0", "mlx", hardware))


def test_it_registers_as_who_it_is(session: Session) -> None:
    register = session.register([MODEL])
    assert (register.protocol, register.provider_id, register.name) == (PROTOCOL_VERSION, "p", "name")
    assert (register.version, register.backend, register.hardware.cores) == ("0.9.0", "mlx", 2)
    assert (register.models, register.resume) == ([MODEL], [])


@pytest.mark.parametrize(
    ("message", "actions"),
    [
        (REGISTERED, [Abandon("a.1"), Abandon("b.2"), Resume([ResumePoint(request_id="c.1", next_seq=7)])]),
        (REQUEST, [Start(REQUEST)]),
        (Cancel(request_id="j.1"), [Abandon("j.1")]),
        (Ack(request_id="j.1", seq=63), [Settle("j.1", 63)]),
        (Routability(models={"m": Routable(routable=True)}), []),
        (DESIRED, [Operate(DESIRED)]),
        (LoadModel(model_id="m"), [Operate(LoadModel(model_id="m"))]),
        (UnloadModel(model_id="m"), [Operate(UnloadModel(model_id="m"))]),
        (PREFETCH, [Operate(PREFETCH)]),
        (ProtocolErrorMessage(message="what was that"), []),
    ],
)
def test_each_message_asks_for_its_actions(session: Session, message: FromCoordinator, actions: list[Action]) -> None:
    assert session.receive(message) == actions


def test_it_offers_the_answers_that_could_go_on(session: Session) -> None:
    points = [ResumePoint(request_id="c.1", next_seq=9)]
    assert session.register([MODEL], points).resume == points


def test_a_second_welcome_changes_nothing(session: Session) -> None:
    session.receive(REGISTERED)
    assert session.receive(REGISTERED.model_copy(update={"generation": 4})) == []
    assert session.registered == REGISTERED


def test_the_pace_of_the_beats_is_the_coordinators_once_it_has_answered(session: Session) -> None:
    assert session.registered is None
    assert session.heartbeat_s == HEARTBEAT_S
    session.receive(REGISTERED)
    assert session.registered == REGISTERED
    assert session.heartbeat_s == 0.5


def test_beats_are_numbered_from_one_in_each_session(session: Session) -> None:
    numbers = [session.heartbeat(MEMORY, [], Stats(), draining=False).capacity_seq for _ in range(3)]
    assert numbers == [1, 2, 3]


@pytest.mark.parametrize(
    ("slot", "draining", "status"),
    [
        ({}, False, "idle"),
        ({"running": 1}, False, "serving"),
        ({"waiting": 1}, False, "serving"),
        ({"parked": 1}, False, "serving"),
        ({}, True, "draining"),
        ({"running": 1}, True, "draining"),
    ],
)
def test_a_beat_says_what_the_slots_are_doing(
    session: Session, slot: dict[str, int], draining: bool, status: str
) -> None:
    slots = [Slot(model="other", state="idle"), Slot(model="m", state="idle", **slot)]
    beat = session.heartbeat(MEMORY, slots, Stats(requests=2), draining)
    assert (beat.status, beat.slots, beat.stats.requests, beat.memory) == (status, slots, 2, MEMORY)


def test_routability_is_kept_as_last_told_and_logged(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        session.receive(Routability(models={"m": Routable(routable=True), "n": Routable(routable=True)}))
        session.receive(Routability(models={"m": Routable(routable=False, reason="no_kv_room")}))
        told = len(caplog.records)
        session.receive(Routability(models={"m": Routable(routable=False, reason="no_kv_room")}))
    assert len(caplog.records) == told, "what has not changed is not told again"
    assert session.routability == {"m": Routable(routable=False, reason="no_kv_room")}
    assert "reason=no_kv_room" in caplog.text


def test_a_beat_says_how_hot_the_machine_runs(session: Session) -> None:
    assert session.heartbeat(MEMORY, [], Stats(), draining=False).thermal == "nominal"
    assert session.heartbeat(MEMORY, [], Stats(), draining=False, thermal="serious").thermal == "serious"
