"""Text to token ids, without encoding whole what can never fit."""

from provider.api.wire import context_exceeded
from provider.errors import RequestFailed
from provider.generation import TextTokenizer

PIECE_CHARS = 2**16
WHOLE_CHARS = 4 * PIECE_CHARS
"""Text up to this long is encoded at once. An encoding holds about 200 bytes per token beside the ids, so that one
body of 16 MiB would cost gigabytes."""
SEAM_TOKENS = 16
"""What a cut between two pieces may add to their count."""


def encode_within(tokenizer: TextTokenizer, text: str, n_ctx: int, special: bool = True) -> list[int]:
    """Raises RequestFailed (the context error, with the tokens counted so far) for long text beyond `n_ctx`.

    Half a surrogate pair, which only an escape within the arguments of a call can bring this far, has no bytes: it is
    read as U+FFFD.
    """
    text = text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if len(text) > WHOLE_CHARS:
        _refuse_beyond(tokenizer, text, n_ctx, special)
    return tokenizer.encode(text, special)


def _refuse_beyond(tokenizer: TextTokenizer, text: str, n_ctx: int, special: bool) -> None:
    counted = 0
    for start in range(0, len(text), PIECE_CHARS):
        counted += len(tokenizer.encode(text[start : start + PIECE_CHARS], special)) - SEAM_TOKENS
        if counted >= n_ctx:
            message = (
                f"The prompt has more than {counted} tokens and the context holds {n_ctx}: "
                "shorten the prompt, or serve the model with a larger --context-length or --kv-pool-tokens."
            )
            raise RequestFailed(context_exceeded(counted, n_ctx, message))
