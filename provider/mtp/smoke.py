"""A short greedy self-check at load: a head that is stored wrongly drafts hardly anything right, and says nothing.

Text that any model continues predictably, and what the model itself makes of it: after the first few, the tokens are
its own.
"""

from collections.abc import Callable, Sequence

from provider.backends.base import Backend, Row
from provider.generation import Sampling

LEAST_ACCEPTANCE = 0.2
"""Of one draft a round. The bundled head is at 0.8 on these texts; raw norms, a wrong order of inputs or weights of
another model, below 0.1 (tests/integration/test_mtp_head.py)."""
ROUNDS = 12
TEXTS = (
    "1, 2, 3, 4,",
    '{"a": 1, "b": 2, "c": 3,',
    "The quick brown fox jumps over the lazy dog. The quick",
    "Monday, Tuesday, Wednesday, Thursday, Friday,",
)


def smoke_prompts(encode: Callable[[str], list[int]]) -> list[list[int]]:
    """As many as the tokenizer makes something of."""
    return [ids for ids in map(encode, TEXTS) if ids]


def smoke_acceptance(backend: Backend, prompts: Sequence[Sequence[int]]) -> float:
    """The share of drafts that are right, over all prompts side by side. Leaves nothing behind."""
    drawn = {f"smoke-{number}": list(prompt) for number, prompt in enumerate(prompts)}
    counts = dict.fromkeys(drawn, 1)
    drafted = accepted = 0
    try:
        for id, tokens in drawn.items():
            backend.open(id, Sampling(temperature=0), tokens)
            first = backend.prefill(id, tokens, 0)
            assert first is not None
            tokens.append(first)
        for _ in range(ROUNDS):
            rows = [Row(id, tokens[-1], counts[id], 1) for id, tokens in drawn.items()]
            for row, run in zip(rows, backend.decode(rows, ahead=True), strict=True):
                drawn[row.id] += run.tokens
                counts[row.id] += len(run.tokens)
                drafted += run.drafted
                accepted += run.accepted
    finally:
        for id in drawn:
            backend.release(id)
    return accepted / drafted if drafted else 0.0
