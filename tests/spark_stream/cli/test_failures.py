"""What becomes of an error: an exit code, one line, and never a traceback."""

import errno

import pyarrow as pa
import pytest
import typer
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from spark_stream.cli.failures import CommandFailed, RootGroup, WrongUsage
from storage_core.errors import DiskFullError, NotFoundError, StoreBusyError

CASES = [
    (NotFoundError("no stream 'X'"), 1, "[JSTREAM_NOT_FOUND] no stream 'X'"),
    (StoreBusyError("held by pid 7"), 1, "[JSTREAM_STORE_BUSY] held by pid 7"),
    (DiskFullError(), 1, "[JSTREAM_DISK_FULL] DiskFullError"),
    (CommandFailed("not done"), 1, "not done"),
    (WrongUsage("pass A"), 2, "pass A"),
    (ValueError("max_age: 5 is not supported"), 2, "max_age: 5 is not supported"),
    (PermissionError(errno.EACCES, "Permission denied", "/volume"), 1, "/volume: permission denied"),
    (OSError(errno.EROFS, "Read-only file system", "/volume"), 1, "/volume: read-only file system"),
    (OSError(errno.EXDEV, "Invalid cross-device link", "/a", None, "/b"), 1, "/a and /b: invalid cross-device link"),
    (OSError("something"), 1, "something"),
    (pa.ArrowInvalid("bad buffer"), 1, "internal error, ArrowInvalid: bad buffer (JSTREAM_TRACEBACK=1 shows where)"),
    (
        PySparkException("[TABLE_GONE] It is gone. SQLSTATE: 42P01\n\nJVM stacktrace:\n\tat x"),
        1,
        "TABLE_GONE: It is gone.",
    ),
    (KeyError("x"), 1, "internal error, KeyError: 'x' (JSTREAM_TRACEBACK=1 shows where)"),
    (NotFoundError("two\nlines \x1b[2J"), 1, "[JSTREAM_NOT_FOUND] two lines \\x1b[2J"),
]


def run(error: BaseException, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    app = typer.Typer(cls=RootGroup)

    @app.callback()
    def root() -> None: ...

    @app.command("fail")
    def fail() -> None:
        raise error

    result = CliRunner().invoke(app, ["fail"], env=environment)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(("error", "code", "text"), CASES, ids=[repr(case[0]) for case in CASES])
def test_an_error_is_an_exit_code_and_one_line(error: Exception, code: int, text: str) -> None:
    assert run(error) == (code, "", f"error: {text}\n")


def test_a_refusal_because_of_an_error_of_the_store_shows_its_code() -> None:
    refusal = CommandFailed("there is none; make one")
    refusal.__cause__ = NotFoundError("no stream 'X'")
    assert run(refusal) == (1, "", "error: [JSTREAM_NOT_FOUND] there is none; make one\n")


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (typer.Abort(), 130), (typer.Exit(7), 7)])
def test_an_end_that_is_no_error_is_quiet(error: BaseException, code: int) -> None:
    assert run(error) == (code, "", "")


def test_whoever_wants_to_know_where_gets_the_error_itself() -> None:
    code, _, said = run(KeyError("x"), {"JSTREAM_TRACEBACK": "1"})
    assert code == 1
    assert said.startswith("error: internal error, KeyError")
