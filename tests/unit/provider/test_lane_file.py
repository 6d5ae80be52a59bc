"""What is kept of the choice of lanes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from provider.lane_file import Kept, Subject, keep_rows, read_rows

SUBJECT = Subject(device="cpu: one, mlx 1", shapes="abc", candidates=[4, 8, 16])
OTHERS: list[dict[str, Any]] = [
    {"device": "cpu: one, mlx 2"}, {"shapes": "abd"}, {"candidates": [1, 2, 4, 8, 16]},
]  # fmt: skip


def keep(directory: Path, subject: Subject = SUBJECT, rows: int = 8) -> Path:
    keep_rows(directory, Kept(subject=subject, lane_rows=rows, model="m", pass_ms={"8": 1.5}))
    return subject.path_in(directory)


def test_what_is_kept_is_read_again_for_the_same_subject_alone(tmp_path: Path) -> None:
    directory = tmp_path / "not there yet"
    assert read_rows(directory, SUBJECT) is None
    keep(directory)
    assert read_rows(directory, SUBJECT) == 8
    for change in OTHERS:
        other = msgspec.structs.replace(SUBJECT, **change)
        assert read_rows(directory, other) is None
        keep(directory, other, 4)
    assert read_rows(directory, SUBJECT) == 8, "one subject's choice is not another's"
    assert len([*directory.iterdir()]) == 1 + len(OTHERS)


def test_without_its_file_a_choice_is_forgotten(tmp_path: Path) -> None:
    keep(tmp_path).unlink()
    assert read_rows(tmp_path, SUBJECT) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"lane_rows": 8}',
        msgspec.json.encode(Kept(subject=SUBJECT, lane_rows=3, model="m", pass_ms={})).decode(),
        msgspec.json.encode(
            Kept(subject=msgspec.structs.replace(SUBJECT, shapes="x"), lane_rows=8, model="m", pass_ms={})
        ).decode(),
    ],
    ids=["empty", "torn", "another form", "a part", "no candidate", "of another subject"],
)
def test_a_file_that_cannot_be_used_counts_as_none_and_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    SUBJECT.path_in(tmp_path).write_text(text)
    assert read_rows(tmp_path, SUBJECT) is None
    assert "lane_file_unusable" in caplog.text
    keep(tmp_path)
    assert read_rows(tmp_path, SUBJECT) == 8


def test_where_nothing_can_be_written_the_choice_stands_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    keep(in_the_way)
    assert "lane_file_not_written" in caplog.text
    SUBJECT.path_in(tmp_path).mkdir()
    keep(tmp_path)
    assert {*tmp_path.iterdir()} == {in_the_way, SUBJECT.path_in(tmp_path)}, "nothing is left beside it"
