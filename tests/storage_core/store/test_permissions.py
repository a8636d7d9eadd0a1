"""Who may use a store: its owner alone, or the group of its directories, in this process and in every later one.

A second user is a process that gives up root; everything it needs is imported before.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_core import Store
from storage_core.errors import NotAStoreError
from storage_core.files import OS_FILES
from storage_core.store.consumers.query import QueryReader, QueryStart
from storage_core.store.recovery import adopt

ROOT = Path(__file__).resolve().parents[3]
TEAM = 4242  # a group
OWNER, MEMBER, STRANGER = 5001, 5002, 5003
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")

AS_USER = f"""
import json, os, sys, tempfile
sys.path.insert(0, {str(ROOT)!r})
from storage_core import Store
user, groups, umask, paths, backup, action = json.loads(sys.argv[1])
data = b"from %d" % user
with tempfile.TemporaryDirectory() as warm:  # imports everything that the action needs
    with Store.create(f"{{warm}}/volume") as store:
        stream = store.add_stream({{"name": "S"}})
        stream.publish("S", data)
        stream.add_consumer({{"name": "c"}}).fetch(1, 0)
        store.maintain(); store.verify()
    try:
        Store.open(f"{{warm}}/none")
    except Exception:
        pass
os.setgroups(groups); os.setgid(groups[0]); os.setuid(user); os.umask(umask)
try:
    exec(action)
    print(json.dumps("done"))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
WRITE = """
with Store.open(paths) as store:
    store.stream("S").publish("S", data)
    store.stream("S").consumer("c").fetch(1, 0)
    store.maintain(); store.verify()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that all users can enter, and that belongs to the group."""
    path = Path(tempfile.mkdtemp(prefix="jstream-permissions-"))
    os.chmod(path, 0o777)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def run(user: int, groups: list[int], paths: list[Path], action: str, umask: int = 0o077, backup: str = "") -> Any:
    """Return what an action comes to when this user does it: "done", or class and text of the error."""
    words = json.dumps([user, groups, umask, [str(path) for path in paths], backup, action])
    outcome = subprocess.run([sys.executable, "-B", "-c", AS_USER, words], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def modes(path: Path) -> set[tuple[bool, int]]:
    """Return the modes of a directory and of everything below it: (is a directory, mode)."""
    every = [path, *path.rglob("*")]
    return {(one.is_dir(), stat.S_IMODE(one.lstat().st_mode)) for one in every}


SHARED = {(True, 0o2770), (False, 0o660)}
PRIVATE = {(True, 0o700), (False, 0o600)}


@pytest.fixture
def umask() -> Iterator[None]:
    """The narrowest umask."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.parametrize(("permissions", "expected"), [("group", SHARED), ("private", PRIVATE)])
def test_every_file_that_anything_makes_has_the_mode_of_the_store(
    tmp_path: Path, umask: None, permissions: str, expected: set[tuple[bool, int]]
) -> None:
    paths = [tmp_path / "below" / name for name in ("v0", "v1", "v2")]
    with Store.create(paths, permissions=permissions, snapshot_every=2, deleted_block_retention=0) as store:
        assert store.info()["settings"]["permissions"] == permissions
        live_everything(store)
        shutil.rmtree(paths[1])
        store.repair()
        store.replace_volume(store.volumes()[2].name, tmp_path / "below" / "v3")
        store.add_volumes([tmp_path / "below" / "v4", tmp_path / "below" / "v5"])
        live_everything(store)
        store.backup(tmp_path / "backup")
    for name in ("v0", "v1", "v3", "v4", "v5"):
        assert modes(tmp_path / "below" / name) == expected, name
    assert stat.S_IMODE((tmp_path / "below").stat().st_mode) == max(mode for is_dir, mode in expected if is_dir)
    assert modes(tmp_path / "backup") == expected
    Store.restore(tmp_path / "backup", tmp_path / "restored").close()
    assert modes(tmp_path / "restored") == expected
    for one in tmp_path.glob("below/v*/meta"):
        shutil.rmtree(one)
    adopt.execute(adopt.plan([tmp_path / "below" / name for name in ("v0", "v1", "v3", "v4", "v5")]))
    assert modes(tmp_path / "below" / "v0") == expected


def live_everything(store: Store) -> None:
    """Make a file of every kind."""
    name = f"S{store.view().index}"
    stream = store.add_stream({"name": name})
    consumer = stream.add_consumer({"name": "c"})
    for number in range(20):
        stream.publish(name, b"%d" % number)
    consumer.fetch(2, 0)
    query = QueryReader(store, "q")  # whose lock is a file, too
    query.begin({name: QueryStart(1)})
    query.close()
    stream.remove([1, 2])
    block = next(Path(store.paths[0]).rglob("*.blk"))
    block.write_bytes(block.read_bytes()[:-1] + b"x")
    stream.read().read_all()
    store.verify()
    store.repair()
    store.maintain()
    store.delete_stream(name)


@needs_root
def test_members_of_the_group_share_a_store_and_strangers_are_told_why_they_do_not(place: Path) -> None:
    paths = [place / name for name in "abc"]
    for path in paths:
        path.mkdir()
        os.chown(path, OWNER, TEAM)
    made = run(OWNER, [OWNER, TEAM], paths, """
with Store.create(paths, permissions="group") as store:
    store.add_stream({"name": "S"}).publish("S", data)
    store.stream("S").add_consumer({"name": "c"})
""")  # fmt: skip
    assert made == "done"
    for user in (MEMBER, OWNER, MEMBER):
        assert run(user, [user, TEAM], paths, WRITE) == "done"
    with Store.open(paths) as store:
        assert store.stream("S").info()["state"]["messages"] == 4
    for path in paths:
        assert modes(path) == {(True, 0o2775), *SHARED}  # the directory was there, and others may look into it
        assert {one.stat().st_gid for one in path.rglob("*")} == {TEAM}
        assert {one.stat().st_uid for one in path.rglob("*")} >= {OWNER, MEMBER}

    kind, told = run(STRANGER, [STRANGER], paths, "Store.open(paths)")
    assert kind == "ProcessError"
    for part in ("jstream.volume", f"user {STRANGER}", "-rw-rw----", f"user {OWNER}", f"group {TEAM}", "be in group"):
        assert part in told, part


@needs_root
def test_a_private_store_tells_others_whose_it_is_and_what_to_do(place: Path) -> None:
    made = run(OWNER, [OWNER, TEAM], [place / "volume"], "Store.create(paths).add_stream({'name': 'S'})")
    assert made == "done"
    kind, told = run(MEMBER, [MEMBER, TEAM], [place / "volume"], "Store.open(paths)")
    assert kind == "ProcessError"
    for part in (f"user {MEMBER}", str(TEAM), f"enter {place}/volume", "drwx------", f"user {OWNER}", "--permissions"):
        assert part in told, part


@needs_root
def test_who_may_read_and_not_write_is_told_why(place: Path) -> None:
    assert run(OWNER, [OWNER], [place / "volume"], "Store.create(paths).add_stream({'name': 'S'})") == "done"
    for one in (place / "volume", *(place / "volume").rglob("*")):
        os.chmod(one, 0o755 if one.is_dir() else 0o644)
    kind, told = run(MEMBER, [MEMBER], [place / "volume"], "Store.open(paths).stream('S').publish('S', data)")
    assert kind == "ReadOnlyError"
    assert f"user {MEMBER}" in told and "write" in told and f"user {OWNER}" in told


@needs_root
@pytest.mark.parametrize("folder", ["", "meta", "streams", "streams/*"])
def test_a_volume_that_may_not_be_entered_is_named_and_the_others_are_shown(place: Path, folder: str) -> None:
    paths = [place / name for name in ("v0", "v1", "v2")]
    made = "with Store.create(paths) as store: store.add_stream({'name': 'S', 'num_replicas': 3}).publish('S', data)"
    assert run(OWNER, [TEAM], paths, made) == "done"
    (closed,) = paths[1].glob(folder) if folder else [paths[1]]
    closed.chmod(0)
    action = """
with Store.open(paths[0]) as store:
    volumes = store.cluster_info()["volumes"]
    assert [volume["state"] for volume in volumes] == ["current", "missing", "current"], volumes
    assert paths[1] in volumes[1]["reason"] and "may not" in volumes[1]["reason"], volumes
    assert [copy["state"] for copy in store.report()[0]["cluster"]["replicas"]] == ["current", "missing", "current"]
"""
    assert run(OWNER, [TEAM], paths, action) == "done"


@needs_root
def test_a_group_that_its_maker_is_not_in_is_refused(place: Path) -> None:
    (place / "volume").mkdir()
    os.chown(place / "volume", OWNER, TEAM)
    kind, told = run(OWNER, [OWNER], [place / "volume"], "Store.create(paths, permissions='group')")
    assert kind == "ReadOnlyError" and str(place / "volume") in told


def test_a_private_store_in_a_directory_of_a_group_is_private(tmp_path: Path) -> None:
    OS_FILES.share_directory(tmp_path, True)
    Store.create(tmp_path / "volume").close()
    assert modes(tmp_path / "volume") == PRIVATE


@pytest.mark.parametrize("given", ["public", "", None, 0o660])
def test_other_permissions_are_refused_by_name(tmp_path: Path, given: object) -> None:
    with pytest.raises(ValueError, match="permissions"):
        Store.create(tmp_path / "volume", permissions=given)
    assert not (tmp_path / "volume").exists()


def test_a_path_that_is_open_to_this_user_is_told_as_the_system_does(tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError, match="does not exist"):
        Store.open(tmp_path / "none")
