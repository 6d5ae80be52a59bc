"""A head that has failed is planned with no more, and everybody who asks about drafting is told so, once in the log. So
is one that drafts nothing."""

import asyncio
import logging

import msgspec
import pytest

from provider.advertisement import mtp_status
from provider.draft_metrics import draft_metrics
from provider.draft_news import DraftNews
from provider.generation import Finished
from provider.models.bundled import BUNDLED_MODEL_DIR
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.controller import DepthController
from provider.pipe import DraftStatus, EngineState, LoadSpec, Report
from provider.protocol import MtpStatus
from provider.slot import ModelSlot, SlotLimits
from provider.telling import engine_state
from tests.unit.provider.test_engine import Engines
from tests.unit.provider.test_slot_totals import LOADED, HereRunner

FAILURE = "FloatingPointError: the head has failed"


def test_no_step_is_planned_with_drafts_any_more() -> None:
    engines = Engines(depth=DepthController(2))
    engines.submit("a", max_tokens=60)
    for _ in range(10):
        engines.step()
    rounds = engines.engine.tally.rounds
    assert rounds > 0
    assert engine_state(engines.engine).draft_failure is None
    engines.backend.draft_failure = FAILURE
    engines.run()
    assert engines.engine.tally.rounds == rounds
    told = engine_state(engines.engine)
    assert told.draft_failure == FAILURE
    assert told.drafts is not None
    assert (told.drafts.rounds, told.drafts.controller) == (rounds, "off")


def test_the_slot_says_so_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        runner = HereRunner()
        loaded = msgspec.structs.replace(LOADED, drafts=DraftStatus(active=True, block_size=3))
        spec = LoadSpec(backend="sim", directory="", max_concurrent=8)
        slot = ModelSlot("m", ModelTokenizer(BUNDLED_MODEL_DIR), spec, SlotLimits(8, 8), lambda: runner)
        await slot.start()
        slot.loaded = loaded
        assert mtp_status(slot) == MtpStatus(active=True, reason=None)
        for _ in range(3):
            runner._on_report(Report([], state=EngineState(draft_failure=FAILURE)))
        assert mtp_status(slot) == MtpStatus(active=False, reason="engine_inactive")
        assert f"({FAILURE})" in (slot.loaded.drafts.detail or "")
        [active] = [one for one in draft_metrics([slot]) if one.name == "darkbloom_mtp_active"]
        assert [one.value for one in active.samples] == [0.0]
        await slot.stop()

    with caplog.at_level(logging.INFO, "provider.draft_news"):
        asyncio.run(scene())
    [told] = [one.message for one in caplog.records if FAILURE in one.message]
    assert told.startswith("mtp_inactive model=m reason=engine_inactive detail=")


def test_a_head_that_drafts_nothing_for_a_whole_answer_is_warned_of_once_in_a_row(
    caplog: pytest.LogCaptureFixture,
) -> None:
    news = DraftNews("m")
    with caplog.at_level(logging.WARNING, "provider.draft_news"):
        for accepted, tokens in ((0, 9), (0, 9), (1, 9), (0, 2), (0, 9)):
            news.finished(Finished("a", "length", 3, tokens, accepted=accepted), None)
    assert sum("mtp_drafted_nothing" in record.message for record in caplog.records) == 2
