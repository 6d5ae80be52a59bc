"""What `doctor --exact` says: a digest of each condition, and whether they are all one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provider.exact.choice import Source
from provider.exact.policy import Condition
from provider.findings import Finding, Status

EXACT_CHECK = "exact concurrency"
SHOWN_CHECK = "exactness is shown"
ROUNDING_CHECK = "exactness without the mode"


@dataclass(frozen=True, slots=True)
class Tried:
    """One and the same chat under a condition. `digest`: of its tokens and logits; `shown`: what the condition is named
    for did happen."""

    condition: Condition
    digest: str
    shown: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactFacts:
    """What came of a check. `lane_rows` None, with nothing tried: it cannot be exact, and `reason` says why.

    `without`: the same, under the adversary, with the mode off; empty where there was no adversary.
    """

    model: str
    device: str
    adversary: bool
    lane_rows: int | None
    lane_rows_from: Source | None = None
    reason: str | None = None
    tried: Sequence[Tried] = ()
    without: Sequence[Tried] = ()

    @property
    def differing(self) -> list[Condition]:
        """From the first, which is the chat alone."""
        return [one.condition for one in self.tried if one.digest != self.tried[0].digest]


def judge_exact(facts: ExactFacts) -> list[Finding]:
    if facts.lane_rows is None:
        said = f"{facts.model} cannot be exact on {facts.device}: {facts.reason}."
        return [Finding(EXACT_CHECK, Status.FAIL, said, "Serve it with exact off, or another model.")]
    return [_verdict(facts), *_unshown(facts), *([_rounding(facts)] if facts.adversary else [])]


def _verdict(facts: ExactFacts) -> Finding:
    under = ", which was made to round by the size of every launch" if facts.adversary else ""
    where = f"{facts.model} on {facts.device}{under}, in lanes of {facts.lane_rows} rows{_chosen(facts)}"
    if not facts.differing:
        said = f"{where}: the same tokens and logits in {len(facts.tried)} conditions."
        return Finding(EXACT_CHECK, Status.PASS, said)
    names = ", ".join(facts.differing)
    only_drafts = facts.differing == [Condition.DRAFTED]
    fix = f"Serve it with {'mtp_mode off' if only_drafts else 'exact off'}, and report this with the digests."
    return Finding(EXACT_CHECK, Status.FAIL, f"{where}: a chat differs from itself alone when it is {names}.", fix)


def _chosen(facts: ExactFacts) -> str:
    match facts.lane_rows_from:
        case "kept":
            return " (as a load has chosen, kept in the data directory)"
        case "measured":
            return " (measured now: no load has chosen yet)"
        case None:
            return ""


def _unshown(facts: ExactFacts) -> list[Finding]:
    names = ", ".join(one.condition for one in facts.tried if not one.shown)
    if not names:
        return []
    said = f"The chat was {names} in name only, so that its digest says nothing of that."
    return [Finding(SHOWN_CHECK, Status.WARN, said, "Try it with another model of the same kind.")]


def _rounding(facts: ExactFacts) -> Finding:
    """An adversary that changes nothing would show nothing."""
    digests = {one.digest for one in facts.without}
    if len(digests) > 1:
        said = f"With the mode off, that rounding gives {len(digests)} results in {len(facts.without)} conditions."
        return Finding(ROUNDING_CHECK, Status.PASS, said)
    said = "With the mode off, that rounding changes nothing: the check has shown less than it should."
    return Finding(ROUNDING_CHECK, Status.FAIL, said, "Report this with the version of mlx.")


def exact_object(facts: ExactFacts) -> dict[str, Any]:
    """As `doctor --exact --json` answers it."""
    failed = any(one.status is Status.FAIL for one in judge_exact(facts))
    return {
        "model": facts.model,
        "device": facts.device,
        "adversary": facts.adversary,
        "lane_rows": facts.lane_rows,
        "lane_rows_from": facts.lane_rows_from,
        "reason": facts.reason,
        "conditions": _digests(facts.tried),
        "without": _digests(facts.without),
        "verdict": "fail" if failed else "pass",
    }


def _digests(tried: Sequence[Tried]) -> list[dict[str, str]]:
    return [{"name": one.condition.value, "digest": one.digest} for one in tried]
