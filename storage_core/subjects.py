"""Subjects: the dotted address of a message, and filters over it with `*` (one token) and `>` (the rest).

A subject is 1 to SUBJECT_SIZE_MAX bytes of UTF-8: tokens joined by dots, no token empty, no white space and no
control characters; a token that is exactly `*` or `>` makes it a filter, and such a subject cannot be published.

Source: the rules of NATS subjects (docs.nats.io, "Subject-Based Messaging"), with the bound added.
"""

import re

SUBJECT_SIZE_MAX = 4096  # bytes of UTF-8; bounds summaries and what a damaged length can claim
# White space and control characters, written out: RE2's \s is that of ASCII, Python's is not.
_SPACE = r"\x00-\x20\x7f-\xa0" + "\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_TOKEN = f"[^.{_SPACE}]+"
LITERAL_PATTERN = rf"^{_TOKEN}(\.{_TOKEN})*$"
_SUBJECT = re.compile(LITERAL_PATTERN)


def is_literal(subject: str) -> bool:
    """Return whether a message may carry this subject: well formed and without wildcards."""
    return is_filter(subject) and not {"*", ">"} & set(subject.split("."))


def is_filter(subject: str) -> bool:
    """Return whether this is a well-formed filter; every literal subject is one. `>` may only come last."""
    try:
        size = len(subject.encode())
    except UnicodeEncodeError:  # half a surrogate pair, as Python makes of arguments that are no UTF-8
        return False
    if not _SUBJECT.fullmatch(subject) or size > SUBJECT_SIZE_MAX:
        return False
    return ">" not in subject.split(".")[:-1]


def matches(subject_filter: str, subject: str) -> bool:
    """Return whether the filter takes the literal subject."""
    want, have = subject_filter.split("."), subject.split(".")
    for position, token in enumerate(want):
        if token == ">":
            return len(have) > position
        if position >= len(have) or token not in ("*", have[position]):
            return False
    return len(want) == len(have)


def filters_overlap(left_filter: str, right_filter: str) -> bool:
    """Return whether some literal subject is taken by both filters."""
    left, right = left_filter.split("."), right_filter.split(".")
    for position in range(max(len(left), len(right))):
        a = left[position] if position < len(left) else None
        b = right[position] if position < len(right) else None
        if a == ">" or b == ">":
            return a is not None and b is not None
        if a is None or b is None:
            return False
        if a != b and "*" not in (a, b):
            return False
    return True
