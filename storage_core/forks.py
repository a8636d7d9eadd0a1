"""What a forked child does before anything else.

A child inherits its parent's locks as they are: held by threads that it lacks, and by an owner that it is not. So
whatever has locks, threads or clients of its own begins anew in a child, stage by stage, since one needs the other:

    FILES   the threads and clients of volumes: whoever closes a lock file goes by them
    LOCKS   the lock files: a flock outlives its owner as long as a child has the file open
    STORES  what leads or owns something as long as it has a lock
"""

import logging
import os
import threading
from enum import Enum, auto
from typing import Protocol
from weakref import WeakSet

logger = logging.getLogger(__name__)
_forking = threading.Lock()  # a child makes another: this one is held by the thread that forked


class Stage(Enum):
    FILES = auto()
    LOCKS = auto()
    STORES = auto()


class Renewable(Protocol):
    def renew(self) -> None:
        """Begin anew in a child: nothing is held, and nothing is under way."""


_renewables: "dict[Stage, WeakSet[Renewable]]" = {stage: WeakSet() for stage in Stage}


def renew_in_children(stage: Stage, renewable: Renewable) -> None:
    """Let forked children call `renewable.renew` as long as it is there: this keeps none alive."""
    _renewables[stage].add(renewable)


def without_fork() -> threading.Lock:
    """Return what is held while nobody may fork: a child would inherit what it cannot renew yet."""
    return _forking


def _before_fork() -> None:
    _forking.acquire()


def _after_fork_in_parent() -> None:
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking
    _forking = threading.Lock()
    for renewables in _renewables.values():
        for renewable in list(renewables):
            try:
                renewable.renew()
            except Exception:  # the others are renewed all the same
                logger.exception("a forked child could not renew %r", renewable)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
