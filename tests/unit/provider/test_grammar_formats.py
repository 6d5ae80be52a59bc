"""Formats of texts: whatever is admitted, Python's and pydantic's own types read."""

import datetime
import ipaddress
import json
import uuid
from random import Random
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.grammar.answer import Calls, Thinking, answer_grammar
from provider.grammar.checking import check
from provider.grammar.formats import PATTERNS
from provider.grammar.json_schema import usable
from provider.grammar.tool_rules import Markup, ToolSchema
from tests.fixtures.grammars import takes
from tests.fixtures.languages import admits, matcher_of, said
from tests.soak import SOAK, examples

READERS: dict[str, Any] = {
    "date": datetime.date, "time": datetime.time, "date-time": datetime.datetime, "duration": datetime.timedelta,
    "ipv4": ipaddress.IPv4Address, "ipv6": ipaddress.IPv6Address, "uri": pydantic.AnyUrl,
    "uuid": uuid.UUID, "uuid1": pydantic.UUID1, "uuid3": pydantic.UUID3, "uuid4": pydantic.UUID4,
    "uuid5": pydantic.UUID5, "uuid6": pydantic.UUID6, "uuid7": pydantic.UUID7, "uuid8": pydantic.UUID8,
}  # fmt: skip
LIKELY = {'"': 6, ".": 2, "@": 4, ":": 2, "T": 2, "Z": 3}


def text(name: str, **others: Any) -> dict[str, Any]:
    return usable({"type": "string", "format": name, **others}, "s", check)


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_whatever_a_format_admits_is_read_by_its_type(name: str) -> None:
    matcher, reader = matcher_of(text(name)), pydantic.TypeAdapter(READERS.get(name, str))
    for seed in range(1000 if SOAK else 20):
        one = said(matcher, Random(seed), LIKELY, 80)
        if one is not None:
            reader.validate_python(json.loads(one))


@pytest.mark.parametrize("start", ["https?://", "ws://..", r"http://\[", "postgres://[^/]+@", "file:///", "a:"])
def test_whatever_address_is_admitted_is_read_as_one(start: str) -> None:
    matcher, reader = matcher_of(text("uri", pattern=f"^{start}")), pydantic.TypeAdapter(pydantic.AnyUrl)
    for seed in range(300 if SOAK else 10):
        one = said(matcher, Random(seed), LIKELY, 80)
        if one is not None:
            reader.validate_python(json.loads(one))


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        (
            "date",
            ["0001-01-01", "9999-12-31", "2024-02-29", "2000-02-29", "2023-02-28"],
            [
                "0000-01-01",
                "2023-02-29",
                "1900-02-29",
                "2024-02-30",
                "2024-04-31",
                "2024-13-01",
                "2024-00-01",
                "24-1-1",
            ],
        ),
        (
            "time",
            ["00:00:00Z", "23:59:59.999999Z", "12:00:00+23:59", "12:00:00.5-00:00"],
            ["23:59:60Z", "24:00:00Z", "12:60:00Z", "12:00:00", "12:00:00.1234567Z", "12:00:00.Z", "12:00:00z"],
        ),
        (
            "date-time",
            ["2024-02-29T23:59:59Z", "1999-12-31T00:00:00.123456+05:30"],
            ["2023-02-29T00:00:00Z", "2024-01-01 00:00:00Z", "2024-01-01T00:00:60Z", "2024-01-01t00:00:00Z"],
        ),
        ("duration", ["P3D", "PT86400S", "P1Y2M3DT4H5M6S", "P999999W"], ["P", "PT", "P1234567D", "1D", "P1S"]),
        ("email", ["a@b.cd", "a.b+c@d-e.example.org"], ["a@b", "a..b@c.de", "@b.cd", "a@-b.cd", "a@b..cd", "a b@c.de"]),
        ("hostname", ["a", "a-b.c", "x" * 63], ["-a", "a-", "a..b", "x" * 64, "", ".".join(["abc"] * 64)]),
        ("ipv4", ["0.0.0.0", "255.255.255.255"], ["256.1.1.1", "01.2.3.4", "1.2.3"]),
        (
            "ipv6",
            ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::3:4:5:6:7:8", "1:2:3:4:5:6::8"],
            [":", "1:2:3:4:5:6:7::8:9"],
        ),
        (
            "uri",
            [
                "https://example.org:8080/a%20b?c=d#e",
                "urn:isbn:1",
                "file:///etc/x",
                "http://[::1]:65535/",
                "mailto:a@b.c",
            ],
            ["example.org", "http://", "http:// a", "http://a:65536", "http://%zz", "http://a_b", "//a"],
        ),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567-e89b-12d3-a456-42661417400"]),
        ("uuid4", ["123e4567-e89b-42d3-a456-426614174000"], ["123e4567-e89b-12d3-a456-426614174000"]),
    ],
)
def test_a_format_admits_what_it_names(name: str, taken: list[str], refused: list[str]) -> None:
    matcher = matcher_of(text(name))
    assert [one for one in taken if not admits(matcher, json.dumps(one))] == []
    assert [one for one in refused if admits(matcher, json.dumps(one))] == []


DATE = matcher_of(text("date"))


@settings(max_examples=examples(10000))
@given(year=st.integers(0, 9999), month=st.integers(0, 13), day=st.integers(0, 32))
def test_a_date_is_one_of_the_calendar(year: int, month: int, day: int) -> None:
    try:
        exists = datetime.date(year, month, day) is not None
    except ValueError:
        exists = False
    assert admits(DATE, f'"{year:04}-{month:02}-{day:02}"') == exists


def test_a_format_holds_beside_a_pattern_and_a_length() -> None:
    matcher = matcher_of(text("date", pattern="^20[0-9]{2}-02", allOf=[{"maxLength": 10}]))
    for day, holds in (("2024-02-29", True), ("2023-02-29", False), ("1924-02-29", False), ("2024-03-01", False)):
        assert admits(matcher, json.dumps(day)) == holds
    assert admits(matcher_of(text("hostname", maxLength=3)), '"abc"')
    assert not admits(matcher_of(text("hostname", maxLength=3)), '"abcd"')
    any_kind = matcher_of(usable({"format": "date"}, "s", check))
    assert admits(any_kind, "1")
    assert not admits(any_kind, '"x"')


@pytest.mark.parametrize("others", [{}, {"pattern": "^20"}])
def test_a_format_holds_in_a_call_that_is_written_raw(others: dict[str, Any]) -> None:
    parameters = usable(
        {"type": "object", "properties": {"d": {"type": "string", "format": "date", **others}}, "required": ["d"]},
        "p",
        check,
    )
    tool = ToolSchema("f", parameters, frozenset("d"), "n", "p")
    grammar = answer_grammar(Thinking.DONE, None, Calls([tool], Markup.XML, several=False, talk=False), "s", check)

    def call(day: str) -> str:
        return f"<tool_call>\n<function=f>\n<parameter=d>\n{day}\n</parameter>\n</function>\n</tool_call>"

    assert takes(grammar, call("2024-02-29"))
    assert not takes(grammar, call("2023-02-29"))
    assert takes(grammar, call("1999-01-01")) == (not others)
