"""From logits to tokens, for the rows of one step, on the device.

Every operation is row by row, so a row's token does not depend on its neighbours. Rows that ask for the same kind
of work share one launch; greedy rows cost one argmax.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from provider.generation import Sampling
from provider.randomness import uniform


@dataclass(slots=True)
class Sampler:
    """One sequence's sampling state: its parameters and the tokens that penalties look back on.

    Repetition looks at prompt and output, presence and frequency at the output only (OpenAI, vLLM).
    """

    sampling: Sampling
    seen: set[int] = field(default_factory=set)
    counts: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, sampling: Sampling, prompt: Iterable[int], emitted: Iterable[int]) -> "Sampler":
        sampler = cls(sampling, set(prompt) if sampling.repetition_penalty != 1.0 else set())
        for token in emitted:
            sampler.note(token)
        return sampler

    def note(self, token: int) -> None:
        """Remembers an output token."""
        if self.sampling.repetition_penalty != 1.0:
            self.seen.add(token)
        if self.sampling.presence_penalty or self.sampling.frequency_penalty:
            self.counts[token] += 1

    def adjust(self, logits: mx.array) -> mx.array:
        """Penalties and biases on one row of logits [V]; the row itself where there are none."""
        asked = self.sampling
        if self.seen:
            ids = mx.array(sorted(self.seen))
            picked = logits[ids]
            factor = asked.repetition_penalty
            logits[ids] = mx.where(picked > 0, picked / factor, picked * factor)
        if self.counts:
            tokens = sorted(self.counts)
            fall = [asked.presence_penalty + asked.frequency_penalty * self.counts[one] for one in tokens]
            logits[mx.array(tokens)] -= mx.array(fall)
        if asked.logit_bias:
            tokens = sorted(asked.logit_bias)
            logits[mx.array(tokens)] += mx.array([float(asked.logit_bias[one]) for one in tokens])
        return logits

    @property
    def looks_back(self) -> bool:
        """Whether a draw depends on the tokens drawn before it."""
        asked = self.sampling
        return bool(asked.repetition_penalty != 1.0 or asked.presence_penalty or asked.frequency_penalty)

    @property
    def adjusts(self) -> bool:
        return bool(self.seen or self.counts or self.sampling.logit_bias)


def sample(logits: mx.array, draws: Sequence[tuple[Sampler, int]]) -> mx.array:
    """logits [N, V], one (sampler, output position) per row -> tokens [N] (int32), not yet evaluated."""
    if any(sampler.adjusts for sampler, _ in draws):
        rows = logits.astype(mx.float32)
        adjusted = [one.adjust(mx.array(rows[i])) if one.adjusts else rows[i] for i, (one, _) in enumerate(draws)]
        logits = mx.stack(adjusted)
    kinds = [_kind(sampler.sampling) for sampler, _ in draws]
    if len(set(kinds)) == 1:
        return kinds[0](logits, draws)
    tokens = mx.zeros(len(draws), dtype=mx.int32)
    for kind in dict.fromkeys(kinds):
        members = [i for i, one in enumerate(kinds) if one is kind]
        rows = mx.array(members)
        tokens[rows] = kind(logits[rows], [draws[i] for i in members])
    return tokens


Draws = Sequence[tuple[Sampler, int]]


def _kind(asked: Sampling) -> Callable[[mx.array, Draws], mx.array]:
    """How a row's token is drawn: a matter of its own parameters, never of the rows beside it."""
    if asked.temperature == 0:
        return _greedy
    if asked.top_k == 0 and asked.top_p >= 1.0 and asked.min_p == 0.0:
        return _draw_from_all
    return _draw_from_top


def _greedy(logits: mx.array, draws: Draws) -> mx.array:
    return mx.argmax(logits, axis=-1).astype(mx.int32)


def _draw_from_all(logits: mx.array, draws: Draws) -> mx.array:
    return _invert(mx.softmax(_scaled(logits, draws), axis=-1, precise=True), _numbers(draws))


def _draw_from_top(logits: mx.array, draws: Draws) -> mx.array:
    scaled = _scaled(logits, draws)
    order = mx.argsort(-scaled, axis=-1)
    falling = mx.softmax(mx.take_along_axis(scaled, order, axis=-1), axis=-1, precise=True)
    picked = _invert(_truncate(falling, [sampler.sampling for sampler, _ in draws]), _numbers(draws))
    return mx.take_along_axis(order, picked[:, None], axis=-1)[:, 0].astype(mx.int32)


def _scaled(logits: mx.array, draws: Draws) -> mx.array:
    temperatures = mx.array([sampler.sampling.temperature for sampler, _ in draws])
    return logits.astype(mx.float32) / temperatures[:, None]


def _numbers(draws: Draws) -> mx.array:
    asked = [(sampler.sampling, position) for sampler, position in draws]
    return mx.array([uniform(one.seed, one.index, position) for one, position in asked])


def _truncate(probabilities: mx.array, asked: Sequence[Sampling]) -> mx.array:
    """Zeroes what top_k, top_p and min_p cut off; `probabilities` [N, V] fall along each row. The first stays."""
    vocabulary = probabilities.shape[-1]
    ranks = mx.arange(vocabulary)[None]
    keep = ranks < mx.array([one.top_k or vocabulary for one in asked])[:, None]
    kept = mx.where(keep, probabilities, 0.0)
    kept = kept / kept.sum(axis=-1, keepdims=True)
    before = mx.cumsum(kept, axis=-1) - kept
    keep &= before < mx.array([one.top_p for one in asked])[:, None]
    keep &= probabilities >= mx.array([one.min_p for one in asked])[:, None] * probabilities[:, :1]
    return mx.where(keep | (ranks == 0), probabilities, 0.0)


def _invert(probabilities: mx.array, numbers: mx.array) -> mx.array:
    """The first index at which the running sum passes number * total: [N, V], [N] -> [N] (int32).

    Comparing with the row's own total makes rounding of the sum harmless; a token of probability 0 is never met,
    because the running sum does not move there.
    """
    running = mx.cumsum(probabilities, axis=-1)
    target = numbers[:, None] * running[:, -1:]
    return mx.minimum((running <= target).sum(axis=-1), probabilities.shape[-1] - 1).astype(mx.int32)
