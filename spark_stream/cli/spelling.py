"""Options that spell keys of a configuration: a table has, by key, how the option looks and what its value becomes.

A command with a parameter `spelled` takes all options of a table in its place, and gets the keys that were typed.
"""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from inspect import Parameter, signature
from typing import Annotated, Any, NamedTuple

import typer

from spark_stream.cli.quantities import parse_duration_option, parse_pairs, parse_size


class Spelling(NamedTuple):
    """How a key is typed."""

    option: Any  # its type, Annotated with a typer.Option
    convert: Callable[[Any], Any]  # what was typed, to the value


def text(flag: str, metavar: str, help: str, convert: Callable[[str], Any] = str) -> Spelling:
    return Spelling(Annotated[str | None, typer.Option(flag, metavar=metavar, help=help)], convert)


def texts(flag: str, metavar: str, help: str, convert: Callable[[list[str]], Any]) -> Spelling:
    """An option that may be repeated."""
    return Spelling(Annotated[list[str] | None, typer.Option(flag, metavar=metavar, help=help)], convert)


def split_texts(flag: str, metavar: str, help: str) -> Spelling:
    """The same, where a comma does as well."""
    return texts(flag, metavar, help, lambda given: [name.strip() for names in given for name in names.split(",")])


def pairs(flag: str, help: str) -> Spelling:
    return texts(flag, "KEY=VALUE", help, lambda given: dict(parse_pairs(given, "=", flag)))


def count(flag: str, help: str) -> Spelling:
    return Spelling(Annotated[int | None, typer.Option(flag, metavar="N", help=help)], int)


def size(flag: str, help: str) -> Spelling:
    return text(flag, "SIZE", help, partial(parse_size, option=flag))


def duration(flag: str, help: str) -> Spelling:
    return text(flag, "DURATION", help, partial(parse_duration_option, option=flag))


def switch(name: str, help: str) -> Spelling:
    return Spelling(Annotated[bool | None, typer.Option(f"--{name}/--no-{name}", help=help)], bool)


def spells(table: Mapping[str, Spelling]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a table; decorates it below `app.command`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[Parameter] = []
        for parameter in signature(command).parameters.values():
            if parameter.name != "spelled":
                parameters.append(parameter)
                continue
            parameters += [
                parameter.replace(name=key, default=None, annotation=spelling.option) for key, spelling in table.items()
            ]

        @wraps(command)
        def with_options(**given: Any) -> None:
            typed = {key: given.pop(key) for key in table}
            spelled = {
                key: table[key].convert(value)
                for key, value in typed.items()
                if value not in (None, (), [])  # an option that was not repeated even once is empty
            }
            command(spelled=spelled, **given)

        with_options.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
        return with_options

    return decorate
