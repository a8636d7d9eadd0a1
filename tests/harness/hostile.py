"""A stream whose subjects, headers, payloads and descriptions try to be more than text."""

import json
import random

from storage_core import Store

SCRIPTS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "'\"><svg/onload=alert(1)>",
    "</pre></script><script>alert(1)//",
    "{{7*7}}{% include '/etc/passwd' %}",
    "<a href='javascript:alert(1)'>x</a>",
    "\u202egnp.exe\u2066\u200b",
    "\x1b]0;owned\x07\x1b[31m",
    "a\x00b",
    "Z" + "\u0300" * 400,
    "\U000e0041\ufeff\u2028",
    "&lt;script&gt;<!-- ]]>",
]


def hostile_texts() -> list[bytes]:
    """Return 200 payloads: scripts in all places of JSON, MessagePack and text, and bytes that are nothing."""
    draw = random.Random(18)
    made = [text.encode("utf-8", "surrogatepass") for text in SCRIPTS]
    made += [json.dumps({text: [text, {"x": text}]}).encode() for text in SCRIPTS]
    made += [
        b"\x81\xa1k" + bytes([0xD9, len(text.encode())]) + text.encode() for text in SCRIPTS if len(text.encode()) < 256
    ]
    made += [
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b"\x91" * 100_000,
        b'{"n": 1' + b"0" * 6000 + b"}",
        b"\xff\xfe\x00" * 50,
    ]
    while len(made) < 199:
        made.append(bytes(draw.randrange(256) for _ in range(draw.randrange(1, 300))))
    return [*made, b"<b>" + b"x" * (5 << 20)]


def make_hostile(store: Store) -> list[bytes]:
    """Make the stream HOSTILE and its consumer `reader`; return the payloads."""
    texts = hostile_texts()
    letters = [
        "".join(letter for letter in text if letter > " " and not letter.isspace() and letter not in ".*>\x7f")
        for text in SCRIPTS
    ]
    subjects = [f"h.{text or 'x'}"[:1000] for text in letters]
    stream = store.add_stream(
        {"name": "HOSTILE", "subjects": ["h.>"], "description": SCRIPTS[0], "metadata": {SCRIPTS[1]: SCRIPTS[2]}}
    )
    stream.append(
        [
            {"subject": subjects[at % len(subjects)], "data": text, "headers": [{"key": "K<i>", "value": text[:300]}]}
            for at, text in enumerate(texts)
        ]
    )
    stream.add_consumer({"name": "reader", "description": SCRIPTS[3]})
    return texts
