"""Whatever a checkpoint's files hold, the verdict is an answer that can be printed, and never an exception."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from provider.mtp.probe import probe
from provider.mtp.verdict import judge
from tests.fixtures.heads import HEAD, INDEX, TRUNK, headed_model
from tests.soak import examples

FILES = ("config.json", INDEX, HEAD, TRUNK)

odd_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.sampled_from([2**63, 1.5, float("inf"), float("nan"), "", "\ud800", "mtp.\0", "BF16", "a.safetensors"])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def check(directory: Path) -> None:
    verdict = judge(directory, probe(directory), killed=False)

    assert verdict.active == (verdict.reason is None)
    (verdict.detail or "").encode()


def header_of(content: bytes) -> Any:
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def with_header(content: bytes, header: Any) -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + content[8 + int.from_bytes(content[:8], "little") :]


@settings(max_examples=examples(5000), deadline=None)
@given(name=st.sampled_from(FILES), place=st.integers(0), value=odd_json, as_key=st.booleans())
def test_any_value_anywhere_in_any_file_gets_an_answer(name: str, place: int, value: Any, as_key: bool) -> None:
    with TemporaryDirectory() as scratch:
        path = headed_model().write(Path(scratch)) / name
        content = path.read_bytes()
        root = header_of(content) if name in (HEAD, TRUNK) else json.loads(content)
        every = list(places(root))
        container, key = every[place % len(every)]
        if as_key and isinstance(container, dict) and isinstance(value, str):
            container[value] = container.pop(key)
        else:
            container[key] = value
        path.write_bytes(with_header(content, root) if name in (HEAD, TRUNK) else json.dumps(root).encode())
        check(Path(scratch))


@settings(max_examples=examples(5000), deadline=None)
@given(name=st.sampled_from(FILES), place=st.integers(0), byte=st.integers(0, 255), cut=st.booleans())
def test_any_byte_anywhere_in_any_file_gets_an_answer(name: str, place: int, byte: int, cut: bool) -> None:
    with TemporaryDirectory() as scratch:
        path = headed_model().write(Path(scratch)) / name
        content = bytearray(path.read_bytes())
        at = place % min(len(content), 4096)
        content[at] = byte
        path.write_bytes(content[:at] if cut else content)
        check(Path(scratch))
