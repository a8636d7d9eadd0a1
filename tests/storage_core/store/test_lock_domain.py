"""Which machine writes a store: the same one after a restart goes on, another one is refused, clones too.

A machine is a made-up tree of the files that the kernel shows; what a store does with the answer runs on real volumes.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from storage_core.errors import OtherHostError, RequirementError, StoreBusyError
from storage_core.store import lock_domain as domains
from storage_core.store.environment import REAL, Environment
from storage_core.store.store import Store

BOOTS = {name: f"{number}c65ab4d-0b52-4b17-9d4f-6f0c1d2e3a4b" for number, name in enumerate(("a", "b", "c"))}
LOCAL, SHARED = "ext4", "nfs4"


@dataclass(frozen=True)
class Machine:
    """What one process sees of the machine it runs on."""

    boot: str = "a"
    machine_id: str = "0123456789abcdef0123456789abcdef"
    network: tuple[str, ...] = ("02:00:00:00:00:01",)  # of hardware
    host: str = LOCAL  # the file system of the volumes

    def domain(self, folder: Path) -> str:
        root = folder / f"{hash(self):x}"
        _write(root / domains.BOOT_ID, BOOTS[self.boot])
        _write(root / "etc/machine-id", self.machine_id)
        for number, address in enumerate(self.network):
            _card(root, f"eth{number}", address, "0", hardware=True)
        _card(root, "docker0", "02:42:ac:11:00:02", "3", hardware=False)
        return domains.lock_domain(root)

    def environment(self, folder: Path) -> Environment:
        # The probe's second process is the real one: these volumes are on a disk of this machine, whatever they say.
        return replace(REAL, lock_domain=lambda: self.domain(folder), file_system=lambda _: self.host)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _card(root: Path, name: str, address: str, kind: str, hardware: bool) -> None:
    _write(root / domains.NETWORK / name / "address", address)
    _write(root / domains.NETWORK / name / "addr_assign_type", kind)
    if hardware:
        (root / domains.NETWORK / name / "device").mkdir(exist_ok=True)


HERE = Machine()
CONTAINER = Machine(machine_id="", network=())
GOES_ON, REFUSED = "goes on", "refused"

# Cases of docs/locks-and-stability.md, section 1, "Which machine".
CASES = [
    ("the same boot", HERE, HERE, GOES_ON),
    ("two containers under one kernel, each with a file system of its own", HERE, CONTAINER, GOES_ON),
    ("the same, on a mount that is shared", replace(HERE, host=SHARED), replace(CONTAINER, host=SHARED), GOES_ON),
    ("a restart, local disks", HERE, replace(HERE, boot="b"), GOES_ON),
    (
        "a restart of what runs in containers, or a pod that was moved with its disk",
        CONTAINER,
        replace(CONTAINER, boot="b"),
        GOES_ON,
    ),
    ("a restart, shared mount", replace(HERE, host=SHARED), replace(HERE, boot="b", host=SHARED), GOES_ON),
    (
        "a restart of what runs in containers, shared mount",
        replace(CONTAINER, host=SHARED),
        replace(CONTAINER, boot="b", host=SHARED),
        REFUSED,
    ),
    (
        "a clone of a virtual machine, shared mount",
        replace(HERE, host=SHARED),
        replace(HERE, boot="b", network=("02:00:00:00:00:02",), host=SHARED),
        REFUSED,
    ),
    (
        "containers of one image on two hosts, shared mount",
        replace(HERE, network=(), host=SHARED),
        replace(HERE, boot="b", network=(), host=SHARED),
        REFUSED,
    ),
    (
        "two hosts whose machine id was never made, shared mount",
        replace(HERE, machine_id="uninitialized", host=SHARED),
        replace(HERE, machine_id="uninitialized", boot="b", host=SHARED),
        REFUSED,
    ),
    (
        "files copied to another machine",
        HERE,
        Machine(boot="b", machine_id="f" * 32, network=("02:00:00:00:00:02",)),
        REFUSED,
    ),
    (
        "the server of a mount, after a client wrote",
        Machine(boot="b", machine_id="f" * 32, network=("02:00:00:00:00:02",), host=SHARED),
        HERE,
        REFUSED,
    ),
    (
        "a client of a mount, after its server wrote",
        HERE,
        Machine(boot="b", machine_id="f" * 32, network=("02:00:00:00:00:02",), host=SHARED),
        REFUSED,
    ),
]


@pytest.mark.parametrize(("before", "now", "outcome"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_who_writes_a_store_that_another_boot_wrote(
    tmp_path: Path, before: Machine, now: Machine, outcome: str
) -> None:
    volume, tree = tmp_path / "volume", tmp_path / "machines"
    with Store.create(volume, env=before.environment(tree)) as store:
        store.add_stream({"name": "S"}).publish("S", b"before")

    theirs = Store.open(volume, env=now.environment(tree))
    assert theirs.stream("S").get(1).data == b"before"
    if outcome == REFUSED:
        with pytest.raises(OtherHostError) as caught:
            theirs.stream("S").publish("S", b"now")
        assert isinstance(caught.value, StoreBusyError)
        theirs = Store.open(volume, env=now.environment(tree), take_over=True)
    assert theirs.stream("S").publish("S", b"now").sequence == 2


def test_of_two_clones_that_share_a_mount_the_one_that_was_taken_over_from_writes_nothing_more(tmp_path: Path) -> None:
    first, clone = replace(HERE, host=SHARED), Machine(boot="b", network=("02:00:00:00:00:02",), host=SHARED)
    former = Store.create(tmp_path / "volume", env=first.environment(tmp_path / "m"))
    stream = former.add_stream({"name": "S"})
    stream.publish("S", b"1")
    Store.open(tmp_path / "volume", env=clone.environment(tmp_path / "m"), take_over=True)
    with pytest.raises(OtherHostError):
        stream.publish("S", b"2")
    assert former.stream("S").info()["state"]["messages"] == 1


def test_a_restart_is_an_event_and_is_told_once(tmp_path: Path) -> None:
    Store.create(tmp_path / "volume", env=HERE.environment(tmp_path / "m")).close()
    again = Store.open(tmp_path / "volume", env=replace(HERE, boot="b").environment(tmp_path / "m"))
    again.add_stream({"name": "S"}).publish("S", b"1")
    again.stream("S").publish("S", b"2")
    assert [(event["kind"], event["reason"]) for event in again.events()] == [("took_over", "the host was restarted")]


def test_without_a_boot_id_nothing_is_written_and_everything_is_read(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    with Store.create(volume) as store:
        store.add_stream({"name": "S"}).publish("S", b"1")
    nowhere = replace(REAL, lock_domain=lambda: domains.lock_domain(tmp_path))
    blind = Store.open(volume, env=nowhere)
    assert blind.stream("S").get(1).data == b"1"
    with pytest.raises(RequirementError, match="boot_id"):
        blind.stream("S").publish("S", b"2")
    with pytest.raises(RequirementError, match="boot_id"):
        Store.create(tmp_path / "other", env=nowhere)


def test_the_domain_of_this_machine_is_the_same_in_every_process() -> None:
    import subprocess
    import sys

    program = "from storage_core.store.lock_domain import lock_domain; print(lock_domain())"
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert outcome.stdout.strip() == domains.lock_domain()


def test_the_file_system_of_a_path_is_that_of_the_mount_above_it(tmp_path: Path) -> None:
    _write(
        tmp_path / domains.MOUNTS,
        "20 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        "21 20 0:40 / /srv rw shared:1 - nfs4 server:/srv rw\n"
        "22 21 0:41 / /srv/a\\040b rw - fuse.s3fs s3fs rw\n"
        "23 20 0:42 / /srv/disk rw - ext4 /dev/vdb rw\n"
        "24 23 0:43 / /srv/disk rw - xfs /dev/vdc rw",
    )
    kinds = {
        path: domains.file_system(Path(path), tmp_path)
        for path in ("/data", "/srv", "/srv/x", "/srvx", "/srv/a b/c", "/srv/disk/v")
    }
    assert kinds == {
        "/data": "ext4",
        "/srv": "nfs4",
        "/srv/x": "nfs4",
        "/srvx": "ext4",
        "/srv/a b/c": "fuse.s3fs",
        "/srv/disk/v": "xfs",
    }
    assert domains.file_system(Path("/dev/shm")) == "tmpfs"
