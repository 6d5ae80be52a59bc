"""Random workloads in exact mode, under a device that rounds by the size of its launches: whatever the others do, each
chat's tokens and logits are those it has alone without drafts, bit for bit."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.ingredients import in_lanes
from provider.backends.mlx.numerics_adversary import NumericsAdversary
from provider.mtp.controller import FixedDepth
from tests.contract.test_drafts import FAMILIES, SAMPLINGS
from tests.fixtures.backend_play import prompt_of
from tests.fixtures.drafters import RuledDrafter, mostly_right
from tests.fixtures.exact_play import Chat, Log, RandomDepth, Setting, alone, differing, play
from tests.soak import SOAK

WHOLE = 200
WORKLOADS = WHOLE if SOAK else len(FAMILIES)
KINDS = ("stay", "saved", "dropped", "some saves fail", "little room")
MOST_DRAFTS = 3
LENGTHS = (1, 3, 16, 20, 33, 64, 70)
GREEDY_ONES = [one for one in SAMPLINGS if one.temperature == 0]
SEEDED_ONES = [one for one in SAMPLINGS if one.temperature > 0]
TURNS = 6
ENOUGH = 10**6


class Models:
    """Each loaded once; its drafter is told what it is to guess."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loaded: dict[str, tuple[MlxBackend, RuledDrafter]] = {}

    def __getitem__(self, family: str) -> tuple[MlxBackend, RuledDrafter]:
        if family not in self._loaded:
            drafter = RuledDrafter({}, mostly_right)
            path = FAMILIES[family](self._directory / family.replace(" ", "-"))
            self._loaded[family] = MlxBackend(path, drafter), drafter
        return self._loaded[family]

    def close(self) -> None:
        for backend, _ in self._loaded.values():
            backend.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    made = Models(tmp_path_factory.mktemp("workloads"))
    yield made
    made.close()


def chats(random: Random) -> list[Chat]:
    """Four that stay and meet, greedy and seeded ones among them; some that come late; one that is cancelled."""
    staying = [random.choice(GREEDY_ONES), random.choice(SEEDED_ONES), *random.choices(SAMPLINGS, k=2)]
    made = [
        Chat(str(n), _prompt(random), random.randint(18, 26), one, joins=random.randint(0, 2))
        for n, one in enumerate(staying)
    ]
    for n in range(len(staying), random.randint(5, 7) - 1):
        drawn = random.randint(1, 14)
        made.append(Chat(str(n), _prompt(random), drawn, random.choice(SAMPLINGS), joins=random.randint(0, 16)))
    joins, leaves = random.randint(0, 10), random.randint(1, 12)
    return [*made, Chat("left", _prompt(random), 20, random.choice(SAMPLINGS), joins, leaves)]


def _prompt(random: Random) -> list[int]:
    return prompt_of(random.choice(LENGTHS), random.randrange(10**6))


def family_of(seed: int) -> str:
    return [*FAMILIES][seed % len(FAMILIES)]


def kind_of(seed: int) -> str:
    """Twenty-five seeds in a row have each kind with each family, and five have each of both."""
    return KINDS[(seed + seed // len(KINDS)) % len(KINDS)]


def drafts_in(seed: int) -> bool:
    """In three quarters of all."""
    return seed // (len(KINDS) * len(FAMILIES)) % 4 != 3


def setting(random: Random, asked: Sequence[Chat], directory: Path, seed: int) -> Setting:
    """Nobody parked, parked and brought back, or computed again; with and without too little room."""
    depth = RandomDepth(random.randrange(10**6), MOST_DRAFTS) if drafts_in(seed) else FixedDepth()
    lands = Random(random.randrange(10**6))
    kind = kind_of(seed)
    longest = max(len(one.prompt) + one.tokens for one in asked)
    little = max(longest, sum(len(one.prompt) + 12 for one in asked[:4]))
    return Setting(
        depth=depth,
        every=None if kind in ("stay", "little room") else random.randint(5, 9),
        copies=None if kind == "dropped" else directory,
        fail_every=2 if kind == "some saves fail" else None,
        lands=lambda: lands.random() < 0.5,
        pool_tokens=little if kind == "little room" else ENOUGH,
    )


@pytest.mark.parametrize("seed", range(WORKLOADS))
def test_whatever_the_others_do_a_chat_is_the_chat_alone(models: Models, tmp_path: Path, seed: int) -> None:
    """A workload in which less happened than it is for is followed by another."""
    backend, drafter = models[family_of(seed)]
    for turn in range(TURNS):
        random, adversary = Random(1000 * turn + seed), NumericsAdversary()
        rows = random.choice([4, 8, 16])
        backend.decode_in_lanes(in_lanes(rows, random.choice([1, rows]), backend.aside))
        asked = chats(random)
        wanted = setting(random, asked, tmp_path / str(turn), seed)
        expected = alone(backend, asked, adversary)
        drafter.truths = {id: answer.tokens for id, answer in expected.items()}
        answers, log = play(backend, asked, wanted, adversary)
        assert differing(answers, expected) == []
        assert rows in adversary.rows_met
        if happened(wanted, log):
            return
    raise AssertionError(f"{TURNS} workloads in which less happened than they are for, the last of them {log}")


def happened(wanted: Setting, log: Log) -> bool:
    """Four decoded in one step, one was cancelled while it answered, and what the setting brings about came about."""
    drafts = (log.accepted > 0 and log.deepest > 1) or isinstance(wanted.depth, FixedDepth)
    parks = log.parks > 0 or (wanted.every is None and wanted.pool_tokens == ENOUGH)
    recomputes = log.recomputes > 0 or (wanted.copies is not None and wanted.fail_every is None)
    return log.widest >= 4 and log.cancelled > 0 and drafts and parks and recomputes


def test_two_hundred_workloads_have_all_there_is(tmp_path: Path) -> None:
    """Each family with each way of parking, with drafts and without; both kinds of chats; every length and depth. A
    handful of them has each family and each way."""
    seen: set[tuple[str, str, bool]] = set()
    lengths: set[int] = set()
    depths: set[int] = set()
    for seed in range(WHOLE):
        random = Random(seed)
        asked = chats(random)
        wanted = setting(random, asked, tmp_path, seed)
        seen.add((family_of(seed), kind_of(seed), isinstance(wanted.depth, RandomDepth)))
        lengths |= {len(one.prompt) for one in asked}
        depths |= {wanted.depth.depth(4) for _ in range(20)}
        assert any(one.sampling.temperature == 0 for one in asked)
        assert any(one.sampling.temperature > 0 for one in asked)
    assert len(seen) == len(FAMILIES) * len(KINDS) * 2
    assert lengths == {*LENGTHS}
    assert depths == {*range(MOST_DRAFTS + 1)}
    assert {kind_of(seed) for seed in range(len(FAMILIES))} == {*KINDS}
