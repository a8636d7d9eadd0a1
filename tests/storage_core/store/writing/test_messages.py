"""What writers give is checked before anything of it is stored: text that is no text."""

from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import Store
from storage_core.errors import InvalidMessageError
from storage_core.schema import HEADERS_TYPE

NOT_UTF8 = [b"\xff", b"a\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"]  # cut, overlong, surrogate, too high


def text(*values: bytes | None) -> pa.Array:
    """Return an array of strings of any bytes, as Spark has them after `cast(X'ff' AS STRING)`."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


def headers(*keys: bytes) -> pa.Array:
    """Return the headers of three rows: none, one, and one for each key."""
    pairs = pa.StructArray.from_arrays([text(b"good", *keys), pa.array([b"v"] * (len(keys) + 1))], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array([0, 0, 1, 1 + len(keys)], pa.int32()), pairs).cast(HEADERS_TYPE)


@pytest.mark.parametrize("bad", NOT_UTF8)
@pytest.mark.parametrize("column", ["subject", "msg_id", "header key"])
def test_text_that_is_not_utf8_is_refused_with_its_row(tmp_path: Path, column: str, bad: bytes) -> None:
    """Stored, it would be a message at which `get`, `view` and every other reader of Python's fails for ever."""
    rows = {"data": pa.array(["a", "b", "c"]), "subject": pa.array(["s"] * 3)}
    if column == "subject":
        rows["subject"] = text(b"s", b"s", bad)
    elif column == "msg_id":
        rows["msg_id"] = text(b"1", None, bad)
    else:
        rows["headers"] = headers(b"fine", bad)
    with Store.create(tmp_path / "s") as store:
        stream = store.add_stream({"name": "S", "subjects": ["s", ">"]})
        with pytest.raises(InvalidMessageError) as caught:
            stream.append(pa.table(rows))
        assert str(caught.value) == f"stream 'S', row 2 of the batch: {column} {bad!r} is not UTF-8"
        assert stream.info()["state"]["messages"] == 0


def test_text_of_any_alphabet_is_taken(tmp_path: Path) -> None:
    subject, key = "s.größe.尺寸.😀", "größe 😀"
    with Store.create(tmp_path / "s") as store:
        stream = store.add_stream({"name": "S", "subjects": ["s.>"]})
        stream.publish(subject, b"", headers=[(key, b"\xff")], msg_id="😀")
        message = stream.get(1)
        assert (message.subject, message.headers) == (subject, [(key, b"\xff")])


@pytest.mark.parametrize("others", [1, 1_000], ids=["few subjects", "many subjects"])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("t.1", "subject 't.1' is not taken; the stream takes s.>"),
        ("s.*", "subject 's.*' is not one that a message can carry"),
        ("s..1", "subject 's..1' is not one that a message can carry"),
        ("s." + "x" * 5000, f"subject 's.{'x' * 198}'... of 5002 bytes is not one that a message can carry"),
    ],
)
def test_a_subject_is_refused_whatever_was_taken_and_refused_before(
    tmp_path: Path, bad: str, reason: str, others: int
) -> None:
    good = [f"s.{number}" for number in range(others)]
    with Store.create(tmp_path / "s") as store:
        stream = store.add_stream({"name": "S", "subjects": ["s.>"]})
        wider = store.add_stream({"name": "T", "subjects": ["t.>", "*.1"]}, allow_overlap=True)
        for _ in range(2):
            stream.append(pa.table({"subject": good, "data": good}))
            with pytest.raises(InvalidMessageError, match=f"'S', row {others} of the batch: ") as caught:
                stream.append(pa.table({"subject": [*good, bad], "data": ["x"] * (others + 1)}))
            assert reason in str(caught.value)
            wider.append(pa.table({"subject": ["t.1", "s.1"], "data": ["x", "y"]}))
        assert (stream.info()["state"]["messages"], wider.info()["state"]["messages"]) == (2 * others, 4)
