"""One and the same chat alone, beside others, parked, computed again and drafted: whether its tokens and logits are the
same, bit for bit, on this device. Made at load, and by `doctor --exact`.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random

from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.numerics_adversary import Hostile, NumericsAdversary
from provider.backends.mlx.park_codec import MlxCodec
from provider.backends.mlx.recording import Recording
from provider.engine import Engine
from provider.exact.policy import Condition
from provider.generation import Delta, Event, Failed, Finished, GenerationRequest, Sampling
from provider.mtp.controller import FixedDepth
from provider.parking.files import ParkFiles
from provider.parking.lot import Lot, Tiers
from provider.parking.mover import Job, Lane
from provider.scheduler.parking import ParkRules
from provider.scheduler.pool import Pool
from provider.scheduler.prefilling import SHARED, SOLO
from provider.scheduler.scheduler import Limits, Scheduler

AT_LOAD = (Condition.ALONE, Condition.BESIDE, Condition.PARKED, Condition.RECOMPUTED, Condition.DRAFTED)
CHAT = "chat"
NEIGHBOURS = ("first", "second", "third")
STAGGER_STEPS = 3


@dataclass(frozen=True, slots=True)
class Question:
    """What the chat is asked and its three neighbours are. `sampling` is of the chat; they draw with other seeds."""

    prompt: list[int]
    others: list[list[int]]
    tokens: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Reading:
    """What a condition came to. `digest`: of the chat's tokens and logits. `widest`: the most sequences in one decode
    step; parks, recomputes and accepted drafts are the chat's."""

    condition: Condition
    digest: str
    tokens: list[int]
    widest: int
    parks: int
    recomputes: int
    accepted: int


class CheckFailed(Exception):
    """The chat came to no end."""


def short_question(vocab_size: int, tokens: int = 8) -> Question:
    """Of random tokens. The chat's prompt has a whole sub-chunk of the recurrence and a rest."""
    random = Random(vocab_size)
    chat, *others = ([random.randrange(vocab_size) for _ in range(length)] for length in (24, 9, 17, 33))
    return Question(chat, others, tokens, Sampling(temperature=0.8, seed=7))


def check(
    backend: MlxBackend,
    question: Question,
    conditions: Sequence[Condition] = AT_LOAD,
    adversary: NumericsAdversary | None = None,
) -> list[Reading]:
    """The backend as it is, in lanes or not, without open sequences; it is left so. A condition that it has no part in
    (drafts without a head) is left out. Under `adversary`, if one is given. Raises CheckFailed."""
    possible = [one for one in conditions if one is not Condition.DRAFTED or backend.facts.max_drafts]
    return [_read(backend, question, one, adversary) for one in possible]


def differing(readings: Sequence[Reading]) -> list[Condition]:
    """Those that came to something else than the first."""
    return [one.condition for one in readings if one.digest != readings[0].digest]


def _read(
    backend: MlxBackend, question: Question, condition: Condition, adversary: NumericsAdversary | None
) -> Reading:
    chat = _request(CHAT, question.prompt, question, question.sampling.seed)
    others = (
        []
        if condition is Condition.ALONE
        else [
            _request(name, prompt, question, question.sampling.seed + 1 + number)
            for number, (name, prompt) in enumerate(zip(NEIGHBOURS, question.others, strict=True))
        ]
    )
    recording = Recording({CHAT: chat.sampling})
    with ExitStack() as stack:
        stack.enter_context(_observed(backend, recording))
        if condition in (Condition.PARKED, Condition.RECOMPUTED):
            stack.enter_context(_parking_in(backend, condition is Condition.PARKED))
        engine = _engine(backend if adversary is None else Hostile(backend, adversary), question, condition)
        stack.callback(_emptied, engine, [chat, *others])
        widest, events = _played(engine, chat, others, condition is Condition.STAGGERED)
    tokens = [token for event in events if isinstance(event, Delta) for token in event.token_ids]
    end = next(event for event in events if isinstance(event, Finished))
    digest = sha256(repr(tokens).encode() + b"".join(recording.logits(CHAT, len(tokens)))).hexdigest()
    return Reading(condition, digest, tokens, widest, end.parks, end.recomputes, end.accepted)


def _request(id: str, prompt: list[int], question: Question, seed: int) -> GenerationRequest:
    asked = question.sampling
    sampling = Sampling(temperature=asked.temperature, top_p=asked.top_p, top_k=asked.top_k, seed=seed)
    return GenerationRequest(request_id=id, prompt=prompt, max_tokens=question.tokens, sampling=sampling)


def _engine(backend: MlxBackend | Hostile, question: Question, condition: Condition) -> Engine:
    facts = backend.facts
    parks = condition in (Condition.PARKED, Condition.RECOMPUTED)
    rules = ParkRules(every=max(1, question.tokens // 2) if parks else None)
    prefilling = SHARED if facts.lane_rows is None else SOLO
    longest = max(map(len, [question.prompt, *question.others])) + question.tokens
    scheduler = Scheduler(Limits(1 + len(NEIGHBOURS), longest, prefilling=prefilling), Pool(4 * longest), rules)
    depth = FixedDepth(facts.max_drafts if condition is Condition.DRAFTED else 0)
    return Engine(scheduler, backend, lambda ids, _: "", depth)


def _played(
    engine: Engine, chat: GenerationRequest, others: Sequence[GenerationRequest], staggered: bool
) -> tuple[int, list[Event]]:
    """The most sequences that decoded in one step, and the chat's events."""
    waiting, events = [*others], list[Event]()
    events += engine.submit(chat)
    widest = steps = 0
    while not any(isinstance(event, Finished) for event in events):
        while waiting and (not staggered or steps % STAGGER_STEPS == 0):
            events += engine.submit(waiting.pop(0))
            if staggered:
                break
        step = engine.step(events.extend)
        events += step.events
        widest, steps = max(widest, len(step.plan.decode)), steps + 1
        failed = next((event for event in events if isinstance(event, Failed)), None)
        if failed is not None:
            raise CheckFailed(failed.failure.message)
        events = [event for event in events if event.request_id == CHAT]
    return widest, events


def _emptied(engine: Engine, requests: Sequence[GenerationRequest]) -> None:
    for one in requests:
        engine.cancel(one.request_id)
        engine.backend.release(one.request_id)
    engine.backend.landings()


@contextmanager
def _observed(backend: MlxBackend, recording: Recording) -> Iterator[None]:
    backend.observe(recording)
    try:
        yield
    finally:
        backend.observe(None)


class _AtOnce:
    """Implements provider.parking.mover.Mover: a copy has landed when the next step asks."""

    def submit(self, lane: Lane, job: Job) -> None:
        job()

    def close(self) -> None: ...


@contextmanager
def _parking_in(backend: MlxBackend, memory: bool) -> Iterator[None]:
    """Host memory, or nothing that takes a copy: whoever is parked is computed again."""
    with tempfile.TemporaryDirectory() as directory:
        tiers = Tiers(disk_bytes=0, ram_bytes=2**50)
        lot = Lot(tiers, ParkFiles(Path(directory)), MlxCodec(), _AtOnce()) if memory else None
        former = backend.park_with(lot)
        try:
            yield
        finally:
            backend.park_with(former)
