"""Tables away from a terminal: plain, whole, and safe; sizes."""

import json
import logging

import pytest

from spark_stream.look.terminal import Warnings, print_facts, print_json, print_lines, print_table, printable, show_size


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


def test_names_of_facts_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts("title\x1b[2J", [("metadata k\x1b[31m", "v\x07"), ("two\nlines", 1)])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x07" not in shown
    assert r"metadata k\x1b[31m: v\x07" in shown
    assert len(shown.splitlines()) == 5


def test_printable_text_stays_as_it_is() -> None:
    assert printable("Größe 日本") == "Größe 日本"


def test_json_is_ascii_whatever_the_locale(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"subject": "größe"})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"subject": "größe"}


def test_a_warning_is_told_once_in_a_command_and_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("storage_core.store.some")
    for _ in range(2):
        Warnings.listen()
        for _ in range(3):
            logger.warning("%s is gone\x1b[2J", "/volume")
        logger.info("nobody needs to know")
    assert capsys.readouterr().err == "warning: /volume is gone\\x1b[2J\n" * 2


def test_a_warning_that_nobody_hears_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    Warnings.listen()
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        logging.getLogger("storage_core").warning("something")
        monkeypatch.undo()
        try:
            full.close()
        except OSError:
            pass  # what is left in its buffer


@pytest.mark.parametrize(("size", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_a_size_is_shown_in_its_unit(size: int, shown: str) -> None:
    assert show_size(size) == shown
