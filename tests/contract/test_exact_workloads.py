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

WORKLOADS = 200 if SOAK else len(FAMILIES)
MOST_DRAFTS = 3
TURNS = 4
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
    """Four that stay and meet, and some that come late; one of those is cancelled."""
    many = random.randint(5, 7)
    made = []
    for number in range(many):
        prompt = prompt_of(random.choice([1, 3, 16, 20, 33, 64, 70]), random.randrange(10**6))
        stays = number < 4
        made.append(
            Chat(
                str(number),
                prompt,
                random.randint(18, 26) if stays else random.randint(1, 14),
                random.choice(SAMPLINGS),
                joins=random.randint(0, 2) if stays else random.randint(0, 16),
                leaves=random.randint(4, 20) if number == many - 1 else None,
            )
        )
    return made


def setting(random: Random, asked: Sequence[Chat], directory: Path) -> Setting:
    """Nobody parked, parked and brought back, or computed again; with and without too little room."""
    depth = RandomDepth(random.randrange(10**6), MOST_DRAFTS) if random.random() < 0.75 else FixedDepth()
    lands = Random(random.randrange(10**6))
    kind = random.choice(["stay", "saved", "dropped", "some saves fail", "little room"])
    room_for_four = sum(len(one.prompt) + 14 for one in asked[:4])
    return Setting(
        depth=depth,
        every=None if kind in ("stay", "little room") else random.randint(5, 9),
        copies=None if kind == "dropped" else directory,
        fail_every=2 if kind == "some saves fail" else None,
        lands=lambda: lands.random() < 0.5,
        pool_tokens=room_for_four if kind == "little room" else ENOUGH,
    )


@pytest.mark.parametrize("seed", range(WORKLOADS))
def test_whatever_the_others_do_a_chat_is_the_chat_alone(models: Models, tmp_path: Path, seed: int) -> None:
    """A workload in which less happened than it is for is followed by another."""
    backend, drafter = models[[*FAMILIES][seed % len(FAMILIES)]]
    for turn in range(TURNS):
        random, adversary = Random(1000 * turn + seed), NumericsAdversary()
        rows = random.choice([4, 8, 16])
        backend.decode_in_lanes(in_lanes(rows, random.choice([1, rows]), backend.aside))
        asked = chats(random)
        wanted = setting(random, asked, tmp_path / str(turn))
        expected = alone(backend, asked, adversary)
        drafter.truths = {id: answer.tokens for id, answer in expected.items()}
        answers, log = play(backend, asked, wanted, adversary)
        assert differing(answers, expected) == []
        assert rows in adversary.rows_met
        if happened(wanted, log):
            return
    raise AssertionError(f"{TURNS} workloads in which less happened than they are for, the last of them {log}")


def happened(wanted: Setting, log: Log) -> bool:
    """Four decoded in one step, and what the setting brings about came about."""
    drafts = log.accepted > 0 or isinstance(wanted.depth, FixedDepth)
    parks = log.parks > 0 or (wanted.every is None and wanted.pool_tokens == ENOUGH)
    recomputes = log.recomputes > 0 or (wanted.copies is not None and wanted.fail_every is None)
    return log.widest >= 4 and drafts and parks and recomputes
