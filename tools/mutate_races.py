"""Are the races' rules really tested? Removes each rule from a copy of the package and demands that its test fails.

`python -m tools.mutate_races [RACE ...]`: exit 1 when a mutant survives, or when a test fails without one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/unit/provider/test_residency_races.py"
COPIED = ("provider", "tests", "pyproject.toml")
TEST_S = 120


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` -> `new` in `path` takes the rule of `race` away; `test` must then fail."""

    race: int
    path: str
    old: str
    new: str
    test: str


MUTANTS = (
    Mutant(
        1,
        "provider/occupancy.py",
        "serving_set(declared, resident, self.loading | self.joining, asked)",
        "serving_set(declared, resident, self.joining, asked)",
        "test_race_01_a_model_dropped_while_it_loads_still_pins_its_floor",
    ),
    Mutant(
        2,
        "provider/engine.py",
        "        if epoch <= self._grant.epoch:\n            return None\n",
        "",
        "test_race_02_a_relax_that_comes_after_a_later_raise_changes_nothing",
    ),
    Mutant(
        3,
        "provider/residency.py",
        "                await self._end_worker(model)\n                await self.granting.regrow()\n",
        "                await self._end_worker(model)\n",
        "test_race_03_every_way_out_gives_the_survivors_its_room[unload]",
    ),
    Mutant(
        3,
        "provider/loading.py",
        "        await self._clear_caches()\n        self._occupancy.loading.discard(model.id)\n"
        "        await self._granting.regrow()\n",
        "        await self._clear_caches()\n        self._occupancy.loading.discard(model.id)\n",
        "test_race_03_every_way_out_gives_the_survivors_its_room[failed load]",
    ),
    Mutant(
        4,
        "provider/loading.py",
        "            await to_the_end(self._undo(model, claim))\n",
        "            self._late = asyncio.ensure_future(self._undo(model, claim))\n",
        "test_race_04_the_next_load_begins_when_the_failed_one_has_been_cleaned_up",
    ),
    Mutant(
        5,
        "provider/loading.py",
        "            reading = await self._sample(model)\n            self._still_wanted(model)\n"
        "            if self._fits",
        "            required = self._occupancy.required(model, charge)\n"
        "            reading = await self._sample(model)\n"
        "            if not can_load(required, reading):\n"
        "                raise LoadRefused(self._refuse(model, charge, reading, Why.IN_USE))\n"
        "            self._still_wanted(model)\n            if self._fits",
        "test_race_05_memory_is_sampled_first_and_the_requirement_worked_out_then",
    ),
    Mutant(
        6,
        "provider/memory/admission.py",
        "max(0, outstanding_bytes - own_claim_bytes)",
        "outstanding_bytes",
        "test_race_06_a_loads_own_claim_is_not_held_against_it",
    ),
    Mutant(
        7,
        "provider/memory/requirement.py",
        "return charge.padded_bytes + activation_reserve_bytes",
        "return charge.target_only.padded_bytes + activation_reserve_bytes",
        "test_race_07_requirement_and_claim_hold_the_assistant_alike",
    ),
    Mutant(
        8,
        "provider/residency.py",
        "        async with self._gate:\n            joined = await self._join(model, wanted)\n",
        "        joined = await self._join(model, wanted)\n",
        "test_race_08_a_raise_waits_for_a_load_that_lies_between_admission_and_install",
    ),
    Mutant(
        9,
        "provider/memory/grants.py",
        "    if sum(one.minimum_bytes for one in members.values()) > budget_bytes:\n        return None\n",
        "",
        "test_race_09_a_raise_that_strands_a_resident_is_refused_and_what_was_fetched_is_said",
    ),
    Mutant(
        10,
        "provider/operations.py",
        "        residency.on_room(self._offer_again)\n",
        "",
        "test_race_10_what_was_deferred_is_offered_again_when_room_comes",
    ),
    Mutant(
        11,
        "provider/capacity.py",
        "        if epoch == granting.epoch:\n            break\n",
        "        break\n",
        "test_race_11_a_picture_taken_across_a_move_is_taken_again",
    ),
    Mutant(
        12,
        "provider/retirement.py",
        "return bool(marks) and (digest is None or None in marks or digest in marks)",
        "return False",
        "test_race_12_a_prefetch_that_slept_through_a_retirement_does_not_bring_the_build_back[digest]",
    ),
    Mutant(
        12,
        "provider/residency.py",
        "retired, known = self.retired.covers(model.id, model.digest), occupancy",
        "retired, known = False, occupancy",
        "test_race_12_a_prefetch_that_slept_through_a_retirement_does_not_bring_the_build_back[the gate]",
    ),
    Mutant(
        13,
        "provider/link.py",
        "        await self._socket.send(encode(register))\n",
        "        await self._socket.send(encode(register))\n        self._told = self._link.residency.advertised()\n",
        "test_race_13_what_changes_while_a_registration_is_on_its_way_is_told_after_it",
    ),
    Mutant(
        14,
        "provider/link.py",
        " and self._outbox.say(ModelsUpdate(models=advertised)):\n            self._told = advertised\n",
        ':\n            raise ConnectionResetError("announced by registering again")\n',
        "test_race_14_a_retirement_is_announced_and_nobody_elses_work_is_lost",
    ),
    Mutant(
        15,
        "provider/loading.py",
        "        self._still_wanted(model)\n        return None if model.slot.loaded",
        "        return None if model.slot.loaded",
        "test_race_15_a_model_that_retires_while_a_request_is_looked_at_takes_no_more",
    ),
    Mutant(
        15,
        "provider/occupancy.py",
        "not leaving and model.id not in self.loading",
        "not leaving",
        "test_race_15_requests_enter_a_model_only_once_its_load_has_ended",
    ),
    Mutant(
        16,
        "provider/residency.py",
        "            await self._named.preload(self.load)\n",
        "            for id in self._named.preloaded():\n"
        "                await self.occupancy.models[id].slot.start()\n",
        "test_race_16_what_is_loaded_at_start_is_judged_by_what_there_is_then",
    ),
    Mutant(
        17,
        "provider/residency.py",
        "        async with self._gate:\n            await self.granting.regrow()\n",
        "        await self.granting.regrow()\n",
        "test_race_17_a_change_of_the_list_waits_for_the_load_that_is_under_way",
    ),
    Mutant(
        18,
        "provider/capacity.py",
        "reading, reserve = occupancy.reading(memory), occupancy.reserve()",
        "reading, reserve = occupancy.reading(memory), 11 * 2**29",
        "test_race_18_everybody_charges_the_one_resolved_reserve",
    ),
    Mutant(
        18,
        "provider/granting.py",
        "newcomer.slot.start_with(wanted[newcomer.id], reserve)",
        "newcomer.slot.start_with(wanted[newcomer.id], 11 * 2**29)",
        "test_race_18_a_worker_starts_with_the_reserve_it_will_be_granted",
    ),
    Mutant(
        19,
        "provider/loading.py",
        "live_kv_headroom(reading, self._occupancy.reserve([model.id]))",
        "live_kv_headroom(reading, 11 * 2**29)",
        "test_race_19_a_load_without_its_assistant_is_measured_with_the_same_reserve",
    ),
    Mutant(
        20,
        "provider/memory/floors.py",
        "return declared | others if declared else frozenset()",
        "return declared | others",
        "test_race_20_nothing_advertised_is_a_statement_and_not_the_want_of_one",
    ),
    Mutant(
        21,
        "provider/residency.py",
        "if id not in gone]\n        self._changed.tell()\n",
        "if id not in gone]\n",
        "test_race_21_a_reserve_that_falls_is_told_at_once",
    ),
)


def main(races: Sequence[str]) -> int:
    chosen = [one for one in MUTANTS if not races or str(one.race) in races]
    with TemporaryDirectory() as directory:
        copy = Path(directory)
        copy_package(copy)
        if not passes(copy, dict.fromkeys(one.test for one in chosen)):
            print("The tests fail without any mutant.")
            return 1
        killed = [kill(copy, one) for one in chosen]
    print(f"{sum(killed)} of {len(killed)} mutants killed.")
    return 0 if all(killed) else 1


def kill(copy: Path, mutant: Mutant) -> bool:
    """Whether the test notices."""
    path = copy / mutant.path
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.path} does not hold the rule of race {mutant.race} once"
    path.write_text(text.replace(mutant.old, mutant.new))
    survived = passes(copy, [mutant.test])
    path.write_text(text)
    print(f"{mutant.race:2}  {'SURVIVED' if survived else 'killed':8}  {mutant.path:30}  {mutant.test}", flush=True)
    return not survived


def copy_package(copy: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)


def passes(copy: Path, tests: Iterable[str]) -> bool:
    """No bytecode is kept: it might be that of the text before."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={TEST_S}",
         *(f"{TESTS}::{one}" for one in tests)],
        cwd=copy, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
