"""The table of tools/mutate_races.py against the code it mutates."""

import pytest

from tools.mutate_races import MUTANTS, ROOT, TESTS, Mutant

RACES = 21


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: f"{one.race}-{one.path}")
def test_every_mutant_names_its_rule_once_and_a_test_that_there_is(mutant: Mutant) -> None:
    assert (ROOT / mutant.path).read_text().count(mutant.old) == 1
    assert mutant.test.startswith(f"test_race_{mutant.race:02}_")
    assert f"def {mutant.test.partition('[')[0]}(" in (ROOT / TESTS).read_text()


def test_every_race_has_a_mutant() -> None:
    assert {one.race for one in MUTANTS} == set(range(1, RACES + 1))
