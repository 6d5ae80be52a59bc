"""What a generation is, from the API down to the engine: the request, and the events it answers with.

These structs cross the pipe between the parent and a worker (msgpack), so they hold plain values only.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from provider.api.wire import Failure

FinishReason = Literal["stop", "length"]


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep everything.

    The token at output position p is drawn with the key fold(seed, index, p), so a seeded request gives the
    same tokens whoever shares its batch. `index` numbers the choices of one request.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    index: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    grammar: str | None = None
    """What the text has to be, as provider.grammar writes it; None: anything."""
    logprobs: int | None = None
    """How many of the likeliest tokens are told beside each that is drawn; None: not even its own probability."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Of a drawn token: the natural logarithm of what the model itself gave it, before temperature, penalties, biases
    and grammar; and the likeliest tokens there, best first."""

    logprob: float
    top: list[tuple[int, float]]


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How the text of a chat's answer is taken apart into thoughts, content and calls: as OutputParser is told.
    `calls`: there are tools to be called."""

    thinking: bool
    calls: bool
    uncalled: bool = False
    value: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate. `max_tokens` None means: as far as the context reaches."""

    request_id: str
    prompt: list[int]
    max_tokens: int | None
    sampling: Sampling
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    stop: list[str] = msgspec.field(default_factory=list)
    reading: Reading | None = None
    """Of a chat: stop strings are those of the content alone. None: of all the text."""
    priority: int = 0
    skip_special_tokens: bool = True


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """New tokens. `text` is what became certain with them: it may be empty (half a character, or the
    beginning of a stop string), and never holds half a character or anything from a stop string on."""

    request_id: str
    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprob] | None = None
    """One for each token, where they were asked for."""


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    request_id: str
    kind: Literal["preempted", "preempt-keepalive", "resumed", "recomputed"]


class Entered(msgspec.Struct, frozen=True, tag="entered"):
    """The sequence has been given room and is being worked on. Stays inside the provider."""

    request_id: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The normal end. `completion_tokens` counts every sampled token, a stop token included. `accepted` and `rejected`
    count the tokens that were drafted: those that are part of the answer, and those that are not. `stop`: the stop
    string that ended it, if one did."""

    request_id: str
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    parks: int = 0
    recomputes: int = 0
    accepted: int = 0
    rejected: int = 0
    stop: str | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The typed end of one request; `generate` raises it as RequestFailed."""

    request_id: str
    failure: Failure


Event = Delta | Notice | Finished | Failed | Entered


class TextTokenizer(Protocol):
    """The text side of a model. Implemented by provider.models.tokenizer."""

    eos_token_ids: frozenset[int]
    special_tokens: frozenset[str]
    """The strings of the tokens marked special (`<|im_end|>`): those that `decode` skips. Ordinary added
    tokens, such as `<think>`, are not among them."""
    special_token_ids: frozenset[int]
    chat_template: str | None
    template_tokens: Mapping[str, str]
    """Variables a chat template may use, such as `bos_token`."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        """No token is added. With `special`, special tokens written in `text` are recognised; without it
        they are ordinary text (`tokenizers`: `encode_special_tokens`)."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds to a text, which need not be whole characters."""
        ...


class ServedModel(Protocol):
    """One model as the API sees it."""

    @property
    def id(self) -> str: ...
    @property
    def n_ctx(self) -> int:
        """Token positions one sequence may have, prompt and generated together."""
        ...

    @property
    def vocab_size(self) -> int: ...
    @property
    def tokenizer(self) -> TextTokenizer: ...


class Serving(Protocol):
    """What the API needs of a provider. Implemented by provider.residency."""

    def models(self) -> Sequence[ServedModel]: ...

    def model(self, model_id: str) -> ServedModel:
        """Raises RequestFailed(404) for a model that is not served here."""
        ...

    def generate(self, model_id: str, request: GenerationRequest) -> AsyncGenerator[Delta | Notice | Finished]:
        """Events in order, `Finished` last. Raises RequestFailed, before the first event for a refusal.

        Closing the generator early (aclose, or the task's cancellation) cancels the sequence within one
        engine step, in whatever state it is.
        """
        ...

    def hold(self, model_id: str, request_id: str, held: bool) -> None:
        """While `held`, the sequence is parked, for its reader takes no more; what it has said stays said. Ignored for
        one that is not open."""
        ...
