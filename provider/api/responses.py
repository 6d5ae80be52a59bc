"""`/v1/responses`: events to OpenAI's responses."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, assert_never

from provider.api.blocks import Block, BlockEvent, CallBlock, Closed, Grown, Opened, TextBlock, ThoughtBlock
from provider.api.translation import Chunk, Envelope, Tally
from provider.api.utterance import Utterance
from provider.generation import Delta, Finished

Status = Literal["in_progress", "completed", "incomplete"]


class ResponsesTranslation:
    """One answer; owner: the answer it belongs to. `echo` is what a response repeats of its request; `new_id` makes an
    id that begins with the prefix it is given."""

    def __init__(
        self,
        envelope: Envelope,
        tally: Tally,
        utterance: Utterance,
        echo: Mapping[str, Any],
        new_id: Callable[[str], str],
    ) -> None:
        self._envelope = envelope
        self._tally = tally
        self._utterance = utterance
        self._echo = echo
        self._new_id = new_id
        self._item_ids: list[str] = []
        self._statuses: list[Status] = []
        self._status: Status = "in_progress"
        self._numbered = 0

    @property
    def tally(self) -> Tally:
        return self._tally

    def delta(self, index: int, event: Delta) -> list[Chunk]:
        return self._begin() + self._told(self._utterance.hear(event))

    def finished(self, index: int, event: Finished) -> list[Chunk]:
        self._tally.add(event)
        self._tally.reasoning_tokens = self._utterance.thought_tokens
        begun = self._begin()
        self._status = "completed" if event.reason == "stop" else "incomplete"
        events = self._told(self._utterance.finish(event))
        return [*begun, *events, self._event(f"response.{self._status}", response=self._response())]

    def empty_chunk(self) -> Chunk:
        """Repeats the number before it, so that the numbers of what is said do not depend on what is not."""
        return {"type": "keepalive", "sequence_number": max(self._numbered - 1, 0)}

    def usage_chunk(self) -> Chunk:
        """Never asked for: the usage is part of every stream."""
        return self.empty_chunk()

    def whole(self) -> Chunk:
        return self._response()

    def _begin(self) -> list[Chunk]:
        if self._numbered:
            return []
        return [self._event(f"response.{name}", response=self._response()) for name in ("created", "in_progress")]

    def _told(self, events: list[BlockEvent]) -> list[Chunk]:
        return [chunk for event in events for chunk in self._block_event(event)]

    def _block_event(self, event: BlockEvent) -> list[Chunk]:
        match event:
            case Opened(block):
                return self._opened(block)
            case Grown(block, text, likely):
                logprobs = _logprobs(block, likely)
                return [self._part_event(block, f"{_text_event(block)}.delta", delta=text, **logprobs)]
            case Closed(block, last):
                self._statuses[block.index] = self._status if last else "completed"
                return self._closed(block)
            case _:
                assert_never(event)

    def _opened(self, block: Block) -> list[Chunk]:
        self._item_ids.append(self._new_id(_prefix(block)))
        self._statuses.append("in_progress")
        added = self._event("response.output_item.added", output_index=block.index, item=self._item(block, begun=True))
        if isinstance(block, CallBlock):
            return [added]
        return [added, self._part_event(block, "response.content_part.added", part=_part(block, ""))]

    def _closed(self, block: Block) -> list[Chunk]:
        done = self._text_done(block)
        if not isinstance(block, CallBlock):
            done.append(self._part_event(block, "response.content_part.done", part=_part(block, block.text)))
        return [*done, self._event("response.output_item.done", output_index=block.index, item=self._item(block))]

    def _text_done(self, block: Block) -> list[Chunk]:
        kind = f"{_text_event(block)}.done"
        if isinstance(block, CallBlock):
            return [self._part_event(block, kind, name=block.name, arguments=block.text)]
        return [self._part_event(block, kind, text=block.text, **_logprobs(block, _likely(block)))]

    def _part_event(self, block: Block, kind: str, **members: Any) -> Chunk:
        """The one part of an item that has any."""
        part = {} if isinstance(block, CallBlock) else {"content_index": 0}
        place = {"item_id": self._item_ids[block.index], "output_index": block.index, **part}
        return self._event(kind, **place, **members)

    def _event(self, kind: str, **members: Any) -> Chunk:
        self._numbered += 1
        return {"type": kind, "sequence_number": self._numbered - 1, **members}

    def _item(self, block: Block, begun: bool = False) -> Chunk:
        """`begun`: as it is announced, before anything is in it."""
        head = {"id": self._item_ids[block.index], "status": self._statuses[block.index]}
        parts = [] if begun else [_part(block, block.text)]
        match block:
            case ThoughtBlock():
                return {**head, "type": "reasoning", "summary": [], "content": parts}
            case TextBlock():
                return {**head, "type": "message", "role": "assistant", "content": parts}
            case CallBlock():
                arguments = "" if begun else block.text
                return {
                    **head,
                    "type": "function_call",
                    "call_id": block.call_id,
                    "name": block.name,
                    "arguments": arguments,
                }
            case _:
                assert_never(block)

    def _response(self) -> Chunk:
        ended = self._status != "in_progress"
        return {
            "id": self._envelope.id,
            "object": "response",
            "created_at": self._envelope.created,
            "status": self._status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "model": self._envelope.model,
            "output": self._output() if ended else [],
            **self._echo,
            "usage": self._usage() if ended else None,
            **({"preempt": self._tally.preempt()} if ended else {}),
        }

    def _output(self) -> list[Chunk]:
        return [self._item(block) for block in self._utterance.blocks]

    def _usage(self) -> Chunk:
        return {
            "input_tokens": self._tally.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self._tally.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._utterance.thought_tokens},
            "total_tokens": self._tally.prompt_tokens + self._tally.completion_tokens,
        }


def _prefix(block: Block) -> str:
    match block:
        case ThoughtBlock():
            return "rs_"
        case TextBlock():
            return "msg_"
        case CallBlock():
            return "fc_"
        case _:
            assert_never(block)


def _text_event(block: Block) -> str:
    match block:
        case ThoughtBlock():
            return "response.reasoning_text"
        case TextBlock():
            return "response.output_text"
        case CallBlock():
            return "response.function_call_arguments"
        case _:
            assert_never(block)


def _part(block: Block, text: str) -> Chunk:
    if isinstance(block, ThoughtBlock):
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": _likely(block) if text else []}


def _likely(block: Block) -> list[Chunk]:
    return list(block.likely) if isinstance(block, TextBlock) else []


def _logprobs(block: Block, likely: list[Chunk]) -> Chunk:
    """Events of text have them, if only none."""
    return {"logprobs": likely} if isinstance(block, TextBlock) else {}
