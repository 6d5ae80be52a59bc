"""The APIs of generation, by path: the body of each becomes a job."""

from collections.abc import Callable, Mapping
from typing import Any

from provider.api import messages_body, responses_body
from provider.api.events import COUNT_TOKENS, MESSAGES, RESPONSES
from provider.api.forms import messages_form, responses_form
from provider.api.job import (
    Job,
    Origin,
    asked,
    chat_job,
    completions_job,
    grammar_of,
    job_of,
    likelihoods_of,
    new_id,
    parser_of,
    reading_of,
)
from provider.api.messages import CountTranslation, MessagesTranslation
from provider.api.messages_body import CountBody, MessagesBody
from provider.api.question import Question
from provider.api.requests import GenerationBody, parse
from provider.api.responses import ResponsesTranslation
from provider.api.responses_body import ResponsesBody
from provider.api.translation import Tally
from provider.api.utterance import Utterance
from provider.api.wire import Failure, context_exceeded
from provider.errors import RequestFailed
from provider.generation import Reading

Body = Mapping[str, Any]
MOST_COUNTED_TOKENS = 2**18
"""A longer prompt, where the context is no longer itself, is not counted to its end: that would take seconds."""


def messages_job(body: Body, origin: Origin) -> Job:
    """Raises RequestFailed for what cannot be served."""
    parsed = parse(MessagesBody, body)
    question = messages_body.question_of(body, parsed)
    prompt = asked(question, origin)
    form = messages_form(body, parsed)
    grammar = grammar_of(form, prompt, parsed, origin)
    reading = reading_of(question, form, prompt)
    utterance = _utterance(parsed, question, reading, origin, "toolu_")
    translation = MessagesTranslation(origin.envelope("msg_"), Tally(len(prompt.token_ids)), utterance)
    return job_of(parsed, origin, [prompt.token_ids], parsed.max_tokens, translation, grammar=grammar, reading=reading)


def count_job(body: Body, origin: Origin) -> Job:
    """Generates nothing. Raises RequestFailed as `messages_job` does, but not for a prompt that the context does not
    hold: who asks may want to know by how much."""
    parsed = parse(CountBody, body)
    try:
        prompt = asked(messages_body.question_of(body, parsed), origin, MOST_COUNTED_TOKENS)
    except RequestFailed as error:
        raise RequestFailed(_not_counted(error.failure, origin.model.n_ctx)) from None
    translation = CountTranslation(len(prompt.token_ids))
    return Job(origin.model.id, [], translation, streaming=False, include_usage=False)


def _not_counted(failure: Failure, n_ctx: int) -> Failure:
    counted = failure.detail.get("n_prompt_tokens")
    if not isinstance(counted, int):
        return failure
    message = f"The prompt has at least {counted} tokens, and more are not counted; the context holds {n_ctx}."
    return context_exceeded(counted, n_ctx, message)


def responses_job(body: Body, origin: Origin) -> Job:
    """Raises RequestFailed for what cannot be served."""
    parsed = parse(ResponsesBody, body)
    question = responses_body.question_of(body, parsed)
    prompt = asked(question, origin)
    form = responses_form(body, parsed)
    grammar = grammar_of(form, prompt, parsed, origin)
    reading = reading_of(question, form, prompt)
    translation = ResponsesTranslation(
        origin.envelope("resp_"),
        Tally(len(prompt.token_ids)),
        _utterance(parsed, question, reading, origin, "call_"),
        responses_body.echo_of(body, parsed),
        lambda prefix: new_id(prefix, origin.random),
    )
    return job_of(
        parsed, origin, [prompt.token_ids], parsed.max_output_tokens, translation, grammar=grammar, reading=reading
    )


def _utterance(
    body: GenerationBody, question: Question, reading: Reading, origin: Origin, call_prefix: str
) -> Utterance:
    parser = parser_of(question, reading, origin, call_prefix)
    likelihoods = None if body.logprobs_asked is None else likelihoods_of(body, origin)
    return Utterance(parser, origin.model.tokenizer.decode, likelihoods)


JOBS: Mapping[str, Callable[[Body, Origin], Job]] = {
    "/v1/chat/completions": chat_job,
    "/v1/completions": completions_job,
    RESPONSES: responses_job,
    MESSAGES: messages_job,
    COUNT_TOKENS: count_job,
}
