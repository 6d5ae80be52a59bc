"""The provider's side of the coordinator link without the socket: messages in -> what to do, messages to send.

No I/O and no clock, so that a test can drive every case.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from provider.protocol import (
    HEARTBEAT_S,
    PROTOCOL_VERSION,
    Ack,
    Cancel,
    DesiredModels,
    FromCoordinator,
    Hardware,
    Heartbeat,
    InferenceRequest,
    LoadModel,
    MemoryReport,
    ModelAd,
    PrefetchModel,
    ProtocolErrorMessage,
    Register,
    Registered,
    ResumePoint,
    Routability,
    Routable,
    Slot,
    Stats,
    UnloadModel,
)
from provider.thermal import Thermal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    provider_id: str
    name: str
    version: str
    backend: str
    hardware: Hardware


@dataclass(frozen=True, slots=True)
class Start:
    """Run this request and answer under its id."""

    request: InferenceRequest


@dataclass(frozen=True, slots=True)
class Abandon:
    """End this request without another word."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Operate:
    """Something about this provider's models; what comes of it is said later."""

    asked: LoadModel | UnloadModel | PrefetchModel | DesiredModels


@dataclass(frozen=True, slots=True)
class Resume:
    """The coordinator has answered the registration. It goes on with these and no other of the requests offered."""

    points: list[ResumePoint]


@dataclass(frozen=True, slots=True)
class Settle:
    """Of this request, all up to `seq` has arrived."""

    request_id: str
    seq: int


Action = Start | Abandon | Resume | Settle | Operate


class Session:
    """One connection's conversation. `registered` is set once the coordinator has answered."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._capacity_seq = 0
        self.registered: Registered | None = None
        self.routability: dict[str, Routable] = {}

    @property
    def heartbeat_s(self) -> float:
        return HEARTBEAT_S if self.registered is None else self.registered.heartbeat_s

    def register(self, models: list[ModelAd], resume: Iterable[ResumePoint] = ()) -> Register:
        """`resume`: the answers of earlier connections that could go on."""
        me = self._identity
        return Register(
            protocol=PROTOCOL_VERSION,
            provider_id=me.provider_id,
            name=me.name,
            version=me.version,
            backend=me.backend,
            hardware=me.hardware,
            models=models,
            resume=list(resume),
        )

    def heartbeat(
        self, memory: MemoryReport, slots: list[Slot], stats: Stats, draining: bool, thermal: Thermal = "nominal"
    ) -> Heartbeat:
        """The next one of this connection: `capacity_seq` restarts with it."""
        self._capacity_seq += 1
        serving = any(slot.running or slot.waiting or slot.parked for slot in slots)
        return Heartbeat(
            status="draining" if draining else "serving" if serving else "idle",
            capacity_seq=self._capacity_seq,
            memory=memory,
            slots=slots,
            thermal=thermal,
            stats=stats,
        )

    def receive(self, message: FromCoordinator) -> list[Action]:
        match message:
            case Registered():
                return self._welcomed(message)
            case InferenceRequest():
                return [Start(message)]
            case Cancel():
                return [Abandon(message.request_id)]
            case Routability():
                former, self.routability = self.routability, dict(message.models)
                for model, told in message.models.items():
                    if told == former.get(model):
                        continue
                    log.info("routability model=%s routable=%s reason=%s", model, told.routable, told.reason)
                return []
            case Ack():
                return [Settle(message.request_id, message.seq)]
            case LoadModel() | UnloadModel() | PrefetchModel() | DesiredModels():
                return [Operate(message)]
            case ProtocolErrorMessage():
                log.error("coordinator_reports_protocol_error message=%s", message.message)
                return []
            case _:
                assert_never(message)

    def _welcomed(self, message: Registered) -> list[Action]:
        """Once: to go back a second time would repeat what is already on its way."""
        if self.registered is not None:
            log.error("registered_twice generation=%d", message.generation)
            return []
        self.registered = message
        return [*(Abandon(one) for one in message.gone), Resume(message.resume)]
