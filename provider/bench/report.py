"""What a run has shown: percentiles over the answers that can be true, and the reason for each that cannot.

A server, a proxy or a clock that misbehaves gives rates that look splendid. A row is left out, and named, when its
times run backwards, when it holds more tokens than were asked for, or when its rate comes from next to no time.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

MIN_TOKEN_S = 1e-5
"""Below this per token the time is that of a buffer being emptied, not of anything being computed."""
PERCENTS = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class Answer:
    """One request that was answered in full. Times are seconds on one clock; `arrivals_s` holds one for each piece of
    text. `counted` says where `output_tokens` comes from: the server's usage, or the pieces that came."""

    number: int
    asked_tokens: int
    sent_s: float
    arrivals_s: tuple[float, ...]
    done_s: float
    prompt_tokens: int | None
    output_tokens: int
    counted: Literal["usage", "pieces"]
    finish_reason: str | None

    @property
    def ttft_s(self) -> float:
        return self.arrivals_s[0] - self.sent_s

    @property
    def gaps_s(self) -> Iterator[float]:
        return (later - earlier for earlier, later in pairwise(self.arrivals_s))

    @property
    def latency_s(self) -> float:
        return self.done_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Unanswered:
    """One request that was refused or broken off."""

    number: int
    reason: str


Outcome = Answer | Unanswered


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Report:
    """`None` where nothing was measured. `tokens_per_s` is of all streams together, over `duration_s`: from the first
    request sent to the last answer ended. `stopped_early`: answers that ended before the tokens they were asked for."""

    requests: int
    answered: int
    unanswered: tuple[Unanswered, ...]
    rejected: tuple[Unanswered, ...]
    stopped_early: int
    prompt_tokens: int | None
    output_tokens: int
    duration_s: float | None
    tokens_per_s: float | None
    requests_per_s: float | None
    ttft_ms: Spread | None
    inter_token_ms: Spread | None
    time_per_output_token_ms: Spread | None
    latency_ms: Spread | None


def report(outcomes: Sequence[Outcome]) -> Report:
    answers = [one for one in outcomes if isinstance(one, Answer)]
    rejected = tuple(Unanswered(one.number, why) for one in answers if (why := impossible(one)) is not None)
    kept = [one for one in answers if impossible(one) is None]
    duration_s = max(one.done_s for one in kept) - min(one.sent_s for one in kept) if kept else None
    prompts = [one.prompt_tokens for one in kept if one.prompt_tokens is not None]
    tokens = sum(one.output_tokens for one in kept)
    return Report(
        requests=len(outcomes),
        answered=len(kept),
        unanswered=tuple(one for one in outcomes if isinstance(one, Unanswered)),
        rejected=rejected,
        stopped_early=sum(one.output_tokens < one.asked_tokens for one in kept),
        prompt_tokens=sum(prompts) if len(prompts) == len(kept) else None,
        output_tokens=tokens,
        duration_s=duration_s,
        tokens_per_s=_rate(tokens, duration_s),
        requests_per_s=_rate(len(kept), duration_s),
        ttft_ms=spread([one.ttft_s for one in kept]),
        inter_token_ms=spread([gap for one in kept for gap in one.gaps_s]),
        time_per_output_token_ms=spread([_token_s(one) for one in kept if one.output_tokens > 1]),
        latency_ms=spread([one.latency_s for one in kept]),
    )


def impossible(answer: Answer) -> str | None:
    """Why this row cannot be true; None when it can."""
    if answer.output_tokens < 1 or not answer.arrivals_s:
        return "no tokens came"
    if answer.output_tokens > answer.asked_tokens:
        return f"{answer.output_tokens} tokens came where {answer.asked_tokens} were asked for"
    moments = (answer.sent_s, *answer.arrivals_s, answer.done_s)
    if any(later < earlier for earlier, later in pairwise(moments)):
        return "its times run backwards"
    if answer.latency_s < answer.output_tokens * MIN_TOKEN_S:
        return f"{answer.output_tokens} tokens in {answer.latency_s:.6f} s is a rate from next to no time"
    if answer.output_tokens > 1 and _token_s(answer) < MIN_TOKEN_S:
        return f"{answer.output_tokens} tokens arrived at once: a rate from next to no time"
    return None


def spread(seconds: Sequence[float]) -> Spread | None:
    if not seconds:
        return None
    p50, p90, p99 = (1000 * percentile(seconds, percent) for percent in PERCENTS)
    return Spread(1000 * math.fsum(seconds) / len(seconds), p50, p90, p99)


def percentile(values: Sequence[float], percent: float) -> float:
    """Between the two nearest values, in proportion."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _token_s(answer: Answer) -> float:
    """Between two tokens of one answer, on average."""
    return (answer.arrivals_s[-1] - answer.arrivals_s[0]) / (answer.output_tokens - 1)


def _rate(count: int, duration_s: float | None) -> float | None:
    return None if not duration_s else count / duration_s
