"""A message as JSON: it says which values are in base64, and nothing is lost."""

import json
from base64 import b64decode

from hypothesis import given
from hypothesis import strategies as st

from storage_core.message_json import message_fields

VALUES = st.none() | st.binary(max_size=12) | st.text(max_size=6).map(str.encode)


@given(VALUES, st.lists(st.tuples(st.text(max_size=3), VALUES), max_size=3), st.booleans())
def test_bytes_come_back_by_the_keys_that_are_in_base64(
    data: bytes | None, headers: list[tuple[str, bytes | None]], base64: bool
) -> None:
    shown = json.loads(json.dumps(message_fields("s", 1, "", headers, data, base64)))

    def read(key: str, value: str | None) -> bytes | None:
        return None if value is None else b64decode(value) if key in shown.get("base64", ()) else value.encode()

    assert shown.get("base64") == ["headers", "data"] if base64 else shown.get("base64") != []
    assert read("data", shown["data"]) == data
    assert [(key, read("headers", value)) for key, value in shown["headers"]] == headers


def test_text_is_written_as_text_unless_base64_is_asked_for() -> None:
    fields = "orders.new", 7, "2026-11-21T12:00:00.000000000Z", [("k", b"v"), ("n", None)]
    text = {"subject": fields[0], "seq": 7, "time": fields[2], "headers": [["k", "v"], ["n", None]]}
    assert message_fields(*fields, '{"caf\u00e9": 1}'.encode()) == text | {"data": '{"caf\u00e9": 1}'}
    assert message_fields(*fields, b"\xff") == text | {"data": "/w==", "base64": ["data"]}
    in_base64 = {"headers": [["k", "dg=="], ["n", None]], "data": "YQ==", "base64": ["headers", "data"]}
    assert message_fields(*fields, b"a", base64=True) == text | in_base64
