"""Errors of pipelines: codes, fields, the same behind a pickle, and sentences as they were reviewed."""

import pickle
from typing import Any

import pytest

from spark_stream.pipelines import errors
from storage_core.errors import StorageError

MADE: list[tuple[StorageError, dict[str, Any], str]] = [
    (
        errors.DefinitionError("/etc/orders.toml", "sink.kind", "'consol' is not taken"),
        {"file": "/etc/orders.toml", "key": "sink.kind"},
        "[JSTREAM_DEFINITION] /etc/orders.toml: sink.kind: 'consol' is not taken",
    ),
    (
        errors.DefinitionError("/etc/orders.toml", "", "is not UTF-8"),
        {"file": "/etc/orders.toml"},
        "[JSTREAM_DEFINITION] /etc/orders.toml: is not UTF-8",
    ),
    (
        errors.CheckpointHeldError("/check", "etl run, process 7 on host a"),
        {"checkpoint": "/check", "owner": "etl run, process 7 on host a"},
        "[JSTREAM_CHECKPOINT_HELD] checkpoint /check is held by etl run, process 7 on host a",
    ),
    (
        errors.RunFailedError("DataLossError: [JSTREAM_DATA_LOSS] sequences 1 to 5 are lost", "JSTREAM_DATA_LOSS"),
        {"cause": "JSTREAM_DATA_LOSS"},
        "[JSTREAM_RUN_FAILED] DataLossError: [JSTREAM_DATA_LOSS] sequences 1 to 5 are lost",
    ),
]


@pytest.mark.parametrize(("error", "fields", "shown"), MADE)
def test_an_error_has_a_code_and_fields_also_behind_a_pickle(
    error: StorageError, fields: dict[str, Any], shown: str
) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and isinstance(again, errors.PipelineError)
    assert again.fields == error.fields == fields
    again.shows_code = True
    assert str(again) == shown


def test_a_definition_that_is_wrong_is_a_value_error() -> None:
    assert issubclass(errors.DefinitionError, ValueError)
