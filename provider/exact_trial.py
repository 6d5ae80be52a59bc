"""`doctor --exact`: loads a model in this process and has one and the same chat, greedy and seeded, computed in every
condition. The longer sibling of the check that each load makes."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from provider.backends.mlx.backend import MlxBackend
from provider.backends.mlx.lane_cost import lanes_of
from provider.backends.mlx.numerics_adversary import NumericsAdversary
from provider.catalog import draft_spec
from provider.config import ProviderConfig
from provider.errors import ModelError
from provider.exact.policy import Condition, Found, On, Unavailable, decide
from provider.exact_check import CheckFailed, Question, Reading, check
from provider.exact_findings import ExactFacts, Tried
from provider.exact_lanes import choose_rows
from provider.generation import Sampling
from provider.heads import attach_head, choose_head
from provider.models.checkpoint import read_checkpoint
from provider.models.resolve import find_model
from provider.models.tokenizer import ModelTokenizer
from provider.mtp.smoke import smoke_prompts

TOKENS = 16
COUNTED = 20
"""A text that any model goes on with as it must, so that drafts are right; longer than some sub-chunks of a prompt."""
SAMPLINGS = (Sampling(temperature=0), Sampling(temperature=2.0, seed=7))
"""The second so hot that its tokens are not those of the first."""

Say = Callable[[str], None]


def try_exact(model: str, config: ProviderConfig, adversary: bool, say: Say, tokens: int = TOKENS) -> ExactFacts:
    """As a provider of this configuration would load it: with the rows that are kept for it, or with some that are
    measured and not kept. `say` hears of each condition as it is done; `tokens`: of the chat's answer. Raises
    ModelError for a model that is not here or not served."""
    found = find_model(model)
    backend = load(found.directory, config)
    try:
        questions = _questions(ModelTokenizer(found.directory), tokens)
        return _tried(backend, found.id, questions, adversary, say, config.lanes_directory)
    finally:
        backend.close()


def load(directory: Path, config: ProviderConfig) -> MlxBackend:
    """As a worker of this configuration loads it, its head with it. Raises ModelError."""
    tokenizer, drafts = ModelTokenizer(directory), draft_spec(config, read_checkpoint(directory).mtp)
    backend = MlxBackend(directory)
    attach_head(backend, choose_head(directory, drafts), tokenizer.encode)
    return backend


def _questions(tokenizer: ModelTokenizer, tokens: int) -> list[Question]:
    chat = tokenizer.encode(", ".join(str(number + 1) for number in range(COUNTED)) + ",")
    others = smoke_prompts(tokenizer.encode)[1:]
    if not chat or len(others) < 3:
        raise ModelError("the tokenizer makes nothing of plain text, so that there is nothing to ask.")
    return [Question(chat, others, tokens, sampling) for sampling in SAMPLINGS]


def _tried(
    backend: MlxBackend, id: str, questions: Sequence[Question], adversary: bool, say: Say, lanes_in: Path
) -> ExactFacts:
    device, experts = backend.facts.device, backend.grid.experts_per_token
    chosen = choose_rows(backend, id, lanes_in, keep=False)
    rows, source = (None, None) if chosen is None else (chosen.count, chosen.source)
    match decide("on", Found(lanes=True, experts_per_token=experts, lane_rows=rows)):
        case On(rows):
            backend.decode_in_lanes(lanes_of(backend, rows))
        case Unavailable(_, reason, _):
            return ExactFacts(model=id, device=device, adversary=adversary, lane_rows=None, reason=reason)
    hostile = NumericsAdversary() if adversary else None
    try:
        tried = [one for condition in Condition for one in _try(backend, questions, condition, hostile, say)]
        backend.decode_in_lanes(None)
        without = [] if hostile is None else _without(backend, questions, hostile, say)
    except CheckFailed as failed:
        reason = f"the check came to no end: {failed}"
        return ExactFacts(model=id, device=device, adversary=adversary, lane_rows=None, reason=reason)
    return ExactFacts(
        model=id,
        device=device,
        adversary=adversary,
        lane_rows=rows,
        lane_rows_from=source,
        tried=tried,
        without=without,
    )


def _without(backend: MlxBackend, questions: Sequence[Question], hostile: NumericsAdversary, say: Say) -> list[Tried]:
    def say_so(text: str) -> None:
        say(f"mode off: {text}")

    return [one for condition in Condition for one in _try(backend, questions, condition, hostile, say_so)]


def _try(
    backend: MlxBackend,
    questions: Sequence[Question],
    condition: Condition,
    hostile: NumericsAdversary | None,
    say: Say,
) -> list[Tried]:
    """One, or none where the model has no part in the condition."""
    readings = [one for question in questions for one in check(backend, question, (condition,), hostile)]
    if not readings:
        return []
    digest = sha256("".join(one.digest for one in readings).encode()).hexdigest()
    say(f"{condition}: {digest}")
    return [Tried(condition, digest, any(map(_happened, readings)))]


def _happened(reading: Reading) -> bool:
    match reading.condition:
        case Condition.ALONE:
            return reading.widest == 1
        case Condition.BESIDE | Condition.STAGGERED:
            return reading.widest == 4
        case Condition.PARKED:
            return reading.parks > 0 and not reading.recomputes
        case Condition.RECOMPUTED:
            return reading.recomputes > 0
        case Condition.DRAFTED:
            return reading.accepted > 0
