"""The embedded prediction head as a drafter: from a hidden state and the token drawn from it, the token after that.

Its own keys and values hold one entry for each such pair, of verified hidden states only: what it appends while it
guesses further ahead is rolled back at once, and comes again with the trunk's own hidden states once these are known.
That second pass, over all pairs a round has verified, is the next round's first guess.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import mlx.core as mx

from provider.backends.mlx.block_cache import BlockCache, cache_images, take_up_images
from provider.backends.mlx.drafter import Pairs
from provider.backends.mlx.forward import Image
from provider.backends.mlx.layout import Layout
from provider.backends.mlx.mtp_weights import HeadModules, head_bytes
from provider.backends.mlx.qwen3_5 import (
    Trunk,
    close_attention,
    feed_forward,
    in_time,
    keys_and_values,
    position_offsets,
    queries_and_gate,
)

MISSED_PAIRS = 16
"""Pairs kept while nothing is drafted, to be caught up with when it is again. The head never sees older ones: it
guesses a little worse for it, and nothing has to be computed or held for a head that is not asked."""


@dataclass(slots=True)
class Followed:
    """A sequence as the head knows it. `hidden` [1, H] is of its last prefilled position, until the token drawn there
    is known; `pending` pairs are still to be appended to `cache`."""

    cache: BlockCache = field(default_factory=BlockCache)
    hidden: mx.array | None = None
    pending: deque[Pairs] = field(default_factory=deque)

    def note(self, pairs: Pairs) -> None:
        self.pending.append(pairs)
        spare = sum(one.end - one.begin for one in self.pending) - MISSED_PAIRS
        while spare > 0:
            oldest = self.pending.popleft()
            left = oldest.end - oldest.begin - spare
            if left > 0:
                self.pending.appendleft(oldest.last(left))
            spare = -left


@dataclass(frozen=True, slots=True)
class Guesses:
    """tokens [N] guessed, and the head's hidden states [N, H] that a further guess is made from."""

    tokens: mx.array
    hidden: mx.array

    def rows(self, order: Sequence[int]) -> "Guesses":
        if [*order] == [*range(self.tokens.shape[0])]:
            return self
        picked = mx.array([*order])
        return Guesses(self.tokens[picked], self.hidden[picked])


class MtpHead:
    """Implements provider.backends.mlx.drafter.Drafter."""

    def __init__(self, modules: HeadModules, trunk: Trunk, max_drafts: int) -> None:
        self.max_drafts = max_drafts
        self.kv_bytes_per_token = trunk.kv_bytes_of(modules.block)
        self.weight_bytes = head_bytes(modules)
        self._modules = modules
        self._trunk = trunk
        self._followed: dict[str, Followed] = {}
        self._ready: dict[str, tuple[Guesses, int]] = {}

    def open(self, id: str) -> None:
        self._followed[id] = Followed()

    def prefilled(self, id: str, tokens: Sequence[int], hidden: mx.array) -> None:
        """Appends every pair whose token is known; of a single layer, keys and values are all that is needed."""
        one = self._followed[id]
        before = hidden[:-1] if one.hidden is None else mx.concatenate([one.hidden, hidden[:-1]])
        count = before.shape[0]
        if count:
            mixed = self._mix(mx.array([list(tokens[-count:])]), before[None])
            attention = self._modules.block.self_attn
            one.cache.update_and_fetch(*keys_and_values(attention, self._normed(mixed), one.cache.offset))
        one.hidden = mx.take(hidden, mx.array([hidden.shape[0] - 1]), axis=0)  # not a view of the whole chunk

    def start(self, id: str, token: int) -> None:
        one = self._followed[id]
        if one.hidden is not None:
            one.note(Pairs(one.hidden, mx.array([token]), 0, 1))
            one.hidden = None

    def note(self, id: str, pairs: Pairs) -> None:
        self._ready.pop(id, None)
        self._followed[id].note(pairs)

    def begin(self, ids: Sequence[str]) -> None:
        waiting = [id for id in ids if self._followed[id].pending]
        if waiting:
            guesses = self._catch_up(waiting)
            mx.async_eval(guesses.tokens, guesses.hidden)
            self._ready |= {id: (guesses, row) for row, id in enumerate(waiting)}

    def draft(self, ids: Sequence[str], count: int) -> mx.array:
        self.begin(ids)
        guesses = self._first_guesses(ids)
        drafts = [guesses.tokens]
        for _ in range(count - 1):
            guesses = self._append(ids, guesses.tokens, guesses.hidden, [1] * len(ids))
            drafts.append(guesses.tokens)
        for id in ids:
            cache = self._followed[id].cache
            cache.roll_back(cache.offset - (count - 1))
        return mx.stack(drafts, axis=1)

    def arrays(self, id: str) -> list[mx.array]:
        one = self._followed[id]
        return one.cache.arrays + ([] if one.hidden is None else [one.hidden])

    def park(self, id: str) -> Image:
        one, ready = self._followed.pop(id), self._ready.pop(id, None)
        image = cache_images([one.cache])
        if one.hidden is not None:
            image.arrays["hidden"] = one.hidden
        if one.pending:
            hidden, tokens = _gathered([*one.pending])
            image.arrays.update({"pending.hidden": hidden, "pending.tokens": tokens})
        if ready is not None:
            guesses, row = ready
            own = guesses.rows([row])
            image.arrays.update({"guess.hidden": own.hidden, "guess.tokens": own.tokens})
        return image

    def restore(self, id: str, image: Image) -> None:
        one, held = Followed(), image.arrays
        take_up_images([one.cache], image)
        one.hidden = held.get("hidden")
        if "pending.tokens" in held:
            tokens = held["pending.tokens"]
            one.pending.append(Pairs(held["pending.hidden"], tokens, 0, tokens.shape[0]))
        if "guess.tokens" in held:
            self._ready[id] = (Guesses(held["guess.tokens"], held["guess.hidden"]), 0)
        self._followed[id] = one

    def release(self, id: str) -> None:
        self._followed.pop(id, None)
        self._ready.pop(id, None)

    def _first_guesses(self, ids: Sequence[str]) -> Guesses:
        """In the order of `ids`, out of the passes they were made in."""
        ready = [self._ready[one] for one in ids]
        passes = {id(guesses): guesses for guesses, _ in ready}
        sources = list(passes.values())
        begins = dict(zip(passes, accumulate([0, *(one.tokens.shape[0] for one in sources)]), strict=False))
        pool = sources[0]
        if len(sources) > 1:
            tokens, hidden = ([getattr(one, name) for one in sources] for name in ("tokens", "hidden"))
            pool = Guesses(mx.concatenate(tokens), mx.concatenate(hidden))
        return pool.rows([begins[id(guesses)] + row for guesses, row in ready])

    def _catch_up(self, ids: Sequence[str]) -> Guesses:
        """Appends all that is pending; what the last pair of each leads to."""
        pending = [[*self._followed[id].pending] for id in ids]
        for id in ids:
            self._followed[id].pending.clear()
        hidden, tokens = _gathered([pairs for own in pending for pairs in own])
        return self._append(ids, tokens, hidden, [sum(one.end - one.begin for one in own) for own in pending])

    def _append(self, ids: Sequence[str], tokens: mx.array, hidden: mx.array, widths: Sequence[int]) -> Guesses:
        """`widths[i]` pairs for each sequence, of tokens [M] and hidden [M, H], appended to its keys and values. Only
        the last of each goes further than that."""
        layout, block = Layout(widths), self._modules.block
        caches = [self._followed[id].cache for id in ids]
        offsets = position_offsets(caches, layout)
        mixed = self._mix(tokens[:, None], hidden[:, None])
        normed = self._normed(mixed)
        keys, values = keys_and_values(block.self_attn, normed, offsets)
        if layout.longest > 1:
            last = mx.array([begin + width - 1 for begin, width in layout.spans])
            mixed, normed, offsets = mixed[last], normed[last], offsets[last]
        queries, gate = queries_and_gate(block.self_attn, normed, offsets)
        outs = []
        for row, (cache, (begin, width)) in enumerate(zip(caches, layout.spans, strict=True)):
            held = cache.update_and_fetch(in_time(keys[begin : begin + width]), in_time(values[begin : begin + width]))
            one = queries[row : row + 1]
            outs.append(mx.fast.scaled_dot_product_attention(one, *held, scale=block.self_attn.scale))
        attended = close_attention(block.self_attn, mx.concatenate(outs), gate)
        y = self._modules.norm(feed_forward(block, mixed + attended, self._trunk.aside))[:, 0]
        return Guesses(mx.argmax(self._trunk.logits(y), axis=-1).astype(mx.int32), y)

    def _mix(self, tokens: mx.array, hidden: mx.array) -> mx.array:
        return self._modules.mix(self._trunk.embed(tokens), hidden)

    def _normed(self, mixed: mx.array) -> mx.array:
        return self._modules.block.input_layernorm(mixed)


def _gathered(pairs: Sequence[Pairs]) -> tuple[mx.array, mx.array]:
    """hidden [M, H] and tokens [M] of all pairs, one after the other, out of the passes they come from."""
    passes = {id(one.hidden): one for one in pairs}
    sources = list(passes.values())
    begins = dict(zip(passes, accumulate([0, *(one.hidden.shape[0] for one in sources)]), strict=False))
    order = [begins[id(one.hidden)] + row for one in pairs for row in range(one.begin, one.end)]
    hidden, tokens = sources[0].hidden, sources[0].tokens
    if len(sources) > 1:
        hidden = mx.concatenate([one.hidden for one in sources])
        tokens = mx.concatenate([one.tokens for one in sources])
    if order == [*range(hidden.shape[0])]:
        return hidden, tokens
    picked = mx.array(order)
    return hidden[picked], tokens[picked]
