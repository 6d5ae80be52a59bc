"""How much one message of a provider may hold, so that whoever keeps or shows it is not burdened.

What is beyond a limit is as malformed as a wrong type (docs/protocol.md). The payload of an answer is bounded by its
frame alone.
"""

from typing import Any, Protocol, TypeVar

MOST_MODELS = 256
"""And slots, in one message: a machine advertises tens at most. A coordinator that reads so many does nothing else for
some ten milliseconds."""
MOST_NAMED = MOST_MODELS // 2
"""By the operator of a machine, and as many by those of the fleet (`desired_models`): together no more than may be
advertised."""
MOST_REQUESTS = 4096
"""In one message: as many as a provider has open."""
MOST_MODEL_CHARACTERS = 2**17
"""Of all the texts of a list of models together: with names of ordinary length 256 models take a quarter of it."""
MOST_NAME = 1024
"""Characters of a model's or a request's name; a model may be named by its path."""
MOST_LABEL = 256
"""Of a machine's name, its chip, a version and the like."""
MOST_CODE = 128
MOST_REASON = 4096
MOST_MESSAGE = 64 * 1024
"""Of an error's words, which may quote what the client has sent."""
MOST_NUMBER = 2**31 - 1
"""Tokens and requests."""
MOST_BYTES = 2**53 - 1
"""Bytes, and what is counted for ever: exact in every reader of JSON."""
MOST_PARTS = 50_000
"""Commas and opening brackets of a frame: what makes it long to read. The longest message but for an answer has a third
of them."""
MOST_MEMBERS = 64
DEEPEST = 4
"""Of an error's detail and of usage: names and values, and objects within one another."""


class Described(Protocol):
    """A model as it is advertised (provider.protocol.ModelAd), as far as this goes."""

    @property
    def characters(self) -> int: ...


Listed = TypeVar("Listed", bound=Described)


def bounded_models(told: list[Listed]) -> list[Listed]:
    """Raises ValueError."""
    if sum(one.characters for one in told) > MOST_MODEL_CHARACTERS:
        raise ValueError(f"more than {MOST_MODEL_CHARACTERS} characters of text in all")
    return told


def bounded_usage(told: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError. OpenAI's object: counts of tokens, whatever else a newer provider tells beside them."""
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        count = told.get(name)
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            raise ValueError(f"{name} must be a number of tokens")
    return _bounded(told, MOST_NUMBER)


def bounded_object(told: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError."""
    return _bounded(told, MOST_BYTES)


def _bounded(told: dict[str, Any], most: int) -> dict[str, Any]:
    """Without recursion: what is nested too deeply must not break whoever looks."""
    members = 0
    rest: list[tuple[Any, int]] = [(told, 1)]
    while rest:
        value, depth = rest.pop()
        match value:
            case dict() | list():
                members += len(value)
                if members > MOST_MEMBERS or depth > DEEPEST:
                    raise ValueError(f"more than {MOST_MEMBERS} members, or nested more than {DEEPEST} deep")
                if isinstance(value, dict):
                    rest.extend((name, depth) for name in value)
                    value = list(value.values())
                rest.extend((one, depth + 1) for one in value)
            case str() if len(value) > MOST_REASON:
                raise ValueError(f"a text of more than {MOST_REASON} characters")
            case int() | float() if not -most <= value <= most:  # NaN is not either
                raise ValueError(f"a number beyond {most}")
            case _:
                pass
    return told
