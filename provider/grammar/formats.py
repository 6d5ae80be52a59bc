"""Formats of texts, as patterns: what they admit is read by Python's and pydantic's own types. Pure.

llguidance's own admit dates that no calendar has, seconds that are none, and numbers of any length.
"""

from typing import Any

Json = Any
"""A decoded JSON value."""
Schema = dict[str, Json]

LONGEST = {"email": 254, "hostname": 253}
"""In characters (RFC 5321, errata 1690; RFC 1035, 2.3.4)."""

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_MONTHS = ("(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)")
_DAY = f"(?:{'|'.join(_MONTHS)}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_DATE = f"(?:{_YEAR}-{_DAY}|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_N = "[0-9]{1,6}"
_HOURS = f"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_DAYS = f"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_SINGLY = "[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,30}"
_WORD = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_HEX = "[0-9a-fA-F]"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = f"{_HEX}{{1,4}}"
_ESCAPED = f"%{_HEX}{{2}}"
_NAME = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=-]|{_ESCAPED})"
_CHAR = rf"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|{_ESCAPED})"
_PORT = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"


def _uuid(version: str) -> str:
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"


def _ipv6() -> str:
    """With `::` for the groups that are left out: one at least, of eight."""
    begun = [f"(?:{_GROUP}:){{1,{7 - ended}}}(?::{_GROUP}){{1,{ended}}}" for ended in range(1, 7)]
    ends = [f"(?:{_GROUP}:){{1,7}}:", f":(?::{_GROUP}){{1,7}}", "::"]
    return "|".join([f"(?:{_GROUP}:){{7}}{_GROUP}", *begun, *ends])


def _uri() -> str:
    """RFC 3986, appendix A, with a host that is a name, such as it is looked up, or an address."""
    path, name = f"(?:/{_CHAR}*)*", rf"(?:{_SINGLY}\.)*[a-zA-Z](?:-?[a-zA-Z0-9]){{0,30}}"
    host = rf"(?:{name}|(?:{_BYTE}\.){{3}}{_BYTE}|\[(?:{_ipv6()})\])"
    authority = f"//(?:(?:{_NAME}|:)*@)?{host}(?::{_PORT})?"
    rest = f"(?:{authority}{path}|/(?:{_CHAR}+{path})?|{_CHAR}+{path})"
    return rf"(?:[a-zA-Z][a-zA-Z0-9+.-]*:{rest}|file://{path})(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?"


PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|{_N}W)",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "email": rf"{_WORD}(?:\.?{_WORD}){{0,31}}@(?:{_SINGLY}\.)+[a-zA-Z]{{2,20}}",
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "ipv6": _ipv6(),
    "uri": _uri(),
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    **{f"uuid{version}": _uuid(str(version)) for version in (1, 3, 4, 5, 6, 7, 8)},
}
"""`date`: of years 0001 to 9999. `time`: of a second below 60, with microseconds at most (RFC 3339 has a second 60, at
the end of a day alone). `duration`: of numbers with six digits at most. `email`: of a domain with a dot. Other
formats are a remark and restrict nothing, as JSON Schema has it."""


def with_patterns(schema: Schema) -> Schema:
    """One schema without those within it: its format said by a pattern, beside any that it has."""
    name = schema.get("format")
    if not isinstance(name, str) or name not in PATTERNS:
        return schema
    said: Schema = {key: value for key, value in schema.items() if key != "format"}
    longest, own = LONGEST.get(name), said.get("maxLength")
    if longest is not None and (own is None or (isinstance(own, int) and own > longest)):
        said["maxLength"] = longest
    pattern = f"^(?:{PATTERNS[name]})$"
    if "pattern" not in said:
        return {**said, "pattern": pattern}
    others = said.get("allOf", [])
    return {**said, "allOf": [*others, {"pattern": pattern}]} if isinstance(others, list) else said
