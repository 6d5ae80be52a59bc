"""Whether a failed attempt speaks against its provider, and by whose word: pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from coordinator.breaker import Witness
from coordinator.inbox import Broken
from coordinator.job import Job
from provider.api.wire import Failure

FAULTS = frozenset({500, 502})
FAULT_CODES = frozenset({Broken.PROVIDER_LOST.value, "provider_silent", "deadline_exceeded"})
"""What counts against a provider: another might have done better, and not for want of capacity."""
REQUEST_CODES = frozenset({"answer_too_large", "chat_template_error"})
"""Failures that any provider would have: the request itself asks for them."""
SHARED = frozenset({"worker_died", "engine_error"})
"""What fails so fails with all that ran beside it."""
INCIDENTAL = frozenset({"stream", "stream_options", "user", "seed", "metadata", "priority", "safety_identifier"})
"""Of a body, what makes no other request of it."""
CODES = (
    FAULT_CODES
    | {one.value for one in Broken}
    | {"internal_error", "engine_error", "worker_died", "slot_state", "queue_full", "memory_cap", "draining"}
    | {"no_answer", "exact_unavailable", "service_unavailable", "replay_lost"}
)
"""That retries are counted by. A provider's words make no new one."""


def at_fault(failure: Failure) -> bool:
    """Whether the provider is."""
    faulty = failure.status in FAULTS or failure.code in FAULT_CODES
    return faulty and failure.code not in REQUEST_CODES


def witness(job: Job, failure: Failure, generation: int) -> Witness:
    """`generation`: of the connection that the attempt was sent over."""
    if failure.code == Broken.PROVIDER_LOST:
        return Witness(None, b"connection %d" % generation)
    return Witness(job.token_id, _fingerprint(job.endpoint, job.body), failure.code in SHARED)


def retry_kind(failure: Failure) -> str:
    return failure.code if failure.code in CODES else "unnamed"


def _fingerprint(endpoint: str, body: Mapping[str, Any]) -> bytes:
    """The same for a request that is sent again."""
    asked = {name: value for name, value in body.items() if name not in INCIDENTAL}
    try:
        told = json.dumps([endpoint, asked], separators=(",", ":"))
    except RecursionError:
        told = endpoint
    return hashlib.blake2b(told.encode(), digest_size=16).digest()
