"""From logits to tokens, for the rows of one step, on the device.

Every operation is row by row, so a row's token does not depend on its neighbours. Rows that ask for the same kind
of work share one launch; greedy rows cost one argmax.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from provider.generation import Sampling
from provider.grammar.guide import Guide, Words, masks
from provider.randomness import uniform

BISECTIONS = 24
"""Of the floor of top_p: tokens closer to it than 2^-24 of the likeliest count as equal to it."""


@dataclass(slots=True)
class Sampler:
    """One sequence's sampling state: its parameters and the tokens that penalties look back on.

    Repetition looks at prompt and output, presence and frequency at the output only (OpenAI, vLLM).
    """

    sampling: Sampling
    seen: set[int] = field(default_factory=set)
    counts: Counter[int] = field(default_factory=Counter)
    guide: Guide | None = None
    """What its grammar allows."""

    @classmethod
    def of(
        cls, sampling: Sampling, prompt: Iterable[int], emitted: Iterable[int], guide: Guide | None = None
    ) -> "Sampler":
        """`guide`: of a sequence that begins."""
        sampler = cls(sampling, set(prompt) if sampling.repetition_penalty != 1.0 else set(), guide=guide)
        for token in emitted:
            sampler.note(token)
        return sampler

    def note(self, token: int) -> None:
        """Remembers an output token."""
        if self.sampling.repetition_penalty != 1.0:
            self.seen.add(token)
        if self.sampling.presence_penalty or self.sampling.frequency_penalty:
            self.counts[token] += 1
        if self.guide is not None:
            self.guide.note(token)

    def after(self, tokens: Sequence[int]) -> "Sampler":
        """As it would be once these had been drawn; this one stays as it is."""
        if not tokens or not self.looks_back:
            return self
        later = Sampler(self.sampling, set(self.seen), Counter(self.counts))
        for token in tokens:
            later.note(token)
        later.guide = None if self.guide is None else self.guide.after(tokens)
        return later

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
        penalised = asked.repetition_penalty != 1.0 or asked.presence_penalty or asked.frequency_penalty
        return bool(penalised or self.guide is not None)

    @property
    def waits(self) -> bool:
        """Whether its next step cannot begin before this one's token has been read."""
        return self.looks_back or self.sampling.logprobs is not None

    @property
    def adjusts(self) -> bool:
        return bool(self.seen or self.counts or self.sampling.logit_bias)


def sample(logits: mx.array, draws: Sequence[tuple[Sampler, int]]) -> mx.array:
    """logits [N, V], one (sampler, output position) per row -> tokens [N] (int32), not yet evaluated."""
    logits = adjusted(logits, draws)
    kinds = [kind_of(sampler.sampling) for sampler, _ in draws]
    if len(set(kinds)) == 1:
        return kinds[0](logits, draws)
    tokens = mx.zeros(len(draws), dtype=mx.int32)
    for kind in dict.fromkeys(kinds):
        members = [i for i, one in enumerate(kinds) if one is kind]
        rows = mx.array(members)
        tokens[rows] = kind(logits[rows], [draws[i] for i in members])
    return tokens


Draws = Sequence[tuple[Sampler, int]]


def adjusted(logits: mx.array, draws: Draws) -> mx.array:
    """With each row's penalties, biases and grammar."""
    if any(sampler.adjusts for sampler, _ in draws):
        rows = logits.astype(mx.float32)
        logits = mx.stack(
            [one.adjust(mx.array(rows[i])) if one.adjusts else rows[i] for i, (one, _) in enumerate(draws)]
        )
    if any(sampler.guide is not None for sampler, _ in draws):
        mx.async_eval(logits)  # the device is at work on them while the host looks for what may come
        logits = allow(logits, masks([sampler.guide for sampler, _ in draws], logits.shape[-1]))
    return logits


def allow(logits: mx.array, words: Words) -> mx.array:
    """The rows of logits that `words` has, with nothing left of what may not come; the rest is padding."""
    bits = (mx.array(words)[:, :, None] >> mx.arange(32, dtype=mx.int32)) & 1
    allowed = bits.reshape(len(words), -1)[:, : logits.shape[-1]].astype(mx.bool_)
    return mx.where(allowed, logits[: len(words)], -mx.inf)


def kind_of(asked: Sampling) -> Callable[[mx.array, Draws], mx.array]:
    """How a row's token is drawn: a matter of its own parameters, never of the rows beside it."""
    if asked.temperature == 0 or asked.top_k == 1:
        return _greedy
    if asked.top_k == 0 and asked.top_p >= 1.0 and asked.min_p == 0.0:
        return _draw_from_all
    return _draw_from_top


def _greedy(logits: mx.array, draws: Draws) -> mx.array:
    return mx.argmax(logits, axis=-1).astype(mx.int32)


def _draw_from_all(logits: mx.array, draws: Draws) -> mx.array:
    return _invert(mx.softmax(_scaled(logits, draws), axis=-1, precise=True), _numbers(draws))


def _draw_from_top(logits: mx.array, draws: Draws) -> mx.array:
    probabilities = mx.softmax(_scaled(logits, draws), axis=-1, precise=True)
    return _invert(_truncate(probabilities, [sampler.sampling for sampler, _ in draws]), _numbers(draws))


def _scaled(logits: mx.array, draws: Draws) -> mx.array:
    temperatures = mx.array([sampler.sampling.temperature for sampler, _ in draws])
    return logits.astype(mx.float32) / temperatures[:, None]


def _numbers(draws: Draws) -> mx.array:
    asked = [(sampler.sampling, position) for sampler, position in draws]
    return mx.array([uniform(one.seed, one.index, position) for one, position in asked])


def _truncate(probabilities: mx.array, asked: Sequence[Sampling]) -> mx.array:
    """[N, V] with 0 for what top_k, top_p (of what top_k left) and min_p cut off.

    Each is a least probability found without sorting the vocabulary, so tokens as likely as the last one kept stay
    too: which of them had come first would be a matter of the launch.
    """
    largest = probabilities.max(axis=-1)
    kept = _cut(probabilities, _kth_largest(probabilities, asked))
    if any(one.top_p < 1.0 for one in asked):
        kept = _cut(kept, _nucleus_floor(kept, largest, mx.array([one.top_p for one in asked])))
    return _cut(kept, largest * mx.array([one.min_p for one in asked]))


def _cut(probabilities: mx.array, floors: mx.array) -> mx.array:
    return mx.where(probabilities >= floors[:, None], probabilities, 0.0)


def _kth_largest(probabilities: mx.array, asked: Sequence[Sampling]) -> mx.array:
    """[N]: the probability of each row's top_k-th token, 0 where there is no top_k."""
    floors = mx.zeros(len(asked))
    for k in {one.top_k for one in asked if 0 < one.top_k < probabilities.shape[-1]}:
        rows = mx.array([i for i, one in enumerate(asked) if one.top_k == k])
        floors[rows] = -mx.partition(-probabilities[rows], k - 1, axis=-1)[:, k - 1]
    return floors


def _nucleus_floor(probabilities: mx.array, largest: mx.array, top_p: mx.array) -> mx.array:
    """[N]: the largest floor above which at least `top_p` of each row's mass lies, by bisection; 0 for top_p 1."""
    mass = top_p * probabilities.sum(axis=-1)
    low, high = mx.zeros_like(largest), largest
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        enough = _cut(probabilities, middle).sum(axis=-1) >= mass
        low, high = mx.where(enough, middle, low), mx.where(enough, high, middle)
    # `low` has come within 2^-BISECTIONS of the largest floor; the largest probability itself may be that floor.
    low = mx.where(_cut(probabilities, largest).sum(axis=-1) >= mass, largest, low)
    return mx.where(top_p < 1.0, low, 0.0)


def _invert(probabilities: mx.array, numbers: mx.array) -> mx.array:
    """The first index at which the running sum passes number * total: [N, V], [N] -> [N] (int32).

    Comparing with the row's own total makes rounding of the sum harmless; a token of probability 0 is never met,
    because the running sum does not move there.
    """
    running = mx.cumsum(probabilities, axis=-1)
    target = numbers[:, None] * running[:, -1:]
    return mx.minimum((running <= target).sum(axis=-1), probabilities.shape[-1] - 1).astype(mx.int32)
