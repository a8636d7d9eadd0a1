"""The lock domain: within which machine the locks of the operating system mean something, as a store records it.

    <boot>/<machine>/<network>[/shared]

    boot      digest of the kernel's boot id: new with every start of a kernel, the same in all its containers
    machine   digest of /etc/machine-id; empty where there is none, or not yet one
    network   digest of the permanent addresses of the network hardware; empty in most containers
    shared    the volumes lie on file systems that other machines may have mounted as well

The same boot is the same domain. Another boot may be the next one of the same machine, or another machine that was
copied from it: `is_next_boot` tells them apart as well as that can be told, and otherwise says no. All cases:
docs/locks-and-stability.md, section 1.
"""

import ctypes
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from storage_core.errors import RequirementError

BOOT_ID = "proc/sys/kernel/random/boot_id"
MACHINE_IDS = ("etc/machine-id", "var/lib/dbus/machine-id")
NETWORK = "sys/class/net"
MOUNTS = "proc/self/mountinfo"
SHARED = "/shared"
PERMANENT = "0"  # addr_assign_type of an address that the hardware brought. Source: linux/netdevice.h, NET_ADDR_PERM
# File systems that one kernel at a time can have mounted, so that its locks are seen by everybody who uses them.
LOCAL = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "nilfs2", "tmpfs", "ramfs", "overlay")
)
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")  # what else stands there is no id: "uninitialized" in images, for one
_OCTAL = re.compile(r"\\([0-7]{3})")
SECOND_PROCESS_TIMEOUT_S = 30.0
_GOT, _BUSY = 0, 3
_TRY_LOCK = f"""
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit({_BUSY})
"""


def lock_domain(root: Path = Path("/")) -> str:
    """Return the lock domain of this process, without `shared`.

    Raises RequirementError where no boot id can be had: nothing else tells two machines apart for certain.
    """
    boot = _text(root / BOOT_ID) or _boot_session()
    if not boot:
        raise RequirementError(
            f"{root / BOOT_ID} cannot be read, so nothing says which machine this is, and a store is written by one "
            "only: mount /proc. Reading needs none"
        )
    return f"{_digest(boot)}/{_machine(root)}"


def of_volumes(domain: str, volumes: Iterable[Path], file_system: Callable[[Path], str]) -> str:
    """Return the domain as a store on these volumes records it."""
    return domain + SHARED if any(file_system(path) not in LOCAL for path in volumes) else domain


def is_same(recorded: str, domain: str) -> bool:
    """Return whether locks of the one mean something in the other."""
    return recorded.removesuffix(SHARED).partition("/")[0] == domain.removesuffix(SHARED).partition("/")[0]


def is_next_boot(recorded: str, domain: str) -> bool:
    """Return whether `domain` is certain to be what comes after `recorded`, and that to be over.

    On a local file system it is over: one kernel at a time has that mounted, and a clone has a disk of its own. Only
    what was copied to another machine file by file is to be taken over. Elsewhere it has to be the same hardware.
    """
    before, now = recorded.removesuffix(SHARED).split("/"), domain.removesuffix(SHARED).split("/")
    if len(before) != 3 or len(now) != 3:
        return False
    (_, old_machine, old_network), (_, machine, network) = before, now
    if not recorded.endswith(SHARED) and not domain.endswith(SHARED):
        return not old_machine or not machine or old_machine == machine
    return bool(machine and network) and (old_machine, old_network) == (machine, network)


def file_system(path: Path, root: Path = Path("/")) -> str:
    """Return the kind of file system that a path lies on, as the kernel calls it; empty if that cannot be known."""
    best, kind = "", ""
    real = os.path.realpath(path)
    for line in _text(root / MOUNTS).splitlines():
        fields, _, rest = line.partition(" - ")
        mount = _OCTAL.sub(lambda code: chr(int(code[1], 8)), fields.split(" ")[4])
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):  # of two at one place the later one is seen
            best, kind = mount, rest.split(" ")[0]
    return kind


def locks_in_another_process(path: Path) -> bool:
    """Return whether another process gets the lock on a file. Raises OSError if that cannot be known."""
    command = [sys.executable or "python3", "-I", "-S", "-c", _TRY_LOCK, str(path)]
    try:
        outcome = subprocess.run(command, capture_output=True, timeout=SECOND_PROCESS_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise OSError(None, f"a second process did not answer within {SECOND_PROCESS_TIMEOUT_S:g} s") from None
    if outcome.returncode not in (_GOT, _BUSY):
        last = outcome.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise OSError(None, "".join(last) or f"a second process ended with {outcome.returncode}")
    return outcome.returncode == _GOT


@cache
def _machine(root: Path) -> str:
    """Return machine and network: looked up once, since every session asks."""
    machine = next((text for name in MACHINE_IDS if _MACHINE_ID.fullmatch(text := _text(root / name))), "")
    return f"{_digest(machine)}/{_digest(' '.join(sorted(_network_addresses(root / NETWORK))))}"


def _network_addresses(directory: Path) -> list[str]:
    """Return the addresses that hardware brought along; those of containers and bridges are made up."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    devices = [directory / name for name in names if (directory / name / "device").exists()]
    return [_text(path / "address") for path in devices if _text(path / "addr_assign_type") == PERMANENT]


def _boot_session() -> str:
    """Return what macOS has for a boot id; empty elsewhere."""
    size = ctypes.c_size_t(64)
    buffer = ctypes.create_string_buffer(size.value)
    try:
        ask = ctypes.CDLL(None).sysctlbyname
    except (AttributeError, OSError):
        return ""
    failed = ask(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else buffer.value.decode("ascii", "replace")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16, person=b"jstream-domain").hexdigest() if text else ""
