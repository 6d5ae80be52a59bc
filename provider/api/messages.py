"""`/v1/messages`: events to Anthropic's messages."""

from collections.abc import Mapping
from typing import Any, assert_never

from pydantic_core import from_json

from provider.api.blocks import Block, BlockEvent, CallBlock, Closed, Grown, Opened, TextBlock, ThoughtBlock
from provider.api.translation import Chunk, Envelope, Tally
from provider.api.utterance import Utterance
from provider.generation import Delta, Finished, FinishReason

PING = {"type": "ping"}


class MessagesTranslation:
    """One answer; owner: the answer it belongs to."""

    def __init__(self, envelope: Envelope, tally: Tally, utterance: Utterance) -> None:
        self._envelope = envelope
        self._tally = tally
        self._utterance = utterance
        self._begun = False
        self._stop: Chunk = {"stop_reason": None, "stop_sequence": None}

    @property
    def tally(self) -> Tally:
        return self._tally

    def delta(self, index: int, event: Delta) -> list[Chunk]:
        return self._begin() + [_event(one) for one in self._utterance.hear(event)]

    def finished(self, index: int, event: Finished) -> list[Chunk]:
        self._tally.add(event)
        self._tally.reasoning_tokens = self._utterance.thought_tokens
        events = self._begin() + [_event(one) for one in self._utterance.finish(event)]
        self._stop = self._stopped(event.reason, event.stop)
        last = {"type": "message_delta", "delta": self._stop, "usage": self._usage(), "preempt": self._tally.preempt()}
        return [*events, last, {"type": "message_stop"}]

    def empty_chunk(self) -> Chunk:
        return dict(PING)

    def usage_chunk(self) -> Chunk:
        """Never asked for: the usage is part of every stream."""
        return dict(PING)

    def whole(self) -> Chunk:
        content = [_whole(block) for block in self._utterance.blocks]
        return {**self._message(content), "preempt": self._tally.preempt()}

    def _begin(self) -> list[Chunk]:
        if self._begun:
            return []
        self._begun = True
        return [{"type": "message_start", "message": self._message([])}]

    def _message(self, content: list[Chunk]) -> Chunk:
        return {
            "id": self._envelope.id,
            "type": "message",
            "role": "assistant",
            "model": self._envelope.model,
            "content": content,
            **self._stop,
            "usage": self._usage(),
        }

    def _usage(self) -> Chunk:
        return {
            "input_tokens": self._tally.prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": self._tally.completion_tokens,
            "output_tokens_details": {"thinking_tokens": self._utterance.thought_tokens},
        }

    def _stopped(self, reason: FinishReason, stop: str | None) -> Chunk:
        match reason:
            case "length":
                return {"stop_reason": "max_tokens", "stop_sequence": None}
            case "stop":
                return self._stopped_in_order(stop)
            case _:
                assert_never(reason)

    def _stopped_in_order(self, stop: str | None) -> Chunk:
        if any(isinstance(block, CallBlock) for block in self._utterance.blocks):
            return {"stop_reason": "tool_use", "stop_sequence": None}
        return {"stop_reason": "end_turn" if stop is None else "stop_sequence", "stop_sequence": stop}


class CountTranslation:
    """Of a request whose tokens are counted only: nothing is generated, and nothing is to be billed."""

    def __init__(self, input_tokens: int) -> None:
        self._input_tokens = input_tokens
        self._tally = Tally(0)

    @property
    def tally(self) -> Tally:
        return self._tally

    def delta(self, index: int, event: Delta) -> list[Chunk]:
        return []

    def finished(self, index: int, event: Finished) -> list[Chunk]:
        return []

    def empty_chunk(self) -> Chunk:
        return dict(PING)

    def usage_chunk(self) -> Chunk:
        return dict(PING)

    def whole(self) -> Chunk:
        return {"input_tokens": self._input_tokens}


def _event(event: BlockEvent) -> Chunk:
    match event:
        case Opened(block):
            return {"type": "content_block_start", "index": block.index, "content_block": _empty(block)}
        case Grown(block, text):
            return {"type": "content_block_delta", "index": block.index, "delta": _grown(block, text)}
        case Closed(block):
            return {"type": "content_block_stop", "index": block.index}
        case _:
            assert_never(event)


def _grown(block: Block, text: str) -> Chunk:
    match block:
        case ThoughtBlock():
            return {"type": "thinking_delta", "thinking": text}
        case TextBlock():
            return {"type": "text_delta", "text": text}
        case CallBlock():
            return {"type": "input_json_delta", "partial_json": text}
        case _:
            assert_never(block)


def _empty(block: Block) -> Chunk:
    return _block(block, "", {})


def _whole(block: Block) -> Chunk:
    return _block(block, block.text, _arguments(block.text) if isinstance(block, CallBlock) else {})


def _arguments(text: str) -> dict[str, Any]:
    """Of a call that was cut, what is whole: as Anthropic's SDK reads it from a stream."""
    return dict(from_json(text, allow_partial=True))


def _block(block: Block, text: str, arguments: Mapping[str, Any]) -> Chunk:
    """A thought is not signed: there is nothing in it that a client could not have read."""
    match block:
        case ThoughtBlock():
            return {"type": "thinking", "thinking": text, "signature": ""}
        case TextBlock():
            return {"type": "text", "text": text}
        case CallBlock():
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": arguments}
        case _:
            assert_never(block)
