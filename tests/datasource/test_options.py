"""The table of options: every name is known, and whatever cannot be meant is refused by name."""

from dataclasses import fields

import pytest

from datasource.limits import Limits
from datasource.options import OPTIONS, READ, STREAM_READ, STREAM_WRITE, WRITE, Use, check_options
from datasource.settings import ReadSettings, StreamReadSettings, WriteSettings


def test_names_are_unique_and_aliases_lead_to_an_option() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)
    for option in OPTIONS:
        if option.alias:
            assert option.alias in {other.name for other in OPTIONS if not other.alias}


def test_options_are_found_whatever_their_case() -> None:
    assert check_options({"startingoffsets": "earliest", "STREAM": "A"}, READ) == {
        "startingOffsets": "earliest",
        "stream": "A",
    }


@pytest.mark.parametrize("use", [READ, WRITE, STREAM_WRITE])
@pytest.mark.parametrize(
    ("wrong", "right"), [("steam", "stream"), ("startingoffset", "startingOffsets"), ("pth", "path")]
)
def test_misspelt_option_is_refused_with_the_nearest_name(use: Use, wrong: str, right: str) -> None:
    with pytest.raises(ValueError, match=f"unknown option '{wrong}' of jstream; did you mean '{right}'"):
        check_options({wrong: "x"}, use)


def test_unknown_option_that_is_near_none_is_refused_with_what_is_taken() -> None:
    with pytest.raises(ValueError, match="unknown option 'zzzzzz' of jstream; batch writes take path, paths, stream"):
        check_options({"zzzzzz": "x"}, WRITE)
    with pytest.raises(
        ValueError,
        match=r"batch reads take path, .*lockTimeout, .*nats\..*; streaming reads also consumerTakeover, max",
    ):
        check_options({"zzzzzz": "x"}, READ)


@pytest.mark.parametrize(
    ("name", "use", "says"),
    [
        ("compression", READ, "for batch writes and streaming writes only; this is one of the batch reads"),
        ("writerId", READ, "for batch writes and streaming writes only"),
        ("batchId", STREAM_WRITE, "for batch writes only; this is one of the streaming writes"),
        ("startingOffsets", WRITE, "for batch reads and streaming reads only"),
        ("table", STREAM_READ, "for batch reads only"),
        ("endingOffsets", WRITE, "for batch reads only"),
    ],
)
def test_option_that_means_something_elsewhere_only_says_where(name: str, use: Use, says: str) -> None:
    with pytest.raises(ValueError, match=f"option '{name}' is {says}"):
        check_options({name.lower(): "1"}, use)


@pytest.mark.parametrize("option", [one for one in OPTIONS if one.uses == (STREAM_READ,)], ids=lambda one: one.name)
def test_streaming_options_are_refused_by_name_in_batch_reads(option: object) -> None:
    name = option.name  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=f"'{name}' is for streaming reads only; this is one of the batch reads"):
        check_options({name: "1"}, READ)


@pytest.mark.parametrize("order", [("path", "paths"), ("paths", "path")])
def test_alias_beside_its_name_is_an_error(order: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="'paths?' and 'paths?' mean the same"):
        check_options(dict.fromkeys(order, "/a"), READ)


def test_every_option_that_works_says_what_it_means() -> None:
    for option in OPTIONS:
        if not option.alias:
            assert option.meaning.endswith("."), option.name
            assert option.kind.words, option.name


@pytest.mark.parametrize(
    ("use", "settings"),
    [(READ, (ReadSettings,)), (STREAM_READ, (StreamReadSettings, Limits)), (STREAM_WRITE, (WriteSettings,))],
)
def test_options_and_fields_of_settings_are_each_others(use: Use, settings: tuple[type, ...]) -> None:
    of_no_option = {"limits", "batch_id", "expected_last_sequence", "checkpoint", "query_name"}
    held = {field.name for kind in settings for field in fields(kind)} - of_no_option
    taken = {option.setting for option in OPTIONS if use in option.uses and not option.alias}
    assert {"streams" if name == "stream" else name for name in held} == taken
