"""Claims of loads: their sum is bounded, and each is given back once, by its holder."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from provider.memory.ledger import Claim, DuplicateClaim, Ledger, UnknownClaim
from tests.soak import examples

LIMIT = 100


def test_a_claim_beyond_the_limit_is_refused_and_holds_nothing() -> None:
    ledger, first, second = Ledger(LIMIT), Claim("a"), Claim("b")

    assert ledger.reserve(first, 60)
    assert not ledger.reserve(second, 41)
    assert ledger.outstanding_bytes == 60
    assert ledger.bytes_of(second) == 0
    assert ledger.reserve(second, 40)
    assert ledger.outstanding_bytes == LIMIT


def test_a_claim_is_held_once() -> None:
    ledger, claim = Ledger(LIMIT), Claim("a")
    ledger.reserve(claim, 10)

    with pytest.raises(DuplicateClaim, match="a holds a claim already"):
        ledger.reserve(claim, 20)
    assert ledger.bytes_of(claim) == 10


def test_two_loads_of_one_model_hold_two_claims() -> None:
    """A late clean-up of the first load cannot give back what the second one holds."""
    ledger, old, new = Ledger(LIMIT), Claim("a"), Claim("a")
    ledger.reserve(old, 10)
    ledger.release(old)
    ledger.reserve(new, 20)

    with pytest.raises(UnknownClaim):
        ledger.release(old)
    assert ledger.bytes_of(new) == 20


def test_a_claim_that_is_not_held_cannot_be_changed() -> None:
    ledger = Ledger(LIMIT)

    with pytest.raises(UnknownClaim, match="a holds no claim"):
        ledger.resize(Claim("a"), 1)
    with pytest.raises(UnknownClaim, match="a holds no claim"):
        ledger.release(Claim("a"))


def test_a_claim_that_cannot_grow_stays_as_it_was() -> None:
    ledger, claim = Ledger(LIMIT), Claim("a")
    ledger.reserve(claim, 90)

    assert not ledger.resize(claim, 101)
    assert ledger.bytes_of(claim) == 90
    assert ledger.resize(claim, LIMIT)
    assert ledger.resize(claim, 0)
    assert ledger.outstanding_bytes == 0


@pytest.mark.parametrize("held", [False, True])
def test_a_negative_claim_is_a_mistake(held: bool) -> None:
    ledger, claim = Ledger(LIMIT), Claim("a")
    change = ledger.resize if held else ledger.reserve
    if held:
        ledger.reserve(claim, 5)

    with pytest.raises(ValueError, match="-1 bytes"):
        change(claim, -1)


class LedgerMachine(RuleBasedStateMachine):
    """Against a plain dictionary."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(LIMIT)
        self.model: dict[Claim, int] = {}

    def fits(self, claim: Claim, size: int) -> bool:
        return sum(self.model.values()) - self.model.get(claim, 0) + size <= LIMIT

    @rule(target=claims, model_id=st.sampled_from("ab"), size=st.integers(0, 120))
    def reserve(self, model_id: str, size: int) -> Claim:
        claim = Claim(model_id)
        expected = self.fits(claim, size)
        assert self.ledger.reserve(claim, size) is expected
        if expected:
            self.model[claim] = size
        return claim

    @rule(claim=claims, size=st.integers(0, 120))
    def resize(self, claim: Claim, size: int) -> None:
        if claim not in self.model:
            with pytest.raises(UnknownClaim):
                self.ledger.resize(claim, size)
            return
        expected = self.fits(claim, size)
        assert self.ledger.resize(claim, size) is expected
        if expected:
            self.model[claim] = size

    @rule(claim=consumes(claims))
    def release(self, claim: Claim) -> None:
        if claim in self.model:
            self.ledger.release(claim)
            del self.model[claim]
        with pytest.raises(UnknownClaim):
            self.ledger.release(claim)

    @invariant()
    def sums_what_is_held(self) -> None:
        assert self.ledger.outstanding_bytes == sum(self.model.values()) <= LIMIT
        assert all(self.ledger.bytes_of(claim) == size for claim, size in self.model.items())


LedgerMachine.TestCase.settings = settings(max_examples=examples(2000), deadline=None)
TestLedger = LedgerMachine.TestCase
