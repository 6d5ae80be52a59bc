"""A request's body, once understood: the sequences to generate and the translation of what they say.

Decides everything that can be refused before a token is computed; touches nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from provider.api.answer_form import Form, grammar_of_answer
from provider.api.chat import ChatTranslation
from provider.api.completions import CompletionsTranslation
from provider.api.conversation import turns_of
from provider.api.encoding import encode_within
from provider.api.forms import chat_form
from provider.api.likelihoods import CompletionLikelihoods, Likelihoods
from provider.api.output import OutputParser
from provider.api.prompt import ChatPrompt, chat_prompt
from provider.api.question import Question
from provider.api.requests import (
    DEFAULT_COMPLETION_TOKENS,
    MAX_CHOICES,
    ChatBody,
    CompletionBody,
    GenerationBody,
    parse,
)
from provider.api.translation import Envelope, Tally, Translation
from provider.api.wire import context_exceeded, invalid_request
from provider.errors import RequestFailed
from provider.generation import GenerationRequest, Reading, Sampling, ServedModel
from provider.grammar.checking import check

_ID_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SEED_BITS = 63


@dataclass(frozen=True, slots=True)
class Job:
    """`requests` are numbered as the translation's sequences."""

    model_id: str
    requests: Sequence[GenerationRequest]
    translation: Translation
    streaming: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """What a job needs beside its body. `request_id` is unique among the generations alive; `check_grammar`,
    which raises GrammarError, is a sandbox's where strangers ask."""

    request_id: str
    model: ServedModel
    clock: Callable[[], float]
    random: Random
    check_grammar: Callable[[str], None] = check

    def envelope(self, prefix: str) -> Envelope:
        return Envelope(new_id(prefix, self.random), int(self.clock()), self.model.id)


def chat_job(body: Mapping[str, Any], origin: Origin) -> Job:
    """Raises RequestFailed for what cannot be served."""
    chat = parse(ChatBody, body)
    # The template gets messages and tools as they were sent: the order of their keys reaches the model.
    uncalled = chat.tool_choice == "none"
    tools = [] if uncalled else body.get("tools") or []
    question = Question(turns_of(body["messages"]), "messages", tools, chat.template_kwargs, uncalled)
    prompt = asked(question, origin)
    form = chat_form(body, chat)
    grammar = grammar_of(form, prompt, chat, origin)
    reading = reading_of(question, form, prompt)
    translation = ChatTranslation(
        origin.envelope("chatcmpl-"),
        Tally(len(prompt.token_ids)),
        choices=chat.choices,
        new_parser=lambda: parser_of(question, reading, origin, "call_"),
        decode=origin.model.tokenizer.decode,
        likelihoods=None if chat.logprobs_asked is None else lambda: likelihoods_of(chat, origin),
    )
    return job_of(chat, origin, [prompt.token_ids], chat.token_limit, translation, grammar=grammar, reading=reading)


def completions_job(body: Mapping[str, Any], origin: Origin) -> Job:
    """Every prompt is checked before any is generated. Raises RequestFailed."""
    completion = parse(CompletionBody, body)
    prompts = completion.prompts
    choices = len(prompts) * completion.choices
    if choices > MAX_CHOICES:
        message = f"prompt: {choices} sequences asked for, {MAX_CHOICES} at most in one request."
        raise RequestFailed(invalid_request(message, "prompt"))
    several = len(prompts) > 1
    encoded = [
        _encoded(prompt, f"prompt[{number}]" if several else "prompt", origin.model)
        for number, prompt in enumerate(prompts)
    ]
    tally = Tally(sum(map(len, encoded)))

    def likelihoods() -> CompletionLikelihoods:
        skip_special = completion.skip_special_tokens is not False
        return CompletionLikelihoods(origin.model.tokenizer, skip_special, bool(completion.stops))

    told = None if completion.logprobs_asked is None else likelihoods
    translation = CompletionsTranslation(origin.envelope("cmpl-"), tally, choices, told)
    return job_of(completion, origin, encoded, completion.max_tokens, translation, DEFAULT_COMPLETION_TOKENS)


def new_id(prefix: str, random: Random) -> str:
    """As OpenAI's ids: 24 characters nobody guesses."""
    return prefix + "".join(random.choices(_ID_ALPHABET, k=24))


def asked(question: Question, origin: Origin, longest: int = 0) -> ChatPrompt:
    """Raises RequestFailed for a question that cannot be put to the model. `longest`: how many tokens it may have,
    whatever the context holds."""
    model = origin.model
    n_ctx = max(longest, model.n_ctx)
    prompt = chat_prompt(
        model.tokenizer,
        question.turns,
        question.tools,
        question.template_kwargs,
        origin.clock,
        origin.random,
        n_ctx,
    )
    _check_prompt(prompt.token_ids, question.param, n_ctx, model.vocab_size)
    return prompt


def reading_of(question: Question, form: Form, prompt: ChatPrompt) -> Reading:
    """Of every answer to it."""
    value = form.schema is not None
    return Reading(
        thinking=prompt.thinking,
        calls=bool(question.tools),
        uncalled=question.uncalled and not value,
        value=value,
    )


def parser_of(question: Question, reading: Reading, origin: Origin, call_prefix: str) -> OutputParser:
    """Of one answer to it."""
    return OutputParser(
        reading.thinking,
        question.schemas,
        lambda: new_id(call_prefix, origin.random),
        uncalled=reading.uncalled,
        value=reading.value,
    )


def likelihoods_of(body: GenerationBody, origin: Origin) -> Likelihoods:
    return Likelihoods(origin.model.tokenizer, body.skip_special_tokens is not False, bool(body.stops))


def grammar_of(form: Form, prompt: ChatPrompt, body: GenerationBody, origin: Origin) -> str | None:
    """Raises RequestFailed for a form that no answer can be held to."""
    grammar = grammar_of_answer(form, prompt, origin.model.tokenizer.chat_template, origin.check_grammar)
    if grammar is not None and body.ignore_eos:
        message = "ignore_eos: an answer whose form is asked for ends with its form."
        raise RequestFailed(invalid_request(message, "ignore_eos"))
    return grammar


def job_of(
    body: GenerationBody,
    origin: Origin,
    prompts: Sequence[list[int]],
    limit: int | None,
    translation: Translation,
    default_limit: int | None = None,
    grammar: str | None = None,
    reading: Reading | None = None,
) -> Job:
    """One sequence for each choice of each prompt, at most `limit` tokens long. `reading`: where stop strings are those
    of the content alone."""
    tokenizer = origin.model.tokenizer
    sampling = _sampling(body, origin, grammar)
    stop_token_ids = [] if body.ignore_eos else sorted(tokenizer.eos_token_ids)
    skip_special_tokens = body.skip_special_tokens is not False
    requests = [
        GenerationRequest(
            request_id=f"{origin.request_id}-{number}",
            prompt=prompt,
            max_tokens=_token_limit(limit, default_limit, prompt, origin.model),
            sampling=sampling(index),
            stop_token_ids=stop_token_ids,
            stop=body.stops,
            reading=reading,
            priority=body.priority or 0,
            skip_special_tokens=skip_special_tokens,
        )
        for number, (prompt, index) in enumerate((prompt, index) for prompt in prompts for index in range(body.choices))
    ]
    return Job(origin.model.id, requests, translation, bool(body.stream), body.include_usage)


def _token_limit(asked: int | None, default: int | None, prompt: Sequence[int], model: ServedModel) -> int:
    """What a client asks for stands: a chat that outgrows the context ends with the context error, not with a
    `length` that hides it. A default reaches no further than the context."""
    if asked is not None:
        return asked
    room = model.n_ctx - len(prompt)
    return room if default is None else min(default, room)


def _encoded(prompt: str | list[int], param: str, model: ServedModel) -> list[int]:
    token_ids = encode_within(model.tokenizer, prompt, model.n_ctx) if isinstance(prompt, str) else prompt
    _check_prompt(token_ids, param, model.n_ctx, model.vocab_size)
    return token_ids


def _check_prompt(token_ids: Sequence[int], param: str, n_ctx: int, vocab_size: int) -> None:
    if not token_ids:
        raise RequestFailed(invalid_request(f"{param}: the prompt is empty.", param))
    if len(token_ids) >= n_ctx:
        raise RequestFailed(context_exceeded(len(token_ids), n_ctx))
    if min(token_ids) < 0 or max(token_ids) >= vocab_size:
        message = f"{param}: token ids must be from 0 to {vocab_size - 1}."
        raise RequestFailed(invalid_request(message, param))


def _sampling(body: GenerationBody, origin: Origin, grammar: str | None) -> Callable[[int], Sampling]:
    """The sampling of the choice with the given index."""
    seed = origin.random.getrandbits(_SEED_BITS) if body.seed is None else body.seed % 2**_SEED_BITS
    logit_bias = _logit_bias(body.logit_bias or {}, origin.model.vocab_size)

    def of(index: int) -> Sampling:
        return Sampling(
            temperature=_given(body.temperature, 1.0),
            top_p=_given(body.top_p, 1.0),
            top_k=max(body.top_k or 0, 0),
            min_p=_given(body.min_p, 0.0),
            seed=seed,
            index=index,
            repetition_penalty=_given(body.repetition_penalty, 1.0),
            presence_penalty=_given(body.presence_penalty, 0.0),
            frequency_penalty=_given(body.frequency_penalty, 0.0),
            logit_bias=logit_bias,
            grammar=grammar,
            logprobs=body.logprobs_asked,
        )

    return of


def _given(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _logit_bias(bias: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    """OpenAI's keys are token ids written as strings."""
    by_id = {int(key): float(value) for key, value in bias.items() if key.isascii() and key.isdigit()}
    if len(by_id) != len(bias) or any(token_id >= vocab_size for token_id in by_id):
        message = f"logit_bias: every key must be one token id from 0 to {vocab_size - 1}, each once."
        raise RequestFailed(invalid_request(message, "logit_bias"))
    return by_id
