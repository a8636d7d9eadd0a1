"""TOML files as tables, and their tables as checked values: each refusal names file, key, what came and what is taken.

`${NAME}` and `${NAME:-default}` in a text stand for a variable of the environment, so that one file serves several
machines. Relative paths are meant from the folder of the file, so that it does not matter who starts the program where.
"""

import errno
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from spark_stream.pipelines.errors import DefinitionError
from storage_core.files import OS_FILES
from storage_core.live.login import is_live, parse_address
from storage_core.paths import is_in_object_store, local_path, volume_path
from storage_core.suggestions import instead, not_one_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KAFKA_SCHEME = "kafka://"
S = TypeVar("S", bound=msgspec.Struct)
FILE_SIZE_MAX = 1024 * 1024  # bytes; such a file is written by hand. Also of its texts with variables put in
DEPTH_MAX = 32  # tables and lists within each other
_INTEGERS = range(-(2**63), 2**63)  # of TOML
_STRING = re.compile(  # or a comment, which may hold what looks like one; an open one reaches to the end
    r'(?s)"""(?:\\.|[^\\])*?(?:"""|$)|' + r"'''.*?(?:'''|$)|" + r'"(?:\\.|[^"\\\n])*"?|' + r"'[^'\n]*'?|#[^\n]*"
)
_BROKER = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a value of TOML has to be for a type of a struct, and how messages call it. Structs use no other types.
_KINDS: dict[type[inspect.Type], tuple[tuple[type, ...], str]] = {
    inspect.StrType: ((str,), "text"),
    inspect.LiteralType: ((str,), "text"),
    inspect.IntType: ((int,), "a whole number"),
    inspect.BoolType: ((bool,), "true or false"),
    inspect.ListType: ((list,), "a list"),
    inspect.DictType: ((dict,), "a table"),
    inspect.NoneType: ((), "nothing"),
}


def read_toml(file: Path) -> dict[str, Any]:
    """Return what the file holds; raises DefinitionError if it is no TOML, OSError if it cannot be read."""
    data = _content(file)
    try:
        text = data.decode("utf-8-sig")  # some editors put a byte order mark there
        _check_depth(file, text)
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise DefinitionError(file, "", f"is not UTF-8: {error}") from error
    except RecursionError as error:
        raise DefinitionError(file, "", TOO_DEEP) from error
    except DefinitionError:
        raise
    except ValueError as error:  # of both libraries
        raise DefinitionError(file, "", f"is not TOML: {error}") from error


TOO_DEEP = f"is not taken: lists or tables too deep within each other; at most {DEPTH_MAX} are"


def _content(file: Path) -> bytes:
    """Return the bytes of a regular file, whose size is looked at first."""
    try:
        opened = OS_FILES.open(Path(os.path.realpath(file)))
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise DefinitionError(file, "", "is not a regular file") from error
        raise
    with opened:
        if opened.size() > FILE_SIZE_MAX:
            raise DefinitionError(file, "", f"{opened.size()} bytes are too many, at most {FILE_SIZE_MAX} are taken")
        return opened.read_at(0, FILE_SIZE_MAX)


def _check_depth(file: Path, text: str) -> None:
    """Raise DefinitionError for a dotted key that is too long: the parser's time grows with its square or more."""
    for key in re.split(r"[^\w\-. \t]", _STRING.sub("s", text)):
        if key.count(".") >= DEPTH_MAX:
            raise DefinitionError(file, "", TOO_DEEP)


def check_keys(file: Path, place: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise DefinitionError for a key that is not among `known`, with the nearest one."""
    for key in table:
        if key not in known:
            taken = instead(key, known, "valid ones are")
            raise DefinitionError(file, _join(place, key), f"there is no such key{taken}")


def to_struct(file: Path, place: str, table: object, kind: type[S]) -> S:
    """Return the table `place` of the file as a struct of `kind`; raises DefinitionError."""
    if not isinstance(table, Mapping):
        raise DefinitionError(file, place, f"{table!r} is not a table; write [{place}] and its keys below it")
    fields = msgspec.structs.fields(kind)
    check_keys(file, place, table, [field.encode_name for field in fields])
    for field in fields:
        key = _join(place, field.encode_name)
        if field.encode_name in table:
            _check_value(file, key, table[field.encode_name], inspect.type_info(field.type))
        elif field.required:
            raise DefinitionError(file, key, "is missing")
    return msgspec.convert(table, kind)


def substitute(file: Path, value: Any, but: Sequence[str] = ()) -> Any:
    """Return a table with variables of the environment put in, at any depth, except below the keys `but`.

    Times become text in ISO 8601, of UTC if they name no zone: so they are taken wherever text is. Raises
    DefinitionError for a variable that is not set, and for what is too deep, too long or too large to be meant.
    """
    return _Substitution(file, but).of("", value, 0)


class _Substitution:
    """The values of one file, with how much text they may still become."""

    def __init__(self, file: Path, but: Sequence[str]) -> None:
        self._file, self._but = file, but
        self._size_left = FILE_SIZE_MAX  # characters

    def of(self, place: str, value: Any, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise DefinitionError(self._file, "", TOO_DEEP)
        if isinstance(value, datetime):
            return (value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)).isoformat()
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, str):
            return self._text(place, value)
        if isinstance(value, int) and value not in _INTEGERS:
            raise DefinitionError(self._file, place, "the number does not fit into 64 bits")
        if isinstance(value, list):
            return [self.of(place, item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {
                key: item if _join(place, key) in self._but else self.of(_join(place, key), item, depth + 1)
                for key, item in value.items()
            }
        return value

    def _text(self, place: str, text: str) -> str:
        """Return the text with its variables put in, from left to right; what is no variable stays as it is."""
        parts, at = [], 0
        while (start := text.find("${", at)) >= 0:
            name = _VARIABLE.match(text, start + 2)
            end = name.end() if name is not None else start + 2
            default = None
            if name is not None and text.startswith(":-", end):
                end, default_at = text.find("}", end), end + 2
                if end < 0:
                    break  # nor is there one for any variable behind it
                default = text[default_at:end]
            if name is None or not text.startswith("}", end):
                parts.append(text[at:end])
                at = end
                continue
            parts += (text[at:start], self._variable(place, name[0], default))
            at = end + 1
        return "".join([*parts, text[at:]])

    def _variable(self, place: str, name: str, default: str | None) -> str:
        value = os.environ.get(name) or default
        if value is None:
            raise DefinitionError(
                self._file, place, f"the variable {name} is not set; ${{{name}:-default}} would do without it"
            )
        self._size_left -= len(value)
        if self._size_left < 0:
            raise DefinitionError(
                self._file, place, f"the variables put in are longer than {FILE_SIZE_MAX} characters together"
            )
        return value


def place_of(file: Path, key: str, text: str, remote: bool = False) -> str:
    """Return the absolute path that a text in the file means; what is relative is meant from the folder of the file.

    `remote`: URIs of other file systems are taken, and stay as they are. Raises DefinitionError.
    """
    if remote and is_in_object_store(text):
        volume_of(file, key, text)
        return text
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", text)
    if remote and scheme is not None and scheme[1].lower() != "file":
        return text
    expanded = os.path.expanduser(text)
    try:
        return local_path(expanded if scheme or os.path.isabs(expanded) else str(file.parent / expanded), key)
    except ValueError as error:
        raise DefinitionError(file, "", str(error)) from error


def is_kafka(text: str) -> bool:
    """Return whether it is the address of a Kafka broker."""
    return text.lower().startswith(KAFKA_SCHEME)


def volume_of(file: Path, key: str, text: str) -> str:
    """Return where a volume is: the same, or its address in an object store, or a server's. Raises DefinitionError."""
    if is_kafka(text):
        match = _BROKER.fullmatch(text[len(KAFKA_SCHEME) :])
        if match is None:
            raise DefinitionError(file, key, f"{text!r} is no address of a broker, such as kafka://host:9092")
        return f"{KAFKA_SCHEME}{match[1]}:{match[2] or 9092}"
    if not is_in_object_store(text) and not is_live(text):
        return place_of(file, key, text)
    try:
        return str(parse_address(text, key)) if is_live(text) else volume_path(text, key)
    except ValueError as error:
        raise DefinitionError(file, "", str(error)) from error


def _check_value(file: Path, key: str, value: Any, wanted: inspect.Type) -> None:
    """Raise DefinitionError unless the value is of the type `wanted`, naming the innermost key that is not."""
    types = wanted.types if isinstance(wanted, inspect.UnionType) else (wanted,)
    fitting = next((kind for kind in types if type(value) in _KINDS[type(kind)][0]), None)
    if isinstance(fitting, inspect.ListType):
        for at, item in enumerate(value):
            _check_value(file, f"{key}[{at}]", item, fitting.item_type)
    elif isinstance(fitting, inspect.DictType):
        for name, item in value.items():
            _check_value(file, f"{key}.{name}", item, fitting.value_type)
    elif isinstance(fitting, inspect.LiteralType) and value not in fitting.values:
        choices = [str(choice) for choice in fitting.values]
        raise DefinitionError(file, key, not_one_of(value, choices))
    too_small = isinstance(fitting, inspect.IntType) and fitting.ge is not None and value < fitting.ge
    if fitting is None or too_small:
        taken = " or ".join(_words(kind) for kind in types if not isinstance(kind, inspect.NoneType))
        raise DefinitionError(file, key, f"{value!r} is not {taken}")


def _words(kind: inspect.Type) -> str:
    least = kind.ge if isinstance(kind, inspect.IntType) else None
    return _KINDS[type(kind)][1] + (f" from {least} on" if least is not None else "")


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
