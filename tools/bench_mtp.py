"""`darkbloom-py bench mtp` on the bundled model, with mlx-lm's own generate loop as a third side at one stream.

    python -m tools.bench_mtp [--rounds 3] [--requests 3] [--output-tokens 128] [--skill count ...] [--json]

Questions are drawn from what the bundled model was taught (tools/demo_repertoire.py): counting alone, unless other
skills are named. mlx-lm runs in this process, in every round, while no server does; it answers the very questions that
the servers answer at one stream, greedily and past the end of the text, as they do.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from provider.bench.load import ClosedLoop, Fixed, plan_load
from provider.bench.mtp import Plan, as_object, measure_round, print_gains, say
from provider.bench.mtp_gain import Measured, gains_of
from provider.models.bundled import BUNDLED_MODEL_DIR, BUNDLED_MODEL_ID
from provider.models.tokenizer import ModelTokenizer
from tools.demo_repertoire import EXAMPLES, Skill

STREAMS = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class Repertoire:
    """Implements PromptStyle: another question of these skills for every seed."""

    tokenizer: ModelTokenizer
    skills: tuple[Skill, ...]

    def make(self, tokens: int, seed: int) -> list[int]:
        rng = Random(seed)
        return self.tokenizer.encode(EXAMPLES[rng.choice(self.skills)](rng).prompt)


def plain_rate(model: object, plan: Plan, seed: int) -> float:
    """mlx-lm's tokens per second, prompts included, over the questions of one stream."""
    load = plan_load(ClosedLoop(1), plan.requests, Fixed(1), Fixed(plan.output_tokens), seed)
    prompts = [plan.prompts.make(one.prompt_tokens, one.seed) for one in load.requests]
    _generate(model, prompts[0], plan.output_tokens)
    started = time.perf_counter()
    count = sum(_generate(model, prompt, plan.output_tokens) for prompt in prompts)
    return count / (time.perf_counter() - started)


def _generate(model: object, prompt: str | list[int], tokens: int) -> int:
    return sum(1 for _ in generate_step(mx.array(prompt), model, max_tokens=tokens))


def rounds_of(plan: Plan, directory: Path) -> Iterator[tuple[list[Measured], float]]:
    """Of each round, what the servers did and what mlx-lm did."""
    model, _ = load_model(directory)
    for number in range(plan.rounds):
        servers = measure_round(plan, number, say)
        say(f"round {number + 1} of {plan.rounds}: mlx-lm")
        yield servers, plain_rate(model, plan, number)


def against(servers: Sequence[Sequence[Measured]], baseline: Sequence[float]) -> dict[str, float]:
    """At one stream: medians, and each side to mlx-lm in the same round."""
    found = {"tokens_per_s": statistics.median(baseline)}
    for side in ("plain", "drafting"):
        rates = [next(one.tokens_per_s for one in each if (one.side, one.streams) == (side, 1)) for each in servers]
        found[f"{side}_ratio"] = statistics.median(ours / theirs for ours, theirs in zip(rates, baseline, strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=3, help="of each stream, in each round")
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--skill", type=Skill, choices=list(Skill), action="append")
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    skills = tuple(told.skill or (Skill.COUNT,))
    plan = Plan(
        model=BUNDLED_MODEL_DIR,
        prompts=Repertoire(ModelTokenizer(BUNDLED_MODEL_DIR), skills),
        streams=STREAMS,
        requests=told.requests,
        output_tokens=told.output_tokens,
        rounds=told.rounds,
    )
    servers, baseline = map(list, zip(*rounds_of(plan, BUNDLED_MODEL_DIR), strict=True))
    gains, mlx_lm = gains_of([one for each in servers for one in each]), against(servers, baseline)
    if told.json:
        print(json.dumps({**as_object(BUNDLED_MODEL_ID, plan, gains), "skills": skills, "mlx_lm": mlx_lm}))
        return
    print_gains(BUNDLED_MODEL_ID, gains)
    print(f"mlx-lm, 1 stream: {mlx_lm['tokens_per_s']:.1f} tokens/s")
    for side in ("plain", "drafting"):
        print(f"  {side} to it: {mlx_lm[f'{side}_ratio']:.2f}x")


if __name__ == "__main__":
    main()
