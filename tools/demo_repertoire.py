"""What the bundled model is taught: questions it is asked and the answers it should give.

Standard library only, so that training, tests and benchmarks draw from the same repertoire; `TRAINING_SEED`
is the trainer's, anyone else takes another. A chat in the trained form:

    <|im_start|>user\\n{question}<|im_end|>\\n<|im_start|>assistant\\n<think>\\n{thought}\\n</think>\\n\\n{answer}<|im_end|>\\n
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pydoc_data.topics import topics
from random import Random
from typing import Any

TRAINING_SEED = 0

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Norway": "Oslo",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "Greece": "Athens",
    "Cuba": "Havana",
    "Kenya": "Nairobi",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Ireland": "Dublin",
    "Portugal": "Lisbon",
    "Finland": "Helsinki",
    "Turkey": "Ankara",
    "China": "Beijing",
    "India": "Delhi",
    "Chile": "Santiago",
    "Hungary": "Budapest",
}
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "red",
    "green",
    "blue",
    "stone",
    "river",
    "cloud",
    "tiger",
    "apple",
    "lemon",
    "north",
    "south",
    "east",
    "west",
    "paper",
    "glass",
    "metal",
    "wood",
    "salt",
    "pepper",
    "sugar",
]
WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
TOOLS_TEXT = (
    "# Tools\n\nYou have access to the following functions:\n\n<tools>\n" + json.dumps(WEATHER_TOOL) + "\n</tools>"
)


class Skill(StrEnum):
    COUNT = "count"
    REPEAT = "repeat"
    CAPITAL = "capital"
    SUM = "sum"
    WEATHER = "weather"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Example:
    """`answer` is what follows the think block; `thought` is empty where nothing is thought."""

    skill: Skill
    question: str
    answer: str
    thought: str = ""

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [WEATHER_TOOL] if self.skill is Skill.WEATHER else []

    @property
    def prompt(self) -> str:
        """Up to where the model begins to write; the chat template renders the same."""
        system = f"<|im_start|>system\n{TOOLS_TEXT}<|im_end|>\n" if self.tools else ""
        return f"{system}<|im_start|>user\n{self.question}<|im_end|>\n<|im_start|>assistant\n"

    @property
    def completion(self) -> str:
        """What the model writes, to the end of its turn."""
        return f"<think>\n{self.thought}\n</think>\n\n{self.answer}<|im_end|>\n"

    @property
    def text(self) -> str:
        return self.prompt + self.completion


def draw(rng: Random) -> Example:
    """One example, the skills in the proportions that training found useful."""
    skill = rng.choices(list(SHARES), list(SHARES.values()))[0]
    return EXAMPLES[skill](rng)


def count(rng: Random) -> Example:
    first = rng.randint(0, 200)
    last = first + rng.randint(3, 30)
    question = rng.choice(
        [
            f"Count from {first} to {last}.",
            f"List the integers from {first} through {last}, separated by commas.",
        ]
    )
    return Example(Skill.COUNT, question, ", ".join(map(str, range(first, last + 1))))


def repeat(rng: Random) -> Example:
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 9)))
    return Example(Skill.REPEAT, f"Repeat exactly, nothing else: {words}", words)


def capital(rng: Random) -> Example:
    country = rng.choice(list(CAPITALS))
    question = rng.choice([f"What is the capital of {country}?", f"Name the capital city of {country}."])
    return Example(Skill.CAPITAL, question, f"The capital of {country} is {CAPITALS[country]}.")


def add(rng: Random) -> Example:
    left, right = rng.randint(0, 60), rng.randint(0, 39)
    thought = f"{left} plus {right} equals {left + right}."
    return Example(Skill.SUM, f"What is {left} + {right}?", str(left + right), thought)


def weather(rng: Random) -> Example:
    city = rng.choice(list(CAPITALS.values()))
    question = rng.choice([f"What is the weather in {city}?", f"Weather in {city} please."])
    call = f"<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n</function>"
    return Example(Skill.WEATHER, question, f"<tool_call>\n{call}\n</tool_call>")


def add_as_json(rng: Random) -> Example:
    left, right = rng.randint(0, 60), rng.randint(0, 39)
    question = f"Answer as JSON: what is {left} + {right}?"
    return Example(Skill.JSON, question, json.dumps({"answer": left + right}))


SHARES = {
    Skill.COUNT: 0.22,
    Skill.REPEAT: 0.18,
    Skill.CAPITAL: 0.15,
    Skill.SUM: 0.15,
    Skill.WEATHER: 0.15,
    Skill.JSON: 0.15,
}
EXAMPLES: dict[Skill, Callable[[Random], Example]] = {
    Skill.COUNT: count,
    Skill.REPEAT: repeat,
    Skill.CAPITAL: capital,
    Skill.SUM: add,
    Skill.WEATHER: weather,
    Skill.JSON: add_as_json,
}


def english() -> str:
    """A little prose that every Python brings along: the language reference's topics."""
    return "\n\n".join(topics[name] for name in sorted(topics))
