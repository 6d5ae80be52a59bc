"""`/v1/models`, in the form of whoever asks; standard library only, for both servers.

Anthropic's clients ask the same path as OpenAI's, with a header of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from provider.api.events import of_anthropic

OWNER = "darkbloom-py"


@dataclass(frozen=True, slots=True)
class ListedModel:
    """`created` in Unix seconds, 0 where it is not known; `context_length` in tokens."""

    id: str
    created: int = 0
    context_length: int | None = None


def model_list(models: Sequence[ListedModel], headers: Mapping[str, str]) -> dict[str, Any]:
    """All of them on one page."""
    data = [model_object(model, headers) for model in models]
    if not of_anthropic(headers):
        return {"object": "list", "data": data}
    ids = [model.id for model in models]
    return {
        "data": data,
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }


def model_object(model: ListedModel, headers: Mapping[str, str]) -> dict[str, Any]:
    length = {} if model.context_length is None else {"context_length": model.context_length}
    if not of_anthropic(headers):
        return {"id": model.id, "object": "model", "created": model.created, "owned_by": OWNER, **length}
    return {
        "id": model.id,
        "type": "model",
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": model.context_length,
        "max_tokens": model.context_length,
    }
