"""Network namespaces: hosts on one machine that reach nothing but the sockets which were opened for them there.

A namespace has a loopback of its own and no other interface, so that a process in it reaches a server outside only by
a socket that listens inside and that a process outside owns: the proxy's. Making one takes root's rights, on Linux.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000  # linux/sched.h


def are_allowed() -> bool:
    try:
        return subprocess.run(["unshare", "--net", "true"], stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def network() -> Iterator[int]:
    """Make a namespace; yield the id of the process that keeps it and ends with the caller."""
    command = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"up\n"
        yield keeper.pid


@contextmanager
def inside(keeper: int) -> Iterator[None]:
    """Be in a namespace with this thread. Sockets that it opens there stay there."""
    with open("/proc/thread-self/ns/net") as home, open(f"/proc/{keeper}/ns/net") as namespace:
        _enter(namespace.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
