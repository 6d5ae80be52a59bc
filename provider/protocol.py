"""Every message between a provider and a coordinator, both directions, version 1 (docs/protocol.md).

JSON text frames over one WebSocket that the provider dials. Integers are bytes or tokens. Unknown fields are
ignored, so that either side may be upgraded first; an unknown `type` is reported as UnknownType for the caller
to warn about, anything else that does not parse is a ProtocolViolation.
"""

import json
import math
import re
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from provider.api.decoding import STRICT, NotFinite, uncollected
from provider.wire_limits import (
    MOST_BYTES,
    MOST_CODE,
    MOST_LABEL,
    MOST_MESSAGE,
    MOST_MODELS,
    MOST_NAME,
    MOST_NUMBER,
    MOST_REASON,
    MOST_REQUESTS,
    bounded_models,
    bounded_object,
    bounded_usage,
)

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 32 * 2**20
HEARTBEAT_S = 5
SUSPECT_AFTER_S = 15
LOST_AFTER_S = 45
LISTED_AFTER_LOSS_S = 600
PING_S = 10
MALFORMED_LIMIT = 3
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

DIGEST_FORM = r"^[0-9a-f]{64}$"
"""Of weights: a SHA-256 in hex."""

M = TypeVar("M")
Count = Annotated[int, Field(strict=True, ge=0, le=MOST_BYTES)]
Bytes = Count
Few = Annotated[int, Field(strict=True, ge=0, le=MOST_NUMBER)]
Tokens = Few
Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=MOST_NAME)]
"""Of a request."""
ModelName = Annotated[str, Field(min_length=1, max_length=MOST_NAME, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""It is shown, logged and asked for: no control characters."""
Label = Annotated[str, Field(max_length=MOST_LABEL)]
Words = Annotated[str, Field(max_length=MOST_REASON)]
INVALID: Literal["invalid"] = "invalid"


def _measured(told: object) -> int | Literal["invalid"] | None:
    if told is None:
        return None
    if isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told <= MOST_BYTES:
        return int(told)
    return INVALID


Measured = Annotated[Count | Literal["invalid"] | None, BeforeValidator(_measured)]
"""Bytes as a machine has read them. What is no number of bytes (negative, infinite, NaN) is `invalid` and takes nothing
else of its frame with it; None: not reported."""


def _finite(told: object) -> object:
    return None if isinstance(told, float) and not math.isfinite(told) else told


Rate = Annotated[Annotated[float, Field(strict=True)] | None, BeforeValidator(_finite)]
MemoryKind = Literal["unified", "discrete", "host"]
Exactness = Literal["on", "off", "unavailable"]
SlotState = Literal["idle", "running", "loading", "unloading", "failed"]
NoticeKind = Literal["preempted", "preempt-keepalive", "resumed", "recomputed"]


class Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class Hardware(Wire):
    chip: Label
    memory_bytes: Bytes
    memory_kind: MemoryKind
    cores: Few


class MtpStatus(Wire):
    active: Flag
    reason: Words | None = None


class ModelAd(Wire):
    id: ModelName
    model_type: Label
    quantization: Label | None = None
    size_bytes: Bytes
    context_length: Tokens
    kv_bytes_per_token: Bytes
    state_bytes: Bytes
    vision: Flag = False
    exact: Exactness = "off"
    mtp: MtpStatus
    weight_digest: Label | None = None

    @property
    def characters(self) -> int:
        """Of all its texts."""
        texts = (self.id, self.model_type, self.quantization, self.mtp.reason, self.weight_digest)
        return sum(len(text) for text in texts if text)


Models = Annotated[list[ModelAd], Field(max_length=MOST_MODELS), AfterValidator(bounded_models)]


class ResumePoint(Wire):
    request_id: Name
    next_seq: Count


class Register(Wire):
    type: Literal["register"] = "register"
    protocol: Few
    provider_id: Label
    name: Label
    version: Label
    backend: Label
    hardware: Hardware
    models: Models
    resume: list[ResumePoint] = Field(default_factory=list, max_length=MOST_REQUESTS)


class MemoryReport(Wire):
    """What is left out is unknown."""

    physical_bytes: Measured = None
    effective_cap_bytes: Measured = None
    active_bytes: Measured = None
    cache_bytes: Measured = None
    activation_reserve_bytes: Measured = None
    free_for_load_bytes: Measured = None


def _reported(told: object) -> object:
    return MemoryReport() if told is None else told


class Slot(Wire):
    model: ModelName
    state: SlotState
    running: Few = 0
    waiting: Few = 0
    parked: Few = 0
    max_concurrency: Few = 0
    tokens_used: Tokens = 0
    tokens_queued: Tokens = 0
    tokens_max: Tokens = 0
    kv_bytes_per_token: Bytes = 0
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
    memory: Annotated[MemoryReport, BeforeValidator(_reported)] = Field(default_factory=MemoryReport)
    """Nothing and null are the same: all of it is unknown."""
    slots: list[Slot] = Field(max_length=MOST_MODELS)
    thermal: Literal["nominal", "fair", "serious", "critical"] = "nominal"
    stats: Stats = Field(default_factory=Stats)


class InferenceAccepted(Wire):
    type: Literal["inference_accepted"] = "inference_accepted"
    request_id: Name


class InferenceChunk(Wire):
    """`prompt_tokens` and `completion_tokens`: of the answer up to and with this chunk, so that one that breaks off can
    be billed; None from a provider that does not tell."""

    type: Literal["inference_chunk"] = "inference_chunk"
    request_id: Name
    seq: Count
    data: dict[str, Any]
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None


class InferenceNotice(Wire):
    type: Literal["inference_notice"] = "inference_notice"
    request_id: Name
    seq: Count
    kind: NoticeKind


class Preempt(Wire):
    parks: Few = 0
    recomputes: Few = 0


class InferenceComplete(Wire):
    """`body` is the whole object of a non-streaming request, else null; `usage` is OpenAI's usage object."""

    type: Literal["inference_complete"] = "inference_complete"
    request_id: Name
    seq: Count
    body: dict[str, Any] | None = None
    usage: Annotated[dict[str, Any], AfterValidator(bounded_usage)]
    preempt: Preempt = Field(default_factory=Preempt)


class InferenceError(Wire):
    """`detail` carries the error object's `type`, `param` and further members (provider.api.wire.Failure)."""

    type: Literal["inference_error"] = "inference_error"
    request_id: Name
    seq: Count
    status: Few
    code: str = Field(max_length=MOST_CODE)
    message: str = Field(max_length=MOST_MESSAGE)
    retryable: Flag
    detail: Annotated[dict[str, Any], AfterValidator(bounded_object)] = Field(default_factory=dict)


class PrefetchStatus(Wire):
    type: Literal["prefetch_status"] = "prefetch_status"
    model_id: ModelName
    status: Literal["started", "downloading", "verified", "failed", "deferred"]
    reason: Words | None = None
    bytes_done: Bytes | None = None
    bytes_total: Bytes | None = None


class LoadModelStatus(Wire):
    type: Literal["load_model_status"] = "load_model_status"
    model_id: ModelName
    status: Literal["started", "succeeded", "failed"]
    reason: Words | None = None
    required_bytes: Bytes | None = None
    free_bytes: Bytes | None = None


class ModelsUpdate(Wire):
    type: Literal["models_update"] = "models_update"
    models: Models


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
    model_id: ModelName


class UnloadModel(Wire):
    type: Literal["unload_model"] = "unload_model"
    model_id: ModelName


class PrefetchModel(Wire):
    type: Literal["prefetch_model"] = "prefetch_model"
    model_id: ModelName
    source: str
    digest: str | None = None


class DesiredModel(Wire):
    id: ModelName
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
    """A frame that is not a message: not JSON, not an object, no type, or a field of the wrong form or beyond a limit.
    `request_id`: of the request that it says something of, where that can be read."""

    def __init__(self, message: str, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class UnknownType(ValueError):
    """A well-formed frame of a type this version does not know; ignored with a warning."""


def parse_from_provider(frame: str | bytes) -> FromProvider:
    return _parse(_FROM_PROVIDER, frame)


def parse_from_coordinator(frame: str | bytes) -> FromCoordinator:
    return _parse(_FROM_COORDINATOR, frame)


def request_first_named(frame: str) -> str | None:
    """By a frame that begins with its `type`, `seq` and `request_id`: the request, without reading the rest."""
    begins = _BEGINNING.match(frame[:4096])
    return _name(begins[1]) if begins else None


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
    value, exceptional = _read(frame)
    if not isinstance(value, dict):
        raise ProtocolViolation("the frame is not an object with a string `type`")
    request_id = _name(value.get("request_id"))
    kind = value.get("type")
    if not isinstance(kind, str):
        raise ProtocolViolation("the frame is not an object with a string `type`", request_id)
    if exceptional and kind != "heartbeat":
        raise ProtocolViolation(f"{kind[:MOST_CODE]!r}: it holds a number that is not finite", request_id)
    if _has_lone_surrogate(frame, value):
        raise ProtocolViolation(f"{kind[:MOST_CODE]!r}: a string holds half a surrogate pair", request_id)
    try:
        with uncollected():
            return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "union_tag_invalid":
            raise UnknownType(kind) from None
        where = ".".join(str(part) for part in first["loc"])
        raise ProtocolViolation(f"{kind}: {where}: {first['msg']}", request_id) from None


_BEGINNING = re.compile(
    r'\s*\{(?:\s*"(?:type|seq)"\s*:\s*(?:"[^"\\]{0,128}"|\d{1,20})\s*,){0,2}\s*"request_id"\s*:\s*"([^"\\]+)"'
)


def _read(frame: str | bytes) -> tuple[object, bool]:
    """What the frame holds, and whether numbers are among it that are not finite. Raises ProtocolViolation."""
    try:
        with uncollected():
            text = frame if isinstance(frame, str) else frame.decode(json.detect_encoding(frame), "surrogatepass")
            try:
                return STRICT.decode(text), False
            except NotFinite:
                return json.loads(text), True
    except (ValueError, RecursionError) as error:
        told = request_first_named(frame) if isinstance(frame, str) else None
        raise ProtocolViolation(f"the frame is not JSON: {error}", told) from error


def _name(told: object) -> str | None:
    return told if isinstance(told, str) and len(told) <= MOST_NAME else None


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
