"""What is asked of a server, and when: decided beforehand, from a seed, so that a load can be repeated."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from provider.errors import ConfigError

LENGTHS_FORM = "a number (128), a range (32-512) or a list taken in turn (16,64,1500)"


@dataclass(frozen=True, slots=True)
class Fixed:
    tokens: int


@dataclass(frozen=True, slots=True)
class Uniform:
    """Both ends included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Listed:
    """Taken in turn, from the beginning again after the last."""

    tokens: tuple[int, ...]


Lengths = Fixed | Uniform | Listed


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many streams, each of which asks again as soon as it is answered."""

    streams: int


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests arrive at random, this many per second, whether or not earlier ones have been answered."""

    rate_per_s: float


Arrivals = ClosedLoop | OpenLoop


@dataclass(frozen=True, slots=True)
class Planned:
    """One request. `seed` makes its prompt different from every other's."""

    number: int
    prompt_tokens: int
    output_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Load:
    arrivals: Arrivals
    requests: tuple[Planned, ...]
    seed: int

    def times_s(self) -> tuple[float, ...]:
        """When each request is sent in an open loop, counted from the first."""
        match self.arrivals:
            case ClosedLoop():
                raise ValueError("in a closed loop the answers decide when requests are sent")
            case OpenLoop(rate_per_s):
                return poisson_times_s(rate_per_s, len(self.requests), random.Random(f"arrivals {self.seed}"))
            case _:
                assert_never(self.arrivals)


def plan_load(arrivals: Arrivals, requests: int, prompt: Lengths, output: Lengths, seed: int) -> Load:
    rng = random.Random(f"lengths {seed}")
    planned = tuple(
        Planned(number, draw(prompt, number, rng), draw(output, number, rng), rng.getrandbits(48))
        for number in range(requests)
    )
    return Load(arrivals, planned, seed)


def draw(lengths: Lengths, number: int, rng: random.Random) -> int:
    """The length of request `number`."""
    match lengths:
        case Fixed(tokens):
            return tokens
        case Uniform(low, high):
            return rng.randint(low, high)
        case Listed(tokens):
            return tokens[number % len(tokens)]
        case _:
            assert_never(lengths)


def poisson_times_s(rate_per_s: float, count: int, rng: random.Random) -> tuple[float, ...]:
    """Arrivals of a Poisson process: independent exponential gaps. The first is at 0."""
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + rng.expovariate(rate_per_s))
    return tuple(times[:count])


def parse_lengths(text: str) -> Lengths:
    """Raises ConfigError, naming the accepted forms."""
    low, dash, high = text.partition("-")
    if dash:
        ends = _counts([low, high], text)
        if ends[0] > ends[1]:
            raise ConfigError(f"{text!r} ends before it begins: say {LENGTHS_FORM}.")
        return Uniform(ends[0], ends[1])
    counts = _counts(text.split(","), text)
    return Fixed(counts[0]) if len(counts) == 1 else Listed(counts)


def _counts(words: Sequence[str], text: str) -> tuple[int, ...]:
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"{text!r} is not a length in tokens: say {LENGTHS_FORM}.")
    return tuple(map(int, words))
