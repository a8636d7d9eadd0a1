"""Numbers beyond what a store can hold are wrong usage, whichever argument they come in."""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
import typer

from spark_stream.cli.app import app

HUGE, LARGEST = 10**20, 2**63 - 1


def integer_parameters() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of each command with one of its integer parameters."""

    def walk(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        for name in command.list_commands(None) if hasattr(command, "commands") else ():
            yield from walk((*words, name), command.get_command(None, name))
        hints = get_type_hints(command.callback) if command.callback is not None else {}
        for parameter in command.params:
            hint = hints.get(parameter.name)
            if {int, list[int]} & {hint, *get_args(hint)}:
                yield words, parameter

    return walk((), typer.main.get_command(app))


def line(words: tuple[str, ...], parameter: Any, number: int) -> list[str]:
    """Return a command line with the number there, and something for everything else that it needs."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.get_command(None, word)
    if parameter.param_type_name == "option":
        rest = ["x" for one in command.params if one.param_type_name == "argument" and one.required]
        return [*words, *rest, parameter.opts[0], str(number)]
    places = [one for one in command.params if one.param_type_name == "argument"]
    return [*words, *(["x"] * [one.name for one in places].index(parameter.name)), str(number)]


CASES = list(integer_parameters())


@pytest.mark.parametrize(("words", "parameter"), CASES, ids=[f"{' '.join(words)} {one.name}" for words, one in CASES])
def test_a_number_too_large_is_wrong_usage(jstream, words: tuple[str, ...], parameter: Any) -> None:
    for number in (HUGE, -HUGE):
        outcome = jstream(*line(words, parameter, number) if number > 0 else _inline(words, parameter, number))
        assert outcome.code == 2, outcome
        assert len(outcome.err.splitlines()) == 1


def _inline(words: tuple[str, ...], parameter: Any, number: int) -> list[str]:
    """Return the same for a number that would be taken for an option."""
    *before, last = line(words, parameter, number)
    if parameter.param_type_name == "option":
        return [*before[:-1], f"{before[-1]}={last}"]
    return [*before, "--", last]


def test_every_command_with_numbers_was_tried() -> None:
    assert len(CASES) >= 15
    assert {("stream", "view"), ("stream", "get"), ("stream", "rmm"), ("consumer", "next"), ("sub",)} <= {
        words for words, _ in CASES
    }


TEXTS: list[list[object]] = [
    ["consumer", "reset", "ORDERS", "c", "--to", HUGE],
    ["consumer", "add", "ORDERS", "d", "--deliver", HUGE],
    ["consumer", "add", "ORDERS", "d", "--ack-wait", f"{HUGE}h"],
    ["consumer", "pause", "ORDERS", "c", f"{HUGE}h"],
    ["stream", "add", "NEXT", "--max-msg-size", HUGE],
    ["stream", "add", "NEXT", "--dupe-window", f"{HUGE}h"],
    ["stream", "add", "NEXT", "--block-max-bytes", f"{HUGE}GB"],
    ["stream", "view", "ORDERS", "--since", f"{HUGE}h"],
    ["events", "--since", f"{HUGE}h"],
]


@pytest.mark.parametrize("words", TEXTS, ids=lambda words: " ".join(map(str, words)))
def test_a_quantity_too_large_is_wrong_usage(jstream, orders, words: list[object]) -> None:
    orders.stream("ORDERS").add_consumer({"name": "c"})
    outcome = jstream(*words)
    assert outcome.code == 2, outcome
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["stream", "view", "ORDERS", LARGEST],
        ["stream", "view", "ORDERS", LARGEST, "--id", LARGEST],
        ["stream", "get", "ORDERS", LARGEST],
        ["stream", "rmm", "ORDERS", LARGEST, "--force"],
        ["stream", "purge", "ORDERS", "--seq", LARGEST, "--force"],
        ["stream", "purge", "ORDERS", "--keep", LARGEST, "--force"],
        ["export", "ORDERS", "-", "--id", LARGEST, "--end", LARGEST],
        ["sub", "orders.>", "--last", LARGEST, "--count", 1],
        ["events", "--last", LARGEST],
        ["consumer", "next", "ORDERS", "c", "--count", LARGEST, "--wait", "1ms"],
        ["consumer", "reset", "ORDERS", "c", "--to", LARGEST],
        ["consumer", "add", "ORDERS", "d", "--max-deliver", LARGEST, "--max-pending", LARGEST],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_the_largest_number_is_no_internal_error(jstream, orders, words: list[object]) -> None:
    orders.stream("ORDERS").add_consumer({"name": "c"})
    outcome = jstream(*words)
    assert outcome.code in (0, 1, 2)
    assert "internal error" not in outcome.err
