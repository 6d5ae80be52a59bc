"""Park files and what is told of parking: names, budgets, and who removes what."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from provider.config import read_config
from provider.errors import ConfigError
from provider.memory.caps import GIB
from provider.parking.files import BadCopy, ParkFiles, sweep
from provider.parking.knobs import Knobs, ParkSpec, default_disk_bytes, knobs_in
from provider.parking.lot import Lot, NoRoom, Tiers
from provider.parking.mover import Lane
from provider.scheduler.parking import Policy
from tests.fixtures.movers import HandMover


class Words:
    """Implements Codec for arrays that are strings."""

    def write(self, path: Path, arrays: dict[str, str]) -> None:
        path.write_text(arrays["a"])

    def read(self, path: Path) -> dict[str, str]:
        return {"a": path.read_text()}

    def to_host(self, arrays: dict[str, str]) -> Any:
        return arrays["a"]

    def from_host(self, held: Any) -> dict[str, str]:
        return {"a": held}


def lot(directory: Path, **tiers: Any) -> tuple[Lot[str], HandMover]:
    mover = HandMover()
    return Lot(Tiers(**{"disk_bytes": 100, **tiers}), ParkFiles(directory), Words(), mover), mover


def test_a_file_has_its_name_only_when_it_is_whole_and_answers_to_its_digest(tmp_path: Path) -> None:
    files = ParkFiles(tmp_path / "park")
    part = files.new()
    part.write_bytes(b"state")
    written = files.finish(part)
    assert not part.exists()
    written.check()
    written.path.write_bytes(b"stare")
    with pytest.raises(BadCopy):
        written.check()
    assert (tmp_path / "park").stat().st_mode & 0o077 == 0
    files.remove_all()
    assert list((tmp_path / "park").iterdir()) == []


def test_a_sweep_removes_what_ended_processes_left_and_nothing_else(tmp_path: Path) -> None:
    own = psutil.Process()
    started = int(own.create_time() * 1000)
    gone = [f"{own.pid}-1-1.safetensors", "999999999-5-1.safetensors", "999999999-5-2.part.safetensors"]
    kept = [
        f"{own.pid}-{started}-1.safetensors",
        "model.safetensors",
        "999999999-5-1.txt",
        "x999999999-5-1.safetensors",
    ]
    for name in gone + kept:
        (tmp_path / name).touch()
    assert sweep(tmp_path) == len(gone)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(kept)
    assert sweep(tmp_path / "nowhere") == 0


def test_memory_is_filled_before_the_disk_and_no_tier_beyond_what_it_may_take(tmp_path: Path) -> None:
    parked, mover = lot(tmp_path, ram_bytes=50)
    assert parked.savable_bytes == 100
    parked.save("a", {"a": "x"}, 40)
    parked.save("b", {"a": "y"}, 90)
    assert parked.savable_bytes == 10
    with pytest.raises(NoRoom):
        parked.save("c", {"a": "z"}, 11)
    mover.run()
    assert len(list(tmp_path.iterdir())) == 1, "only the second is on the disk"
    assert [one.failure for one in parked.landed()] == [None, None]
    parked.restore("a")
    parked.drop("b")
    mover.run()
    (back,) = parked.landed()
    assert back.arrays == {"a": "x"}
    assert parked.savable_bytes == 100
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_others_count_into_the_budget_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "999999999-5-1.safetensors").write_bytes(b"x" * 60)
    parked, _ = lot(tmp_path)
    assert parked.savable_bytes == 40


def test_arrays_are_let_go_before_it_is_told_that_they_are_away(tmp_path: Path) -> None:
    parked, mover = lot(tmp_path)
    arrays = {"a": "x"}
    parked.save("a", arrays, 10)
    assert arrays
    mover.run(Lane.SAVE)
    assert not arrays


def test_an_end_with_copies_under_way_leaves_no_file(tmp_path: Path) -> None:
    parked, mover = lot(tmp_path)
    for id in "abc":
        parked.save(id, {"a": id}, 10)
    mover.jobs[Lane.SAVE].pop(0)()
    assert len(list(tmp_path.iterdir())) == 1
    parked.close()
    assert list(tmp_path.iterdir()) == []


def test_the_knobs_are_read_from_the_environment() -> None:
    told = {
        "DARKBLOOM_PREEMPT_POLICY": "largest",
        "DARKBLOOM_PREEMPT_EVERY": "16",
        "DARKBLOOM_PREEMPT_HOLD_S": "10.5",
        "DARKBLOOM_PREEMPT_FAIL_SAVE": "1",
    }
    assert knobs_in(told) == Knobs(policy=Policy.LARGEST, every=16, hold_s=10.5, fail_save=1)
    assert knobs_in({}) == Knobs()


@pytest.mark.parametrize(
    ("name", "value"),
    [("POLICY", "newest"), ("EVERY", "0"), ("EVERY", "x"), ("HOLD_S", "-1"), ("HOLD_S", "nan"), ("FAIL_SAVE", "1.5")],
)
def test_a_knob_of_the_wrong_form_is_an_error_that_names_it(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"DARKBLOOM_PREEMPT_{name}"):
        knobs_in({f"DARKBLOOM_PREEMPT_{name}": value})


@pytest.mark.parametrize(
    ("kind", "flags", "ram_gb"),
    [
        ("discrete", {}, 8),
        ("discrete", {"preempt_ram_gb": 0.5}, 0.5),
        ("unified", {"preempt_ram_gb": 4}, 0),
        ("host", {}, 0),
    ],
)
def test_memory_is_a_place_to_park_in_only_where_it_is_another_one(
    tmp_path: Path, kind: Any, flags: dict[str, Any], ram_gb: float
) -> None:
    config = read_config({**flags, "preempt_disk_gb": 2.0}, data_dir=tmp_path, file=tmp_path / "none", env={})
    spec = config.park_spec(kind)
    assert spec.ram_bytes == int(ram_gb * GIB)
    assert (spec.disk_bytes, spec.directory) == (2 * GIB, str(tmp_path / "park"))


def test_with_no_room_told_nothing_is_saved_and_with_nothing_told_a_share_of_the_disk(tmp_path: Path) -> None:
    assert ParkSpec(directory=str(tmp_path), disk_bytes=0).tiers() is None
    free = ParkSpec(directory=str(tmp_path / "to" / "be" / "made")).tiers()
    assert free is not None
    assert 0 < free.disk_bytes <= min(20 * GIB, 0.11 * psutil.disk_usage(str(tmp_path)).free)
    assert default_disk_bytes(tmp_path) > 0
