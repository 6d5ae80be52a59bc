"""Whether a grammar can be followed at all, found out without a model."""

import re
from functools import lru_cache

from llguidance import LLMatcher, LLTokenizer

from provider.errors import GrammarError
from provider.grammar.limits import parser_limits

MAX_REASON_CHARS = 300
NOTHING_FITS = "nothing satisfies it"
_REWORDED = [
    (re.compile(said), ours)
    for said, ours in (
        (r"NoExtension", NOTHING_FITS),
        (r"Unimplemented keys:", "it uses what is not supported:"),
        (r"oneOf constraints.*", "oneOf is supported only where its alternatives exclude one another"),
        # What it goes on to tell are the bounds as they are held to, which need not be those that were asked for.
        (r"Unsatisfiable schema: ((exclusiveM|m)(in|ax)imum |integer interval ).*", "no number is within its bounds"),
        (r"Unsatisfiable schema: Regex is empty.*", f"{NOTHING_FITS}: no text is all that is asked of it"),
        (r"Unsatisfiable schema: anyOf is empty", NOTHING_FITS),
        (r"Unsatisfiable schema:", f"{NOTHING_FITS}:"),
        (r"regex parse error: .* error: (.*)", r"its pattern cannot be read: \1"),
        (r"Pointer '(.*)' does not exist", r"the reference '#\1' leads nowhere"),
        (
            r"fuel exhausted .*",
            "it takes more work to compile than it may: shorter texts and fewer repetitions take less",
        ),
        (r"([0-9]+\([0-9]+\):|ValueError:).*", "it cannot be written down as a grammar"),
    )
]
"""What llguidance says, in words that need no knowledge of it."""


def check(grammar: str) -> None:
    """Raises GrammarError for what no model could follow; needs none. What is a stranger's is tried in a sandbox."""
    checked(byte_matcher(grammar))


def byte_matcher(grammar: str) -> LLMatcher:
    """Its tokens are bytes."""
    return LLMatcher(_bytes_tokenizer(), grammar, log_level=0, limits=parser_limits())


def checked(matcher: LLMatcher) -> LLMatcher:
    matcher.compute_logit_bias()  # what comes first: only then is it known that nothing can
    if matcher.is_error():
        raise GrammarError(_reason(matcher))
    if matcher.is_stopped() and not matcher.is_accepting():
        raise GrammarError(NOTHING_FITS)
    return matcher


def _reason(matcher: LLMatcher) -> str:
    """Behind it stands the grammar."""
    said = " ".join(matcher.get_error().partition("\n<")[0].partition("\n1 |")[0].split())
    for theirs, ours in _REWORDED:
        if theirs.match(said):
            said = theirs.sub(ours, said, count=1)
            break
    return said if len(said) <= MAX_REASON_CHARS else f"{said[:MAX_REASON_CHARS]}..."


@lru_cache(1)
def _bytes_tokenizer() -> LLTokenizer:
    """One token for each byte, and an end."""
    return LLTokenizer(_Bytes(), n_vocab=257, eos_token=256, slices=[])  # type: ignore[arg-type]  # by shape


class _Bytes:
    is_tokenizer_wrapper = True
    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)
