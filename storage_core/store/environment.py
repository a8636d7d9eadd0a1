"""What the shell needs from outside: files, clock, randomness, and which machine this is.

The state machine and the codecs get all of it as arguments; tests put simulations in their place.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from storage_core.files import OS_FILES, Files
from storage_core.store import identity


@dataclass(frozen=True, slots=True)
class Environment:
    files: Files = OS_FILES
    now_ns: Callable[[], int] = time.time_ns
    random_bytes: Callable[[int], bytes] = os.urandom
    lock_domain: Callable[[], str] = identity.lock_domain
    sleep: Callable[[float], None] = time.sleep  # seconds

    def new_id(self) -> bytes:
        return self.random_bytes(16)


REAL = Environment()
