"""What one model's slot counts and measures while it lives, through every worker it has."""

from dataclasses import dataclass

from provider.pipe import EngineState, Report

RATE_SMOOTHING = 0.2


@dataclass(slots=True)
class Totals:
    requests: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    parks: int = 0
    recomputes: int = 0
    restarts: int = 0
    failures: int = 0

    def note(self, former: EngineState, state: EngineState) -> None:
        """Two reports of one worker, the one after the other."""
        self.parks += state.parks - former.parks
        self.recomputes += state.recomputes - former.recomputes


@dataclass(slots=True)
class TokenRates:
    """Tokens per second, smoothed over steps; None until measured."""

    decode_tps: float | None = None
    prefill_tps: float | None = None

    def note(self, report: Report) -> None:
        if report.step_s <= 0:
            return
        if report.decoded and not report.prefilled:
            self.decode_tps = _smooth(self.decode_tps, report.decoded / report.step_s)
        elif report.prefilled and not report.decoded:
            self.prefill_tps = _smooth(self.prefill_tps, report.prefilled / report.step_s)


def _smooth(old: float | None, new: float) -> float:
    return new if old is None else old + RATE_SMOOTHING * (new - old)
