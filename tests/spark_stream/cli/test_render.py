"""Tables away from a terminal: plain, whole, and safe."""

import json

import pytest

from spark_stream.cli.render import print_json, print_lines, print_table, printable


def test_a_piped_table_cuts_no_column_and_has_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "messages"), [("x" * 300, 7), ("y", 123_456)], "a title for terminals")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{'name':<300}  messages",
        f"{'x' * 300}         7",
        f"{'y':<300}    123456",
    ]


def test_a_table_without_rows_is_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "messages"), [])
    assert capsys.readouterr().out == "name  messages\n"


def test_what_is_not_there_is_a_dash_and_flags_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b", "c"), [(None, True, False)])
    assert capsys.readouterr().out.splitlines()[1] == "-  yes  no"


def test_names_cannot_steer_the_terminal_nor_break_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines(["a\x1b[31mb", "c\nd", "[red]e"])
    assert capsys.readouterr().out == "a\\x1b[31mb\nc\\nd\n[red]e\n"


def test_printable_text_stays_as_it_is() -> None:
    assert printable("Größe 日本") == "Größe 日本"


def test_json_is_ascii_whatever_the_locale(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"subject": "größe"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"subject": "größe"}
