"""A load that is refused for memory, as a value: it feeds the log, the metric, the HTTP body, the wire and doctor."""

from dataclasses import dataclass
from enum import StrEnum

from provider.memory.caps import GIB


class Why(StrEnum):
    TOO_SMALL = "machine_too_small"
    """More than this machine gives to models, however idle it is."""
    LIMITED = "memory_limit"
    """More than the operator's memory_limit_gb."""
    IN_USE = "memory_in_use"
    """Other programs, or models that are serving or pinned, have it: it may be there later."""
    NO_PLACE = "models_busy"
    """As many models are resident as may be, and none of them is idle."""
    SHARES = "shares_too_small"
    """A model that stays would be left with less KV room than it can serve with."""
    LATE = "shrink_refused"
    """A model that stays could not give up room in time, or a chat of its own needs it."""
    AFTER_LOAD = "headroom_gone"
    """It was loaded, and what was then left for chats was measured to be too little: it was unloaded again."""
    UNREADABLE = "memory_unreadable"
    """What is free could not be read freshly enough to decide upon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRefusal:
    """`largest_bytes`: the largest weights, as files, that could be loaded if everything idle were evicted."""

    model: str
    why: Why
    required_bytes: int
    usable_bytes: int
    ceiling_bytes: int
    cap_bytes: int
    largest_bytes: int

    @property
    def message(self) -> str:
        needs = f"{self.model} needs {_gib(self.required_bytes)} to load, and {_gib(self.usable_bytes)} can be used"
        largest = f"The largest model that could be loaded now has {_gib(self.largest_bytes)} of weights."
        return f"{needs}: {_WORDS[self.why]} {largest}"

    def detail(self) -> dict[str, int | str | None]:
        return {
            "reason": self.why.value,
            "required_bytes": self.required_bytes,
            "usable_bytes": self.usable_bytes,
            "ceiling_bytes": self.ceiling_bytes,
            "largest_loadable_bytes": self.largest_bytes,
        }


_WORDS = {
    Why.TOO_SMALL: "this machine is too small for it. Serve a smaller model, or lower memory_reserve_gb.",
    Why.LIMITED: "memory_limit_gb allows no more. Raise it, or serve a smaller model.",
    Why.IN_USE: "the rest is in use. Close other programs, or wait until other models are idle.",
    Why.NO_PLACE: "every place for a resident model is taken by one that is serving.",
    Why.SHARES: "the models beside it would have too little room left for chats. Unload one of them.",
    Why.LATE: "a model beside it could not give up room. Wait until its chats have ended.",
    Why.AFTER_LOAD: "it was loaded, and beside it and its process too little was left for chats. Close other "
    "programs, or raise memory_limit_gb where that is set.",
    Why.UNREADABLE: "what is free cannot be read.",
}


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
