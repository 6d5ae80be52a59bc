"""How much a grammar may ask of the machine: every bound is on work or memory, so it holds on any machine.

What the figures come to: docs/decisions/0017-structured-output.md.
"""

from llguidance import LLParserLimits

MAX_GRAMMAR_BYTES = 512 * 2**10
"""Of a grammar as it is sent to a worker."""
MAX_SCHEMAS = 3_000
"""Within one another. The time that an object's optional properties take grows with the square of their number."""
MAX_PROPERTIES = 1_000
"""Of one object."""
MAX_BLAMED_BYTES = 64 * 2**10
"""A schema larger than this that cannot be used is not searched for the part that is to blame."""
MAX_DEPTH = 40
"""Of schemas within one another."""
MAX_NESTED = 110
"""Of the JSON of a schema; llguidance reads none that is nested deeper than 128, and a copy may lie deeper."""


def parser_limits() -> LLParserLimits:
    """Of building a grammar (`initial_lexer_fuel`, about 20 ms) and of one mask (`step_*`, about 15 ms at most). A
    sequence makes states of the lexer as its text goes on, five for each character of a string whose length is bounded,
    of 0.4 kB: 10 MB for an answer of 5000 characters, 100 MB at the most."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_items_in_row=8_000,
        max_lexer_states=250_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )
