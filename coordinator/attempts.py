"""What becomes of the orders that place models: pure. What fails, or does not last, is put off for longer each time."""

from dataclasses import dataclass, replace
from enum import StrEnum

from coordinator import mirror
from coordinator.config import Pace, Timings
from coordinator.fleet import Noted, Presence, ProviderView, presence


class Kind(StrEnum):
    LOAD = "load"
    PREFETCH = "prefetch"
    """Again, at a provider that has failed at it."""


class State(StrEnum):
    UNDER_WAY = "under_way"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """Our last order of one model at one provider. `failures` in a row; `since_s`: when the state began."""

    kind: Kind
    since_s: float
    state: State = State.UNDER_WAY
    failures: int = 0
    evicts: bool = False
    """It takes the place of others."""

    @property
    def loading(self) -> bool:
        return self.state is State.UNDER_WAY and self.kind is Kind.LOAD

    def retry_s(self, pace: Pace) -> float:
        """Not before that."""
        if not self.failures:
            return self.since_s
        return self.since_s + min(pace.last_retry_s, pace.first_retry_s * 2.0 ** min(self.failures - 1, 20))


def followed(
    attempt: Attempt, model: str, view: ProviderView, now_s: float, timings: Timings, pace: Pace
) -> Attempt | None:
    """None once there is nothing to remember."""
    match attempt.state:
        case State.UNDER_WAY:
            state = _outcome(attempt, model, view, now_s, timings, pace)
        case State.DONE:
            if now_s - attempt.since_s >= pace.kept_s:
                return None
            state = _lasting(model, view, now_s, timings)
        case State.FAILED:
            lost = presence(view, now_s, timings) is Presence.LOST
            state = State.DONE if mirror.loaded(view.slots.get(model)) and not lost else State.FAILED
    if state is attempt.state:
        return attempt
    if state is State.DONE and attempt.kind is Kind.PREFETCH:
        return None
    failures = attempt.failures + (state is State.FAILED)
    return replace(attempt, state=state, since_s=now_s, failures=failures)


def _outcome(attempt: Attempt, model: str, view: ProviderView, now_s: float, timings: Timings, pace: Pace) -> State:
    """Whoever was lost with it may have been lost by it, and counts as having failed."""
    load = attempt.kind is Kind.LOAD
    if mirror.loaded(view.slots.get(model)) if load else model in view.models:
        return State.DONE
    failed = _has_failed((view.loads if load else view.prefetches).get(model), attempt.since_s)
    lost = presence(view, now_s, timings) is Presence.LOST
    return State.FAILED if failed or lost or now_s - attempt.since_s >= pace.load_s else State.UNDER_WAY


def _lasting(model: str, view: ProviderView, now_s: float, timings: Timings) -> State:
    here = model in view.slots or view.capacity_seq is None
    return State.DONE if here and presence(view, now_s, timings) is not Presence.LOST else State.FAILED


def _has_failed(note: Noted | None, since_s: float) -> bool:
    return note is not None and note.at_s >= since_s and note.message.status == "failed"
