"""How a notice of the engine reaches a stream's client: header X-Darkbloom-Notices."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, assert_never

from coordinator.api.errors import Refusal
from coordinator.job import Job
from provider.api import events
from provider.api.wire import invalid_request, sse_comment
from provider.protocol import NoticeKind

HEADER = "X-Darkbloom-Notices"


class Notices(StrEnum):
    COMMENT = "comment"
    CHUNK = "chunk"
    """An empty chunk, for clients that cannot bear comments."""
    OFF = "off"


def wanted(headers: Mapping[str, str]) -> Notices:
    """Raises Refusal for a header that names none."""
    try:
        return Notices(headers.get(HEADER, Notices.COMMENT))
    except ValueError:
        raise Refusal(invalid_request(f"{HEADER}: must be one of {', '.join(Notices)}.", HEADER)) from None


def notice_event(notices: Notices, kind: NoticeKind, job: Job, last: Mapping[str, Any] | None) -> bytes | None:
    """What goes to the client; `last` is the chunk before, whose identity an empty chunk shares."""
    match notices:
        case Notices.COMMENT:
            return sse_comment(kind)
        case Notices.CHUNK:
            return events.events_of(job.endpoint).chunk(_empty_chunk(job, last or {}))
        case Notices.OFF:
            return None
        case _:
            assert_never(notices)


def _empty_chunk(job: Job, last: Mapping[str, Any]) -> dict[str, Any]:
    """What a provider's own API says then."""
    match job.endpoint:
        case events.MESSAGES:
            return {"type": "ping"}
        case events.RESPONSES:
            return {"type": "keepalive", "sequence_number": last.get("sequence_number", 0)}
        case "/v1/chat/completions":
            return _empty_choice(job, last, "chat.completion.chunk", {"delta": {}})
        case _:
            return _empty_choice(job, last, "text_completion", {"text": ""})


def _empty_choice(job: Job, last: Mapping[str, Any], kind: str, content: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": last.get("id", job.id),
        "object": kind,
        "created": last.get("created", int(job.started_at.timestamp())),
        "model": job.model,
        "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": None}],
    }
