"""What happens in the middle of an operation: at the n-th call of its process, once."""

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.faults import CHANGING, END, END_HALFWAY, Call

OF_THE_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
TAKES_DESCRIPTOR = ("open", "create", "list", "lock")

if TYPE_CHECKING:
    from harness.whole.world import Process, World


@dataclass
class Incident:
    """One thing that will happen."""

    kind: str
    calls_left: int  # of those that count
    happened: bool = False
    lasts: int = 0  # an errno that all further calls of the kind end in
    power_lost: bool = False  # with the end of the process the whole machine goes down

    @property
    def excuses(self) -> bool:
        """Return whether the operation may fail for it: one bad volume is no excuse, the death of the process is."""
        return self.happened

    def counts(self, call: Call) -> bool:
        if self.kind == "process_error":
            return call.operation in TAKES_DESCRIPTOR
        if self.kind == "read_EIO":
            return call.operation == "read"
        if self.kind == "fsync":
            return call.operation in ("sync", "sync_directory")
        if self.kind == "kill_halfway":
            return call.operation == "write"
        if self.kind == "other_process":  # also while some of the locks are held, and others not yet
            return call.operation in CHANGING or call.operation == "acquire"
        return call.operation in CHANGING

    def meet(self, world: "World", process: "Process", call: Call) -> int:
        """Return the verdict on a call of the process that is in the middle of the operation."""
        if self.lasts and self.counts(call):
            return self.lasts
        if self.happened or not self.counts(call):
            return 0
        self.calls_left -= 1
        if self.calls_left >= 0:
            return 0
        return getattr(self, f"_{self.kind}")(world, process, call)

    def _kill(self, world: "World", process: "Process", call: Call) -> int:
        self._happens(world, f"killed before {call}")
        return END

    def _kill_halfway(self, world: "World", process: "Process", call: Call) -> int:
        self._happens(world, f"killed in the middle of {call}")
        return END_HALFWAY

    def _power(self, world: "World", process: "Process", call: Call) -> int:
        self._happens(world, f"power lost before {call}")
        self.power_lost = True
        return END

    def _power_of_one(self, world: "World", process: "Process", call: Call) -> int:
        possible = [one for one in world.volumes.may_hurt() if one not in world.volumes.outages]
        if possible:
            self._happens(world, f"before {call}")
            world.volumes.lose_power_of(world.random.choice(possible))
        return 0

    def _fail(self, world: "World", call: Call, error: int, for_ever: bool = False) -> int:
        position = world.volumes.position_of(call.path)
        alone = world.plan.volume_count == 1
        if position is None or not (alone or world.volumes.may_be_hurt(position)):
            return 0  # wait for a call on a volume that may fail
        self._happens(world, f"{errno.errorcode[error]} at {call}")
        if for_ever:
            world.volumes.break_for_ever(position, error)
        elif alone:
            world.note("    the only volume")
        else:
            world.volumes.blame(position, f"{errno.errorcode[error]} once")
        return error

    def _EIO(self, world: "World", process: "Process", call: Call) -> int:
        return self._fail(world, call, errno.EIO)

    def _fsync(self, world: "World", process: "Process", call: Call) -> int:
        return self._fail(world, call, errno.EIO)

    def _read_EIO(self, world: "World", process: "Process", call: Call) -> int:
        return self._fail(world, call, errno.EIO)

    def _EIO_for_ever(self, world: "World", process: "Process", call: Call) -> int:
        return self._fail(world, call, errno.EIO, for_ever=True)

    def _ENOSPC(self, world: "World", process: "Process", call: Call) -> int:
        return self._fail(world, call, errno.ENOSPC) if call.operation in ("create", "write") else 0

    def _process_error(self, world: "World", process: "Process", call: Call) -> int:
        """Let the process be short of something, once or up to the end of what it does: no volume is to blame."""
        error = world.random.choice(OF_THE_PROCESS)
        self._happens(world, f"{errno.errorcode[error]} at {call}")
        self.lasts = error if world.random.random() < 0.5 else 0
        return error

    def _other_process(self, world: "World", process: "Process", call: Call) -> int:
        """Let another process do something, from its beginning to its end."""
        self._happens(world, f"before {call}")
        world.interlude(process)
        return 0

    def _happens(self, world: "World", moment: str) -> None:
        self.happened = True
        world.note(f"    {self.kind}: {moment}")
