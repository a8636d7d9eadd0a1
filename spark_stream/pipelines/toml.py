"""TOML files as tables, and their tables as checked values: each refusal names file, key, what came and what is taken.

`${NAME}` and `${NAME:-default}` in a text stand for a variable of the environment, so that one file serves several
machines. Relative paths are meant from the folder of the file, so that it does not matter who starts the program where.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from storage_core.paths import local_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

S = TypeVar("S", bound=msgspec.Struct)
FILE_SIZE_MAX = 1024 * 1024  # bytes; such a file is written by hand
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_AT = re.compile(r"(?s)(.*?)(?: - at `(?:key in )?\$(.*)`)?")
_EXPECTED = re.compile(r"Expected `(.+)`, got `(.+)`")
_LACKING = re.compile(r"Object missing required field `(.+)`")
_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
}
_PYTHON_KINDS = {"str": str, "int": int, "float": float, "bool": bool, "array": list, "object": dict}


class DefinitionError(ValueError):
    """A definition file asks for something that makes no sense. The text names the file, the key and what is taken."""

    def __init__(self, file: object, key: str, text: str) -> None:
        super().__init__(f"{file}: {key}: {text}" if key else f"{file}: {text}")


def read_toml(file: Path) -> dict[str, Any]:
    """Return what the file holds; raises DefinitionError if it is no TOML, OSError if it cannot be read."""
    data = file.read_bytes()
    if len(data) > FILE_SIZE_MAX:
        raise DefinitionError(file, "", f"{len(data)} bytes are too many, at most {FILE_SIZE_MAX} are taken")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))  # some editors put a byte order mark there
    except UnicodeDecodeError as error:
        raise DefinitionError(file, "", f"is not UTF-8: {error}") from error
    except RecursionError as error:
        raise DefinitionError(file, "", "is not taken: lists or tables too deep within each other") from error
    except ValueError as error:  # of both libraries
        raise DefinitionError(file, "", f"is not TOML: {error}") from error


def check_keys(file: Path, place: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise DefinitionError for a key that is not among `known`, with the nearest one."""
    for key in table:
        if key not in known:
            near = nearest(key, known)
            taken = near or f"; taken are {', '.join(known)}"
            raise DefinitionError(file, _join(place, key), f"there is no such key{taken}")


def to_struct(file: Path, place: str, table: object, kind: type[S]) -> S:
    """Return the table `place` of the file as a struct of `kind`; raises DefinitionError."""
    if not isinstance(table, Mapping):
        raise DefinitionError(file, place, f"{table!r} is not a table; write [{place}] and its keys below it")
    check_keys(file, place, table, [field.encode_name for field in msgspec.structs.fields(kind)])
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise _translated(file, place, table, str(error)) from error


def check_choice(file: Path, key: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise DefinitionError(
            file, key, f"{value!r} is not one of {', '.join(choices)}{nearest(value.lower(), choices)}"
        )


def nearest(name: str, known: Sequence[str]) -> str:
    """Return `; did you mean x?` for the known name that is closest, or nothing if none is close."""
    close = get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else ""


def substitute(file: Path, place: str, value: Any, but: Sequence[str] = ()) -> Any:
    """Return the value with variables of the environment put in, at any depth, except below the keys `but`.

    Times become text in ISO 8601, of UTC if they name no zone: so they are taken wherever text is.
    """
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _variable(file, place, found), value)
    if isinstance(value, list):
        return [substitute(file, place, one, but) for one in value]
    if isinstance(value, dict):
        return {
            key: one if _join(place, key) in but else substitute(file, _join(place, key), one, but)
            for key, one in value.items()
        }
    return value


def place_of(file: Path, key: str, text: str, remote: bool = False) -> str:
    """Return the absolute path that a text in the file means; what is relative is meant from the folder of the file.

    `remote`: URIs of other file systems are taken, and stay as they are. Raises DefinitionError.
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", text)
    if remote and scheme is not None and scheme[1].lower() != "file":
        return text
    expanded = os.path.expanduser(text)
    try:
        return local_path(expanded if scheme or os.path.isabs(expanded) else str(file.parent / expanded), key)
    except ValueError as error:
        raise DefinitionError(file, "", str(error)) from error


def _variable(file: Path, place: str, found: "re.Match[str]") -> str:
    value = os.environ.get(found[1]) or found[2]
    if value is None:
        raise DefinitionError(
            file, place, f"the variable {found[1]} is not set; ${{{found[1]}:-default}} would do without it"
        )
    return value


def _translated(file: Path, place: str, table: Mapping[str, Any], text: str) -> DefinitionError:
    """Return the error that msgspec's text is about: it says what kind came, and we have what came itself."""
    found = _AT.fullmatch(text)
    what, path = (found[1], found[2] or "") if found else (text, "")
    lacking = _LACKING.fullmatch(what)
    if lacking:
        return DefinitionError(file, _join(place + path, lacking[1]), "is missing")
    expected = _EXPECTED.fullmatch(what)
    if not expected:
        return DefinitionError(file, place + path, what)
    if path.endswith("[...]"):  # some value of a table: the first that is of the kind that came
        path = path.removesuffix("[...]")
        kind = _PYTHON_KINDS.get(expected[2], object)
        path += next(f".{key}" for key, one in _look_up(table, path).items() if type(one) is kind)
    taken = " or ".join(_KINDS.get(one, one) for one in expected[1].split(" | ") if one != "null")
    return DefinitionError(file, place + path, f"{_look_up(table, path)!r} is not {taken}")


def _look_up(table: Any, path: str) -> Any:
    for name, at in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        try:
            table = table[name] if name else table[int(at)]
        except (KeyError, IndexError, TypeError, ValueError):
            return table
    return table


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
