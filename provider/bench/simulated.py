"""Traces of chats against the policies of parking: the real engine over the tensor-free backend, in virtual time.

Geometry of a 4B hybrid. Nothing here depends on the machine it runs on: the same seed prints the same figures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, product
from random import Random
from statistics import quantiles

from provider.backends.base import BackendFacts
from provider.backends.sim import COPY_BYTES_PER_S, SimBackend
from provider.backends.sim_timing import Device
from provider.engine import Engine
from provider.generation import Delta, Event, GenerationRequest, Sampling
from provider.parking.lot import Tiers
from provider.scheduler.parking import ParkRules, Policy
from provider.scheduler.pool import Pool
from provider.scheduler.scheduler import Limits, Scheduler

FACTS = BackendFacts("sim", 1024, 32768, 2_400_000_000, 32768, 49_000_000, 256)
"""Qwen3.5-4B at 4 bits: 8 attention layers of 4 KV heads of 256 in bfloat16, 24 recurrent ones."""
DISK = Tiers(disk_bytes=20 * 2**30)


@dataclass(frozen=True, slots=True)
class Chat:
    at_s: float
    prompt_tokens: int
    max_tokens: int


@dataclass(slots=True)
class VirtualClock:
    """Implements provider.backends.sim_timing.Clock."""

    now_s: float = 0.0

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """`stall`: the longest pause of a chat between two tokens. `fairness`: Jain's index of the chats' tokens per second
    from arrival to end; 1 is all alike."""

    makespan_s: float
    tokens_per_s: float
    stall_p50_s: float
    stall_p99_s: float
    parks: int
    recomputed_tokens: int
    fairness: float


@dataclass(slots=True)
class Run:
    """One trace under one policy."""

    trace: Sequence[Chat]
    rules: ParkRules
    device: Device
    pool_bytes: int
    tiers: Tiers | None = DISK
    copy_bytes_per_s: float = COPY_BYTES_PER_S
    clock: VirtualClock = field(default_factory=VirtualClock)
    at: dict[str, list[float]] = field(default_factory=dict)
    prefilled: int = 0
    parks: int = 0

    def outcome(self) -> Outcome:
        self._play(self._engine())
        spans = [(self.trace[int(id)], moments) for id, moments in self.at.items()]
        speeds = [len(moments) / (moments[-1] - chat.at_s) for chat, moments in spans]
        stalls = [max((b - a for a, b in pairwise(moments)), default=0.0) for _, moments in spans]
        cuts = quantiles(stalls, n=100, method="inclusive")
        return Outcome(
            makespan_s=round(self.clock.now_s, 2),
            tokens_per_s=round(sum(len(moments) for _, moments in spans) / self.clock.now_s, 1),
            stall_p50_s=round(cuts[49], 3),
            stall_p99_s=round(cuts[98], 3),
            parks=self.parks,
            recomputed_tokens=self.prefilled - sum(chat.prompt_tokens for chat in self.trace),
            fairness=round(sum(speeds) ** 2 / (len(speeds) * sum(one * one for one in speeds)), 3),
        )

    def _engine(self) -> Engine:
        pool = Pool(
            self.pool_bytes // FACTS.kv_bytes_per_token,
            self.pool_bytes,
            FACTS.kv_bytes_per_token,
            FACTS.state_bytes,
            FACTS.block_tokens,
        )
        backend = SimBackend(FACTS, self.device, self.clock, tiers=self.tiers, copy_bytes_per_s=self.copy_bytes_per_s)
        scheduler = Scheduler(Limits(16, 32768), pool, self.rules)
        return Engine(scheduler, backend, lambda ids, _: " " * len(ids), now=self.clock.now)

    def _play(self, engine: Engine) -> None:
        coming = [(chat.at_s, str(number), chat) for number, chat in enumerate(self.trace)]
        while coming or engine.busy:
            while coming and coming[0][0] <= self.clock.now_s:
                _, id, chat = coming.pop(0)
                engine.submit(request(id, chat))
            if not engine.busy:
                self.clock.now_s = coming[0][0]
                continue
            step = engine.step(self._note)
            self._note(step.events)
            self.parks += len(step.plan.park)
            self.prefilled += sum(chunk.count for chunk in step.plan.prefill)
            if not step.plan:
                self.clock.sleep(engine.idle_s())

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Delta):
                self.at.setdefault(event.request_id, []).extend([self.clock.now_s] * len(event.token_ids))


def request(id: str, chat: Chat) -> GenerationRequest:
    return GenerationRequest(
        request_id=id,
        prompt=[int(id) % 1000] * chat.prompt_tokens,
        max_tokens=chat.max_tokens,
        sampling=Sampling(temperature=0),
    )


def traces(chats: int, seed: int = 1) -> Iterator[tuple[str, list[Chat]]]:
    random = Random(seed)
    yield "eight at once", [Chat(0.0, 500, 1500)] * 8
    yield "burst", [Chat(0.0, random.randrange(100, 3000), random.randrange(100, 800)) for _ in range(chats)]
    at_s, steady = 0.0, []
    for _ in range(chats):
        at_s += random.expovariate(0.8)
        steady.append(Chat(at_s, random.randrange(100, 4000), random.randrange(100, 1000)))
    yield "steady", steady
    mixed = [Chat(0.4 * n, 6000 if n % 8 == 0 else 300, 800 if n % 8 == 0 else 200) for n in range(chats)]
    yield "few long among many short", mixed


def rows(chats: int, device: Device) -> Iterator[dict[str, object]]:
    """A pool for three chats of the first trace."""
    pool_bytes = 3 * (FACTS.state_bytes + 2048 * FACTS.kv_bytes_per_token)
    for (name, trace), policy, saves in product(traces(chats), Policy, (True, False)):
        room = max(pool_bytes, FACTS.state_bytes + 2 * 7168 * FACTS.kv_bytes_per_token)
        size = pool_bytes if name == "eight at once" else room
        run = Run(trace, ParkRules(policy), device, size, DISK if saves else None)
        yield {"trace": name, "policy": policy.value, "saves": saves, **asdict(run.outcome())}
    bound = Run(next(traces(chats))[1], ParkRules(), device, pool_bytes, DISK, float("inf")).outcome()
    yield {"trace": "eight at once, copies for free", "policy": "least-lost", "saves": True, **asdict(bound)}
