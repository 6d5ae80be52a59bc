"""The decision table of docs/mtp.md, every cell of it, and what comes before it."""

from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from provider.mtp.policy import (
    FAMILIES,
    Decision,
    Declaration,
    Embedded,
    External,
    Mode,
    Off,
    Reason,
    decide,
    family,
    is_killed,
)
from provider.mtp.verdict import fix

DECLARED, ABSENT, UNDETERMINABLE = Declaration.DECLARED, Declaration.ABSENT, Declaration.UNDETERMINABLE
PATH = Path("/heads/one")

EMBEDDED, EXTERNAL = "embedded", "external"
CONFIG, UNSUPPORTED = Reason.CONFIG_DISABLED, Reason.TARGET_UNSUPPORTED

TABLE: list[tuple[Mode, str | None, Declaration, Path | None, str]] = [
    ("auto", "qwen3_5", DECLARED, None, EMBEDDED),
    ("auto", "qwen3_5", UNDETERMINABLE, None, EMBEDDED),
    ("auto", "qwen3_5", ABSENT, None, CONFIG),
    ("auto", "qwen3_5", ABSENT, PATH, CONFIG),
    ("auto", "llama", DECLARED, None, UNSUPPORTED),
    ("auto", "llama", UNDETERMINABLE, None, UNSUPPORTED),
    ("auto", "llama", ABSENT, None, CONFIG),
    ("auto", "llama", ABSENT, PATH, CONFIG),
    ("auto", None, UNDETERMINABLE, None, EMBEDDED),
    ("on", "qwen3_5", DECLARED, None, EMBEDDED),
    ("on", "qwen3_5", DECLARED, PATH, EMBEDDED),
    ("on", "qwen3_5", UNDETERMINABLE, PATH, EMBEDDED),
    ("on", "qwen3_5", ABSENT, PATH, EXTERNAL),
    ("on", "qwen3_5", ABSENT, None, CONFIG),
    ("on", "llama", DECLARED, None, UNSUPPORTED),
    ("on", "llama", DECLARED, PATH, UNSUPPORTED),
    ("on", "llama", UNDETERMINABLE, None, UNSUPPORTED),
    ("on", "llama", ABSENT, PATH, UNSUPPORTED),
    ("on", "llama", ABSENT, None, UNSUPPORTED),
    ("on", None, UNDETERMINABLE, PATH, EMBEDDED),
    *(("off", kind, said, path, CONFIG)
      for kind, said, path in product(("qwen3_5", "llama", None), Declaration, (None, PATH))),
]  # fmt: skip


def told(decision: Decision) -> str:
    match decision:
        case Embedded():
            return EMBEDDED
        case External(path):
            assert path == PATH
            return EXTERNAL
        case Off(reason, detail):
            assert detail
            return reason


@pytest.mark.parametrize(("mode", "model_type", "declaration", "drafter_path", "expected"), TABLE)
def test_the_table_decides(
    mode: Mode, model_type: str | None, declaration: Declaration, drafter_path: Path | None, expected: str
) -> None:
    decision = decide(
        killed=False, mode=mode, model_type=model_type, declaration=declaration, drafter_path=drafter_path
    )
    assert told(decision) == expected


def test_the_table_has_every_cell() -> None:
    cells = {(mode, kind, said) for mode, kind, said, *_ in TABLE if kind is not None}
    assert cells == set(product(get_args(Mode), ("qwen3_5", "llama"), Declaration))


@pytest.mark.parametrize(("mode", "model_type", "declaration", "drafter_path", "_expected"), TABLE)
def test_the_kill_switch_comes_before_everything(
    mode: Mode, model_type: str | None, declaration: Declaration, drafter_path: Path | None, _expected: str
) -> None:
    decision = decide(killed=True, mode=mode, model_type=model_type, declaration=declaration, drafter_path=drafter_path)
    assert told(decision) == Reason.KILL_SWITCH_DISABLED


@pytest.mark.parametrize("value", ["0", "false", "no", "off", "OFF", "False", " no ", "0\n"])
def test_every_spelling_of_no_kills(value: str) -> None:
    assert is_killed(value)


@pytest.mark.parametrize("value", [None, "", "1", "true", "yes", "on", "auto", "00", "never", "disabled"])
def test_nothing_else_does(value: str | None) -> None:
    assert not is_killed(value)


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("qwen3_5", "qwen3_5"),
        ("qwen3_5_moe", "qwen3_5_moe"),
        ("qwen3_5_text", "qwen3_5"),
        (" Qwen3_5_MoE_text\n", "qwen3_5_moe"),
        ("qwen3_5_text_text", "qwen3_5_text"),
        ("qwen3_next", "qwen3_next"),
        ("", ""),
    ],
)
def test_the_family_is_trimmed_lower_cased_and_without_text(model_type: str, expected: str) -> None:
    assert family(model_type) == expected
    wanted = EMBEDDED if expected in FAMILIES else UNSUPPORTED
    assert told(decide(killed=False, mode="auto", model_type=model_type, declaration=DECLARED)) == wanted


def test_the_reasons_are_a_closed_set_and_each_has_a_way_out() -> None:
    assert {reason.value for reason in Reason} == {
        "kill_switch_disabled",
        "config_disabled",
        "target_unsupported",
        "inline_artifact_invalid",
        "local_artifact_invalid",
        "assistant_target_incompatible",
        "assistant_memory_unavailable",
        "assistant_load_failed",
        "acceptance_too_low",
        "engine_inactive",
    }
    assert all(fix(reason).endswith(".") for reason in Reason)
