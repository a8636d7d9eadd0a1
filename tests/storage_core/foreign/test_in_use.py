"""Whether a store is in use: what /proc says of this very machine, and of made-up processes."""

import os
import subprocess
import sys
from pathlib import Path

from storage_core.foreign.in_use import Writer, writers


def test_a_process_that_writes_is_named_and_one_that_reads_is_not(tmp_path: Path) -> None:
    block = tmp_path / "1.blk"
    block.write_bytes(b"")
    hold = "import sys; kept = open(sys.argv[1], sys.argv[2]); print(flush=True); sys.stdin.read()"
    for mode, count in (("r+", 1), ("r", 0)):
        command = [sys.executable, "-c", hold, str(block), mode]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            found = writers([tmp_path])
            assert [one.process_id for one in found] == [holder.pid] * count
            assert all("is in use" in one.describe() and "1.blk" in one.describe() for one in found)
            assert writers([tmp_path / "1.bl"]) == []
            holder.communicate()
    with block.open("rb+"):
        assert writers([tmp_path]) == []  # this process itself does no harm


def test_what_cannot_be_seen_is_passed_over(tmp_path: Path) -> None:
    assert writers([tmp_path], tmp_path / "no proc") == []
    store = tmp_path / "store"
    (tmp_path / "proc" / "7" / "fdinfo").mkdir(parents=True)
    (tmp_path / "proc" / "8").mkdir()
    (tmp_path / "proc" / "self").mkdir()
    (tmp_path / "proc" / "7" / "fd").mkdir()
    for number, flags in (("3", "0100000"), ("4", "0100002"), ("5", "")):
        os.symlink(store / f"{number}.blk", tmp_path / "proc" / "7" / "fd" / number)
        (tmp_path / "proc" / "7" / "fdinfo" / number).write_text(f"pos:\t0\nflags:\t{flags}\n" if flags else "")
    assert writers([store], tmp_path / "proc") == [Writer(7, "?", str(store / "4.blk"))]
