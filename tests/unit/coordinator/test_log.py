from coordinator.log import line


def test_an_event_is_one_line_of_fields() -> None:
    fields = {"id": "a-1", "took_s": 0.12345, "why": 'two words\nand "more"', "none": None, "empty": ""}
    expected = 'request id=a-1 took_s=0.123 why="two words\\nand \\"more\\"" none=None empty=""'
    assert line("request", fields) == expected
