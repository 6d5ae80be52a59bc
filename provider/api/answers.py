"""The shapes of what the API answers, for the OpenAPI document of both servers. Tests hold real answers to them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Count = int


class Answer(BaseModel):
    """Members may be added; those named here are always there, unless they have a default."""

    model_config = ConfigDict(extra="allow")


class ErrorDetail(Answer):
    message: str
    type: str
    code: str
    param: str | None


class Error(Answer):
    """OpenAI's form."""

    error: ErrorDetail


class AnthropicError(Answer):
    type: Literal["error"]
    error: ErrorDetail


class Preempt(Answer):
    """How often the answer gave its room up."""

    parks: Count
    recomputes: Count


class PromptDetails(Answer):
    cached_tokens: Count


class CompletionDetails(Answer):
    reasoning_tokens: Count
    accepted_prediction_tokens: Count
    rejected_prediction_tokens: Count


class Usage(Answer):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class FunctionCall(Answer):
    name: str
    arguments: str
    """JSON; only of an answer cut by its length may it be unfinished."""


class ToolCall(Answer):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(Answer):
    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    preempt: Preempt


class TextChoice(Answer):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class TextCompletion(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    preempt: Preempt


class ResponseItem(Answer):
    """`message`, `reasoning` or `function_call`, as OpenAI shapes them."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: Literal["in_progress", "completed", "incomplete"]


class InputDetails(Answer):
    cached_tokens: Count


class OutputDetails(Answer):
    reasoning_tokens: Count


class ResponseUsage(Answer):
    input_tokens: Count
    input_tokens_details: InputDetails
    output_tokens: Count
    output_tokens_details: OutputDetails
    total_tokens: Count


class IncompleteDetails(Answer):
    reason: Literal["max_output_tokens"]


class ResponseAnswer(Answer):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ResponseItem]
    parallel_tool_calls: bool
    temperature: float
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float
    usage: ResponseUsage
    preempt: Preempt


class Block(Answer):
    """Of type `text`, `thinking` or `tool_use`, as Anthropic shapes them."""

    type: Literal["text", "thinking", "tool_use"]


class MessageUsage(Answer):
    input_tokens: Count
    output_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count


class MessageAnswer(Answer):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Block]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    preempt: Preempt


class TokenCount(Answer):
    input_tokens: Count


class Model(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Answer):
    object: Literal["list"]
    data: list[Model]


class AnthropicModel(Answer):
    id: str
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]


class AnthropicModelList(Answer):
    data: list[AnthropicModel]
    has_more: Literal[False]
    first_id: str | None
    last_id: str | None


class Health(Answer):
    status: Literal["ok", "starting", "stalled", "draining"]
