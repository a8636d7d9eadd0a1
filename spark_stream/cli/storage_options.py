"""`--storage-option KEY=VALUE`: settings of the object store that volumes are in, anywhere among a command's words."""

import os
from collections.abc import Sequence

import typer

from spark_stream.cli.front_options import STORAGE_OPTION

_settings: dict[str, str] = {}  # to the command that this process runs


def storage_options() -> dict[str, str]:
    """Return what the words of the command say; without any the environment counts. Never shown: it holds secrets."""
    return dict(_settings)


def keep_storage_options(texts: Sequence[str]) -> None:
    """Keep settings for the verb. Raises BadParameter, which does not quote them."""
    _settings.clear()
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise typer.BadParameter("it takes KEY=VALUE, as aws_region=eu-central-1", param_hint=STORAGE_OPTION)
        _settings[key.strip().lower()] = value


def put_into_environment() -> None:
    """Let them count as part of the environment: for all that this process starts, and for each store that it opens."""
    os.environ.update({key.upper(): value for key, value in _settings.items()})
    _settings.clear()
