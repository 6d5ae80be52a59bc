"""What an operator's memory_limit_gb does to words, and what a grant tells the allocator."""

from pathlib import Path

from provider.advertisement import mtp_status
from provider.backends.sim import SimBackend
from provider.building import build
from provider.config import read_config
from provider.fit_findings import fit_findings
from provider.fitness import Candidate, MachineFacts, judge_fit
from provider.memory.caps import GIB
from provider.memory.refusal import MemoryRefusal, Why
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.pipe import LoadSpec
from provider.residency import Residency


def facts(limit_gib: int | None, size_gib: int) -> MachineFacts:
    return MachineFacts(
        physical_bytes=64 * GIB,
        available_bytes=60 * GIB,
        reserve_bytes=4 * GIB,
        limit_bytes=None if limit_gib is None else limit_gib * GIB,
        advertised=("m",),
        models=(Candidate(id="m", size_bytes=size_gib * GIB),),
        target="m",
    )


def said(facts: MachineFacts) -> tuple[str, str]:
    (finding,) = fit_findings([judge_fit(facts)], facts)
    return finding.message, finding.fix or ""


def test_doctor_names_the_limit_where_it_is_the_limit_that_is_too_small() -> None:
    message, fix = said(facts(limit_gib=10, size_gib=10))
    assert message.startswith("memory_limit_gb allows models 10.00 GiB")
    assert "raise memory_limit_gb" in fix.lower()
    message, fix = said(facts(limit_gib=10, size_gib=60))
    assert message.startswith("RAM is too small")
    assert "memory_limit_gb" not in fix


def test_a_refusal_names_the_limit_as_the_cause() -> None:
    refusal = MemoryRefusal(
        model="m", why=Why.LIMITED, required_bytes=2, usable_bytes=1, ceiling_bytes=1, cap_bytes=1, largest_bytes=0
    )
    assert "Raise it" in refusal.message
    assert refusal.detail()["reason"] == "memory_limit"


def test_an_allocator_keeps_no_more_for_reuse_than_passes_can_take() -> None:
    told = list[tuple[int, int]]()

    class Noted(SimBackend):
        def limit(self, size_bytes: int, cache_bytes: int) -> None:
            told.append((size_bytes, cache_bytes))

    original = SimBackend.limit
    SimBackend.limit = Noted.limit  # type: ignore[method-assign]
    try:
        engine, _ = build(
            LoadSpec(
                backend="sim",
                directory=str(BUNDLED_MODEL_DIR),
                max_concurrent=2,
                kv_pool_bytes=10**8,
                activation_reserve_bytes=10**6,
            )
        )
    finally:
        SimBackend.limit = original  # type: ignore[method-assign]
    assert told == [(engine.backend.facts.weight_bytes + 10**8 + 10**6, 10**6 // 2)]


def test_a_model_that_is_not_loaded_yet_says_what_its_files_say_of_drafting(tmp_path: Path) -> None:
    for mode, active, reason in (("auto", True, None), ("off", False, "config_disabled")):
        config = read_config({"mtp_mode": mode}, (BUNDLED_MODEL_ID,), data_dir=tmp_path, file=tmp_path / "none", env={})
        residency = Residency(config, 64 * GIB)
        status = mtp_status(residency.model(BUNDLED_MODEL_ID))
        assert (status.active, status.reason) == (active, reason)
