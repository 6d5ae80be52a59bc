"""The vocabulary between a parent and its worker: typed structs in length-prefixed msgpack frames.

Nothing waits for an answer on the decode path: commands flow down, reports flow up.
"""

import time
from collections.abc import Iterator
from typing import Literal

import msgspec

from provider.exact.choice import Source
from provider.exact.policy import Mode as ExactMode
from provider.generation import Event, GenerationRequest
from provider.mtp.policy import Mode
from provider.parking.knobs import ParkSpec

HEADER_BYTES = 4


class DraftSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether a model drafts, and with which head. `declaration` and `model_type` are what the provider's
    one look at config.json said (provider.mtp.probe)."""

    mode: Mode
    killed: bool
    declaration: str
    model_type: str | None
    drafter_path: str | None = None
    room: bool = True
    """Whether there is memory for a head that is not part of the model's own files."""


class LoadSpec(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """What a worker is to serve, and within which limits. `directory` is the checkpoint's."""

    backend: str
    directory: str
    max_concurrent: int
    context_length: int | None = None
    kv_pool_tokens: int | None = None
    kv_pool_bytes: int | None = None
    activation_reserve_bytes: int | None = None
    drafts: DraftSpec | None = None
    """None: nothing is drafted."""
    park: ParkSpec | None = None
    """None: what is parked is computed again."""
    exact: ExactMode = "off"
    lanes_directory: str | None = None
    """Where the rows of lanes are kept that were chosen by measurement; None: nowhere."""


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    request_id: str


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """Nobody can take what the sequence says for the time being (`held`), or somebody can again: meanwhile it is parked
    like any other."""

    request_id: str
    held: bool


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End now; whatever still runs is lost."""


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """Asks for a Report that names every open sequence."""


class Grant(msgspec.Struct, frozen=True, kw_only=True, tag="grant"):
    """What the model's sequences and its forward pass may take from now on. Answered by Granted; one that is older than
    the last is ignored."""

    epoch: int
    kv_pool_bytes: int
    activation_reserve_bytes: int


class ClearCache(msgspec.Struct, frozen=True, tag="clear_cache"):
    """Give back what the allocator keeps for reuse. Answered by a Report with the new state."""


Command = Submit | Cancel | Hold | Describe | Grant | ClearCache | Stop


class DraftStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a loaded model drafts; `reason` (of provider.mtp.policy.Reason) and `detail`: why not."""

    active: bool
    reason: str | None = None
    detail: str | None = None
    block_size: int | None = None


class ExactReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a loaded model is exact (provider.exact.policy); `code` and `reason`: why it is unavailable, and `remedy`
    the setting that would work. `lane_rows`: on how many rows its decode passes run, by a choice that this load has
    made or an earlier one."""

    state: Literal["on", "off", "unavailable"] = "off"
    reason: str | None = None
    code: str | None = None
    remedy: str | None = None
    lane_rows: int | None = None
    lane_rows_from: Source | None = None


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The first report of a worker whose model is ready."""

    n_ctx: int
    pool_tokens: int
    vocab_size: int
    weight_bytes: int
    kv_bytes_per_token: int
    state_bytes: int
    device: str
    load_s: float
    active_bytes: int = 0
    baseline_bytes: int = 0
    """What the process takes beside MLX's arrays: the interpreter, the libraries, the device's context."""
    drafts: DraftStatus = DraftStatus(active=False)
    exact: ExactReport = ExactReport()


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """`self_test`: it was loaded, and computes nonsense here. `exact`: exact mode cannot be guaranteed for it, for the
    reason `exact_cause`, and `exact_remedy` would work."""

    message: str
    unsupported: bool
    self_test: bool = False
    exact: bool = False
    exact_cause: str | None = None
    exact_remedy: str | None = None


class Granted(msgspec.Struct, frozen=True, kw_only=True, tag="granted"):
    """A grant in force: whatever lay beyond it has been parked and freed. Not `accepted`: an open sequence could not
    reach its end in so little, and the former grant stays."""

    epoch: int
    accepted: bool
    n_ctx: int
    pool_tokens: int


class DraftState(msgspec.Struct, frozen=True, kw_only=True):
    """What drafting has come to since the model was loaded. `drafted[d]`, `accepted[d]`: by place behind a row's token,
    from 0 on. `depth_tps`: tokens per second by depth, as measured at the present batch width."""

    rounds: int = 0
    drafted: list[int] = []
    accepted: list[int] = []
    draft_s: float = 0.0
    verify_s: float = 0.0
    bookkeeping_s: float = 0.0
    parked_s: float = 0.0
    controller: str = ""
    depth_tps: dict[int, float] = {}


class CopyState(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of one direction since the model was loaded."""

    count: int = 0
    failed: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine stands after a step, measured by the worker itself."""

    running: int = 0
    prefill: int = 0
    waiting: int = 0
    parked: int = 0
    moving: int = 0
    """Being copied out or back: taking room, and not decoding."""
    tokens_used: int = 0
    tokens_queued: int = 0
    parks: int = 0
    recomputes: int = 0
    """Both since the model was loaded."""
    active_bytes: int = 0
    cache_bytes: int = 0
    peak_bytes: int = 0
    saves: CopyState = CopyState()
    restores: CopyState = CopyState()
    drafts: DraftState | None = None
    """None where nothing is drafted."""
    draft_failure: str | None = None
    """What has ended the drafting of a model that was loaded to draft."""


class SequenceState(msgspec.Struct, frozen=True, kw_only=True):
    """One open sequence, for GET /slots."""

    request_id: str
    state: str
    prompt_tokens: int
    emitted: int
    computed: int
    recomputes: int


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Part of a step: its events, and, with the step's last part, what the step took and left.

    `at` is the worker's time.monotonic(), which all processes of a machine share: when the events came about.
    """

    events: list[Event]
    state: EngineState | None = None
    step_s: float = 0.0
    decoded: int = 0
    prefilled: int = 0
    sequences: list[SequenceState] | None = None
    at: float = msgspec.field(default_factory=time.monotonic)


FromWorker = Loaded | LoadFailed | Granted | Report
ToWorker = LoadSpec | Submit | Cancel | Hold | Describe | Grant | ClearCache | Stop

_encoder = msgspec.msgpack.Encoder()


class FrameReader:
    """Bytes in, frames out; knows nothing of sockets."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._held += data
        while len(self._held) >= HEADER_BYTES:
            size = int.from_bytes(self._held[:HEADER_BYTES], "big")
            if len(self._held) < HEADER_BYTES + size:
                return
            frame = bytes(self._held[HEADER_BYTES : HEADER_BYTES + size])
            del self._held[: HEADER_BYTES + size]
            yield frame


def pack(message: ToWorker | FromWorker) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "big") + body
