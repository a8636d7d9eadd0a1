"""What `append` returns: a range of sequences that also counts."""

from pathlib import Path

from storage_core import Store


def test_an_append_counts_what_it_stored_and_what_the_stream_had(tmp_path: Path) -> None:
    stream = Store.create([tmp_path / "a"]).add_stream({"name": "S"})
    got = stream.append([{"data": b"1", "msg_id": "a"}, {"data": b"2", "msg_id": "b"}])
    assert (got.stored, got.duplicates) == (2, 0)
    got = stream.append([{"data": b"1", "msg_id": "a"}, {"data": b"3", "msg_id": "c"}, {"data": b"4"}])
    first, *rest = got
    assert (first, rest, got.start, got.stop, len(got)) == (3, [4, 5], 3, 6, 3)
    assert got == range(3, 6) and range(3, 6) == got and hash(got) == hash(range(3, 6)) and 5 in got
    assert got != range(3, 5) and got != [3, 4, 5] and got[-1] == 5 and list(got[1:]) == [4, 5]
    assert (got.stored, got.duplicates) == (2, 1)
    assert repr(got) == "AppendedRange(range(3, 6), stored=2, duplicates=1)"
    nothing = stream.append([])
    assert (nothing == range(6, 6), bool(nothing), nothing.stored, nothing.duplicates) == (True, False, 0, 0)
    assert stream.remove(got) == 2
