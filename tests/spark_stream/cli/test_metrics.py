"""`jstream metrics`: printed, written and served."""

import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

from storage_core import Store


def test_metrics_are_printed_for_people_and_pipes(jstream: Any, orders: Store) -> None:
    out = jstream.done("metrics")
    assert f'jstream_stream_last_sequence{{store="{Path(orders.paths[0]).name}",stream="ORDERS"}} ' in out
    assert f'jstream_up{{path="{orders.paths[0]}"}} 1.0' in out


def test_metrics_are_written_for_a_cron_job(jstream: Any, orders: Store, tmp_path: Path) -> None:
    assert jstream.done("metrics", "--textfile", tmp_path / "jstream.prom") == ""
    written, shown = (tmp_path / "jstream.prom").read_text(), jstream.done("metrics")
    assert without_free_bytes(written) == without_free_bytes(shown)
    assert "jstream_stream_last_sequence" in written


def without_free_bytes(metrics: str) -> list[str]:
    """Return the lines but for those about the disks below, which others write to as well."""
    return [line for line in metrics.splitlines() if not line.startswith("jstream_volume_free_bytes")]


def test_file_that_cannot_be_written_is_named(jstream: Any, orders: Store, tmp_path: Path) -> None:
    outcome = jstream("metrics", "--textfile", tmp_path / "missing" / "jstream.prom")
    assert outcome.code == 1
    assert str(tmp_path / "missing") in outcome.err


def test_metrics_are_served_until_interrupted(jstream: Any, orders: Store) -> None:
    process = jstream.start("metrics", "--port", 0)
    try:
        said = process.stderr.readline().decode()
        url = re.fullmatch(r"metrics are served at (http://127\.0\.0\.1:\d+/metrics)\n", said)
        assert url is not None, said
        with urllib.request.urlopen(url[1]) as answer:
            assert "jstream_stream_last_sequence" in answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()


def test_file_and_port_exclude_each_other(jstream: Any, orders: Store, tmp_path: Path) -> None:
    outcome = jstream("metrics", "--textfile", tmp_path / "m", "--port", 0)
    assert outcome.code == 2
    assert "give one of them" in outcome.err


def test_store_that_is_not_there_is_an_error(jstream: Any, tmp_path: Path) -> None:
    outcome = jstream("metrics", "--store", tmp_path / "nothing", with_store=False)
    assert outcome.code == 1
    assert str(tmp_path / "nothing") in outcome.err


def test_a_textfile_in_no_directory_is_named(jstream, orders, tmp_path) -> None:
    outcome = jstream("metrics", "--textfile", tmp_path / "nowhere" / "x.prom")
    assert outcome.code == 1
    assert outcome.err == f"error: --textfile {tmp_path}/nowhere/x.prom: {tmp_path}/nowhere is no directory\n"
