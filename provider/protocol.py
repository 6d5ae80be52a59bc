"""Every message between a provider and a coordinator, both directions, version 1 (docs/protocol.md).

JSON text frames over one WebSocket that the provider dials. Integers are bytes or tokens. Unknown fields are
ignored, so that either side may be upgraded first; an unknown `type` is reported as UnknownType for the caller
to warn about, anything else that does not parse is a ProtocolViolation.
"""

import json
import math
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from provider.api.decoding import uncollected

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 32 * 2**20
HEARTBEAT_S = 5
SUSPECT_AFTER_S = 15
LOST_AFTER_S = 45
LISTED_AFTER_LOSS_S = 600
PING_S = 10
MALFORMED_LIMIT = 3
MOST_LISTED = 4096
"""Models, slots or requests in one message: far more than a machine has, and no burden to whoever keeps them."""
ACK_EVERY = 64
ACK_BYTES = 2**20
"""An acknowledgement is due after so many frames of a request, or so many bytes, or its last frame."""
RESUME_WITHIN_S = 45
"""How long a provider and its streams wait for each other, when the coordinator names no time of its own."""
CLOSE_BAD_TOKEN = 4401
CLOSE_BAD_VERSION = 4406
CLOSE_PROTOCOL_ERROR = 1002
CLOSE_SUPERSEDED = 4409
CLOSE_ENDED = 4410
"""Of a provider that ends: it does not come back with what it was doing. Proxies that restart say 1001."""

M = TypeVar("M")
Count = Annotated[int, Field(ge=0, lt=2**63)]
INVALID: Literal["invalid"] = "invalid"


def _measured(told: object) -> int | Literal["invalid"] | None:
    if told is None:
        return None
    if isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < 2**63:
        return int(told)
    return INVALID


Measured = Annotated[Count | Literal["invalid"] | None, BeforeValidator(_measured)]
"""Bytes as a machine has read them. What is no number of bytes (negative, infinite, NaN) is `invalid` and takes nothing
else of its frame with it; None: not reported."""


def _finite(told: object) -> object:
    return None if isinstance(told, float) and not math.isfinite(told) else told


Rate = Annotated[float | None, BeforeValidator(_finite)]
MemoryKind = Literal["unified", "discrete", "host"]
Exactness = Literal["on", "off", "unavailable"]
SlotState = Literal["idle", "running", "loading", "unloading", "failed"]
NoticeKind = Literal["preempted", "preempt-keepalive", "resumed", "recomputed"]


class Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class Hardware(Wire):
    chip: str
    memory_bytes: Count
    memory_kind: MemoryKind
    cores: Count


class MtpStatus(Wire):
    active: bool
    reason: str | None = None


class ModelAd(Wire):
    id: str
    model_type: str
    quantization: str | None = None
    size_bytes: Count
    context_length: Count
    kv_bytes_per_token: Count
    state_bytes: Count
    vision: bool = False
    exact: Exactness = "off"
    mtp: MtpStatus
    weight_digest: str | None = None


class ResumePoint(Wire):
    request_id: str
    next_seq: Count


class Register(Wire):
    type: Literal["register"] = "register"
    protocol: int
    provider_id: str
    name: str
    version: str
    backend: str
    hardware: Hardware
    models: list[ModelAd] = Field(max_length=MOST_LISTED)
    resume: list[ResumePoint] = Field(default_factory=list, max_length=MOST_LISTED)


class MemoryReport(Wire):
    physical_bytes: Measured
    effective_cap_bytes: Measured
    active_bytes: Measured
    cache_bytes: Measured
    activation_reserve_bytes: Measured = None
    free_for_load_bytes: Measured = None


class Slot(Wire):
    model: str
    state: SlotState
    running: Count = 0
    waiting: Count = 0
    parked: Count = 0
    max_concurrency: Count = 0
    tokens_used: Count = 0
    tokens_queued: Count = 0
    tokens_max: Count = 0
    kv_bytes_per_token: Count = 0
    decode_tps: Rate = None
    prefill_tps: Rate = None


class Stats(Wire):
    requests: Count = 0
    tokens: Count = 0
    parks: Count = 0
    recomputes: Count = 0


class Heartbeat(Wire):
    type: Literal["heartbeat"] = "heartbeat"
    status: Literal["idle", "serving", "draining"]
    capacity_seq: Count
    memory: MemoryReport
    slots: list[Slot] = Field(max_length=MOST_LISTED)
    thermal: Literal["nominal", "fair", "serious", "critical"] = "nominal"
    stats: Stats = Field(default_factory=Stats)


class InferenceAccepted(Wire):
    type: Literal["inference_accepted"] = "inference_accepted"
    request_id: str


class InferenceChunk(Wire):
    """`prompt_tokens` and `completion_tokens`: of the answer up to and with this chunk, so that one that breaks off can
    be billed; None from a provider that does not tell."""

    type: Literal["inference_chunk"] = "inference_chunk"
    request_id: str
    seq: Count
    data: dict[str, Any]
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None


class InferenceNotice(Wire):
    type: Literal["inference_notice"] = "inference_notice"
    request_id: str
    seq: Count
    kind: NoticeKind


class Preempt(Wire):
    parks: Count = 0
    recomputes: Count = 0


class InferenceComplete(Wire):
    """`body` is the whole object of a non-streaming request, else null; `usage` is OpenAI's usage object."""

    type: Literal["inference_complete"] = "inference_complete"
    request_id: str
    seq: Count
    body: dict[str, Any] | None = None
    usage: dict[str, Any]
    preempt: Preempt = Field(default_factory=Preempt)


class InferenceError(Wire):
    """`detail` carries the error object's `type`, `param` and further members (provider.api.wire.Failure)."""

    type: Literal["inference_error"] = "inference_error"
    request_id: str
    seq: Count
    status: int
    code: str
    message: str
    retryable: bool
    detail: dict[str, Any] = Field(default_factory=dict)


class PrefetchStatus(Wire):
    type: Literal["prefetch_status"] = "prefetch_status"
    model_id: str
    status: Literal["started", "downloading", "verified", "failed", "deferred"]
    reason: str | None = None
    bytes_done: Count | None = None
    bytes_total: Count | None = None


class LoadModelStatus(Wire):
    type: Literal["load_model_status"] = "load_model_status"
    model_id: str
    status: Literal["started", "succeeded", "failed"]
    reason: str | None = None
    required_bytes: Count | None = None
    free_bytes: Count | None = None


class ModelsUpdate(Wire):
    type: Literal["models_update"] = "models_update"
    models: list[ModelAd] = Field(max_length=MOST_LISTED)


class Registered(Wire):
    type: Literal["registered"] = "registered"
    provider_id: str
    heartbeat_s: float = Field(ge=0.01, le=1e9)
    generation: Count
    resume: list[ResumePoint] = Field(default_factory=list)
    gone: list[str] = Field(default_factory=list)
    resume_within_s: float = Field(RESUME_WITHIN_S, ge=0, le=86_400)
    """How long the answers under way wait for each other when this connection is lost."""


class Routable(Wire):
    routable: bool
    reason: str | None = None
    detail: str | None = None


class Routability(Wire):
    type: Literal["routability"] = "routability"
    models: dict[str, Routable]


class Ack(Wire):
    type: Literal["ack"] = "ack"
    request_id: str
    seq: Count


class InferenceRequest(Wire):
    """`request_id` is `<job id>.<attempt>`; `deadline_ms` counts from receipt."""

    type: Literal["inference_request"] = "inference_request"
    request_id: str
    endpoint: str
    body: dict[str, Any]
    deadline_ms: Count


class Cancel(Wire):
    type: Literal["cancel"] = "cancel"
    request_id: str


class LoadModel(Wire):
    type: Literal["load_model"] = "load_model"
    model_id: str


class UnloadModel(Wire):
    type: Literal["unload_model"] = "unload_model"
    model_id: str


class PrefetchModel(Wire):
    type: Literal["prefetch_model"] = "prefetch_model"
    model_id: str
    source: str
    digest: str | None = None


class DesiredModel(Wire):
    id: str
    source: str
    digest: str | None = None


class DesiredModels(Wire):
    type: Literal["desired_models"] = "desired_models"
    revision: Count
    models: list[DesiredModel]


class ProtocolErrorMessage(Wire):
    type: Literal["protocol_error"] = "protocol_error"
    message: str


FromProvider = (
    Register
    | Heartbeat
    | InferenceAccepted
    | InferenceChunk
    | InferenceNotice
    | InferenceComplete
    | InferenceError
    | PrefetchStatus
    | LoadModelStatus
    | ModelsUpdate
)
FromCoordinator = (
    Registered
    | Routability
    | Ack
    | InferenceRequest
    | Cancel
    | LoadModel
    | UnloadModel
    | PrefetchModel
    | DesiredModels
    | ProtocolErrorMessage
)

_FROM_PROVIDER: TypeAdapter[FromProvider] = TypeAdapter(Annotated[FromProvider, Field(discriminator="type")])
_FROM_COORDINATOR: TypeAdapter[FromCoordinator] = TypeAdapter(Annotated[FromCoordinator, Field(discriminator="type")])


class ProtocolViolation(ValueError):
    """A frame that is not a message: not JSON, not an object, no type, or a field of the wrong form."""


class UnknownType(ValueError):
    """A well-formed frame of a type this version does not know; ignored with a warning."""


def parse_from_provider(frame: str | bytes) -> FromProvider:
    return _parse(_FROM_PROVIDER, frame)


def parse_from_coordinator(frame: str | bytes) -> FromCoordinator:
    return _parse(_FROM_COORDINATOR, frame)


def is_uuid(text: str) -> bool:
    """In its canonical form, so that one provider cannot go by two names."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def encode(message: Wire) -> str:
    """The text frame of a message."""
    with uncollected():
        return json.dumps(message.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"))


def _parse(adapter: TypeAdapter[M], frame: str | bytes) -> M:
    try:
        with uncollected():
            value = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation(f"the frame is not JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise ProtocolViolation("the frame is not an object with a string `type`")
    if _has_lone_surrogate(frame, value):
        raise ProtocolViolation(f"{value['type'][:40]!r}: a string holds half a surrogate pair")
    try:
        with uncollected():
            return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "union_tag_invalid":
            raise UnknownType(value["type"]) from None
        where = ".".join(str(part) for part in first["loc"])
        raise ProtocolViolation(f"{value['type']}: {where}: {first['msg']}") from None


def _has_lone_surrogate(frame: str | bytes, value: object) -> bool:
    """Only an escape can bring one, and what holds one fails in every later encoder."""
    text = frame if isinstance(frame, str) else frame.decode(errors="replace")
    if "\\ud" not in text and "\\uD" not in text:
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
