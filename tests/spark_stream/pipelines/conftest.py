"""Pipelines from a few lines of TOML, and messages to put through them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_stream.pipelines.config import Pipeline, load_pipeline

Make = Callable[..., Pipeline]


@pytest.fixture
def pipeline(tmp_path: Path) -> Make:
    """Makes a pipeline of tables given as text; a source and a sink are put in where none is given."""

    def make(*tables: str, name: str = "orders") -> Pipeline:
        text = "\n".join(tables)
        lines = ['checkpoint = "checkpoint"']
        if "[source]" not in text:
            lines += ["[source]", 'store = "volume"', 'stream = "ORDERS"']
        if "[sink]" not in text:
            lines += ["[sink]", 'kind = "console"']
        file = tmp_path / f"{name}.toml"
        file.write_text("\n".join([*lines, text]) + "\n")
        return load_pipeline(file)

    return make
