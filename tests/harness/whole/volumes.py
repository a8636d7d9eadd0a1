"""What happens to the volumes of a simulated store: at most f of them are bad between two completed repairs.

outage     every call on the volume fails, or every write, until it is repaired
hurt       its content is not what was written: blank, older, flipped, cut, gone, of another store, or of a copy of the
           store that was written on by itself
"""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from unittest.mock import patch

from harness.faults import Call
from harness.processes import Machine
from harness.simulated_disk import ALL_KEPT, PAGE_SIZE, Fate, SimulatedDirectory, SimulatedDisk

from storage_core.store.store import Store
from storage_core.store.volume import locks
from storage_core.store.volume.identity import read_identity
from storage_core.store.volume.log import VolumeLog
from storage_core.store.volume.log_contents import LogContents

FOREIGN_PLACE = Path("/disk/elsewhere")
IMAGES_KEPT_MAX = 3
Whole = list[SimulatedDirectory]  # all volumes of a store at one time, by position


class Volumes:
    """The volumes by position; `bad` are those that count as failed until a repair is complete."""

    def __init__(self, machine: Machine, random: Random, tolerated: int, note: Callable[[str], None]) -> None:
        self._machine, self._random, self._note = machine, random, note
        self.paths = list(machine.paths)  # position: where the volume is now
        self.tolerated = tolerated
        self.bad: dict[int, str] = {}
        self.damaged: set[int] = set()  # those of them whose content was changed
        self.rolled_back: int | None = None  # the position of a good volume to which the last hurt did this
        self.outages: dict[int, int] = {}  # position: the errno of every call
        self.full: set[int] = set()
        self.blacked_out: set[int] = set()
        self._away: dict[int, SimulatedDirectory] = {}
        self._images: dict[int, list[SimulatedDirectory]] = {}
        self._copies: list[Whole] = []
        self.exchange_count = 0
        self._of_a_copy: set[int] = set()  # positions at which there is a volume of a copy of the store
        self._strangers: set[int] = set()  # positions at which there is a volume of another store
        self._was_moved = False  # some volume is not where the store last saw it

    def ways_in(self) -> list[Path]:
        """Return paths to open the store by: all that do not hold another store, or any good one of them."""
        if not self._was_moved and self._random.random() < 0.2:
            return [self.paths[self._random.choice(self.good)]]
        named = [path for position, path in enumerate(self.paths) if position not in self._strangers]
        self._random.shuffle(named)
        return named

    def is_foreign(self, path: Path) -> bool:
        return any(self.paths[one] == path for one in self._strangers)

    # --- calls

    def position_of(self, path: Path) -> int | None:
        text = str(path)
        for position, volume in enumerate(self.paths):
            if text == str(volume) or text.startswith(f"{volume}/"):
                return position
        return None

    def verdict(self, call: Call) -> int:
        """Return the errno that the call fails with for the sake of its volume, 0 if it does not."""
        if not self.outages and not self.full:
            return 0
        position = self.position_of(call.path)
        if position is None:
            return 0
        if position in self.outages:
            return self.outages[position]
        return errno.ENOSPC if position in self.full and call.operation in ("create", "write", "make_directory") else 0

    # --- the budget

    def may_hurt(self) -> list[int]:
        """Return the volumes that something may happen to."""
        everyone = range(len(self.paths))
        return [one for one in everyone if one in self.bad or len(self.bad) < self.tolerated]

    def may_be_hurt(self, position: int | None) -> bool:
        return position is not None and position in self.may_hurt()

    def blame(self, position: int, why: str) -> None:
        """Count the volume as failed from now on."""
        assert self.may_be_hurt(position), (position, self.bad)
        self._note(f"    {self.paths[position].name}: {why}")
        self.bad[position] = f"{self.bad[position]}, {why}" if position in self.bad else why

    @property
    def good(self) -> list[int]:
        return [one for one in range(len(self.paths)) if one not in self.bad]

    @property
    def undamaged(self) -> list[int]:
        """Return the volumes whose files are as the store wrote them, though calls on them may fail."""
        return [one for one in range(len(self.paths)) if one not in self.damaged and one not in self._away]

    # --- what is done to them

    def save_images(self) -> None:
        """Keep what is durable of each volume now, to roll one back to it later, or to go on with all elsewhere."""
        if not self.bad and not self.outages and not self._away:
            self._copies.append(_whole(self._machine.disk, self.paths))
            del self._copies[:-IMAGES_KEPT_MAX]
        for position, path in enumerate(self.paths):
            if position not in self._away and position not in self._of_a_copy:
                images = self._images.setdefault(position, [])
                images.append(self._machine.disk.image_below(path))
                del images[:-IMAGES_KEPT_MAX]

    def hurt(self, kind: str) -> bool:
        """Do this to one volume; return whether there was one to do it to."""
        possible = [one for one in self.may_hurt() if one not in self._away and one not in self.outages]
        if not possible:
            return False
        position = self._random.choice(possible)
        done = getattr(self, f"_{kind}")(position)
        if done:
            was_good = position not in self.bad
            self.blame(position, done if isinstance(done, str) else kind)
            self.rolled_back = position if kind == "rolled_back" and was_good else None
            if kind not in ("unreachable", "missing", "full"):
                self.damaged.add(position)
        return bool(done)

    def _unreachable(self, position: int) -> bool:
        self.outages[position] = self._random.choice((errno.ENODEV, errno.EIO))
        return True

    def _missing(self, position: int) -> bool:
        self._away[position] = self._machine.disk.take_away(self.paths[position])
        return True

    def _blank(self, position: int) -> bool:
        self._machine.disk.put_back(self.paths[position], SimulatedDirectory())
        return True

    def _rolled_back(self, position: int) -> bool:
        images = self._images.get(position, [])
        if images:
            self._machine.disk.put_back(self.paths[position], self._random.choice(images).copy_platter())
        return bool(images)

    def _foreign(self, position: int) -> bool:
        """Put a volume of another store in its place."""
        disk = self._machine.disk
        if FOREIGN_PLACE.name not in disk.directory(FOREIGN_PLACE.parent).names:
            Store.create(FOREIGN_PLACE, env=self._machine.environment())
        disk.put_back(self.paths[position], disk.image_below(FOREIGN_PLACE))
        self._strangers.add(position)
        return True

    def _exchanged(self, position: int) -> str:
        """Put a volume of a copy of the store in its place, whose processes wrote on what was kept of all volumes.

        Ours have committed something since, or stand where the copy went on; that may be by a single entry.
        """
        others = [one for one in self.good if one != position and one not in self._away]
        is_of_now = not self.bad and not self.outages and self._random.random() < 0.5
        if not (self._copies or is_of_now) or len(others) <= self.tolerated:
            return ""
        whole = _whole(self._machine.disk, self.paths) if is_of_now else self._random.choice(self._copies)
        base = max(_log_of(image).tip[0] for image in whole)
        ours = [_log_of(self._machine.disk.image_below(self.paths[one])).commit for one in others]
        if any(commit is None or commit.index < base for commit in ours):
            return ""
        copy = Machine(self._random.randrange(1 << 32), len(self.paths))
        for path, image in zip(copy.paths, whole, strict=True):
            copy.disk.put_back(path, image.copy_platter())
        session_count, message_count = self._random.choice((1, 1, 2, 3)), self._random.choice((1, 1, 2, 4))
        for session in range(session_count):
            with patch.object(locks, "_mutexes", {}):  # on another host
                store = copy.open()
                names = store.streams() or [store.add_stream({"name": "copied", "subjects": ["copied.>"]}).name]
                for name in self._random.sample(names, self._random.randint(1, len(names))):
                    for number in range(message_count):
                        store.stream(name).publish(f"{name}.copied", f"of the copy {session} {number}".encode())
        self._machine.disk.put_back(self.paths[position], _whole(copy.disk, copy.paths)[position])
        self._of_a_copy.add(position)
        self.exchange_count += 1
        return f"is of a copy that was made at entry {base}"

    def _full(self, position: int) -> bool:
        self.full.add(position)
        return True

    def _files(self, position: int) -> list[Path]:
        found = self._machine.disk.files(self.paths[position])
        return [path for path, inode in found if inode.content and path.name != "lock"]

    def _flipped(self, position: int) -> str:
        files = self._files(position)
        blocks = [path for path in files if path.suffix == ".blk"]
        files = blocks if blocks and self._random.random() < 0.5 else files
        chosen = self._random.sample(files, min(len(files), self._random.choice((1, 1, 3))))
        for path in chosen:
            size = len(self._machine.disk.inode(path).content)
            self._machine.disk.flip_bit(path, self._random.randrange(size * 8))
        return "flipped a bit of " + ", ".join(path.name for path in chosen) if chosen else ""

    def _truncated(self, position: int) -> str:
        files = self._files(position)
        if not files:
            return ""
        path = self._random.choice(files)
        size = len(self._machine.disk.inode(path).content)
        kept = self._random.choice((0, self._random.randrange(size), size // PAGE_SIZE // 2 * PAGE_SIZE))
        self._machine.disk.cut(path, kept)
        return f"cut {path.name} from {size} to {kept} bytes"

    def _file_gone(self, position: int) -> str:
        files = self._files(position)
        if not files:
            return ""
        path = self._random.choice(files)
        gone = path if self._random.random() < 0.7 or path.parent == self.paths[position] else path.parent
        self._machine.disk.remove(gone)
        return f"removed {gone.name}"

    def _stale_chunk(self, position: int) -> str:
        """Put back what a page of a file was in an older image."""
        disk, volume = self._machine.disk, self.paths[position]
        files = self._files(position)
        for path in self._random.sample(files, len(files)):
            for image in self._images.get(position, []):
                older, now = _content(image, path.relative_to(volume).parts), bytes(disk.inode(path).content)
                starts = range(0, min(len(now), len(older)), PAGE_SIZE)
                other = [at for at in starts if older[at : at + PAGE_SIZE] != now[at : at + PAGE_SIZE]]
                if other:
                    at = self._random.choice(other)
                    stale = older[at : at + PAGE_SIZE]
                    disk.overwrite(path, now[:at] + stale + now[at + len(stale) :])
                    return f"put a stale page at {at} of {path.name}"
        return ""

    def lose_power_of(self, position: int) -> None:
        """Let one volume's host lose power while the processes go on."""
        self.blame(position, "lost power alone")
        self.damaged.add(position)
        if position not in self._away:
            self._machine.disk.lose_power_below(self.paths[position], Fate.draw(self._random))

    def lose_power(self) -> None:
        """Let volumes that are away lose power, too, with the machine."""
        for node in self._away.values():
            node.lose_power(Fate.draw(self._random), self._random)

    def break_for_ever(self, position: int, error: int) -> None:
        self.blame(position, f"fails for ever with {errno.errorcode[error]}")
        self.outages[position] = error

    def swap_places(self) -> bool:
        """Let two volumes come back at each other's paths: they are the same volumes, elsewhere."""
        here = [one for one in range(len(self.paths)) if one not in self._away]
        if len(here) < 2:
            return False
        first, second = self._random.sample(here, 2)
        self._was_moved = True
        disk = self._machine.disk
        taken = disk.take_away(self.paths[first])
        disk.put_back(self.paths[first], disk.take_away(self.paths[second]))
        disk.put_back(self.paths[second], taken)
        self.paths[first], self.paths[second] = self.paths[second], self.paths[first]
        return True

    # --- black-outs: more volumes than are tolerated cannot be reached, and nothing is lost

    def black_out(self) -> None:
        """Let more volumes than are tolerated be out of reach for a while: their disks do not answer, or are gone."""
        everyone = range(len(self.paths))
        reachable = [one for one in everyone if one not in self.outages and one not in self._away]
        good = [one for one in reachable if one not in self.bad]
        count = min(len(good), len(reachable) - self.tolerated)
        is_gone = self._random.random() < 0.5
        for position in self._random.sample(good, count):
            if is_gone:
                self._missing(position)
            else:
                self.outages[position] = errno.ENODEV
            self.blacked_out.add(position)

    def end_black_out(self) -> bool:
        """Return whether some volume is not where it was recorded."""
        for position in self.blacked_out:
            self.outages.pop(position, None)
            self._put_back(position)
        self.blacked_out.clear()
        return self._was_moved

    def come_back(self) -> None:
        """Let bad volumes that could not be reached be there again: as they were, and behind."""
        for position in self.bad:
            if position not in self.damaged and (position in self._away or position in self.outages):
                self._note(f"    {self.paths[position].name} comes back")
                self.outages.pop(position, None)
                self._put_back(position)

    def _put_back(self, position: int) -> None:
        if position in self._away:
            self._machine.disk.put_back(self.paths[position], self._away.pop(position))

    @property
    def is_any_good_in_sight(self) -> bool:
        return any(position not in self.outages and position not in self._away for position in self.good)

    # --- repair

    def bring_back(self) -> bool:
        """Bring every volume back as an operator would: reachable, with room, a stranger's disk made empty.

        Return whether processes that were there before have to open the volumes anew.
        """
        is_new = self._was_moved or bool(self._strangers)
        self.end_black_out()
        self.outages.clear()
        self.full.clear()
        disk = self._machine.disk
        for position, node in self._away.items():
            disk.put_back(self.paths[position], node)
        for position in self._strangers:
            disk.put_back(self.paths[position], SimulatedDirectory())
        self._away.clear()
        self._strangers.clear()
        return is_new

    def repaired(self) -> None:
        self.bad.clear()
        self.damaged.clear()
        self._of_a_copy.clear()

    def describe(self) -> str:
        return "; ".join(f"{self.paths[one].name}: {why}" for one, why in sorted(self.bad.items())) or "none"


def _log_of(image: SimulatedDirectory) -> LogContents:
    """Return what the log of a volume says of which this is durable."""
    disk, path = SimulatedDisk(), Path("/disk/volume")
    disk.put_back(path, image.copy_platter())
    files = disk.process()
    return VolumeLog(files, path, read_identity(files, path)).read()


def _content(image: SimulatedDirectory, parts: tuple[str, ...]) -> bytes:
    """Return what a file had in an image, nothing if it was not there."""
    node: object = image
    for part in parts:
        node = node.platter.get(part) if isinstance(node, SimulatedDirectory) else None
    return bytes(getattr(node, "platter", b"")) if not isinstance(node, SimulatedDirectory) else b""


def _whole(disk: SimulatedDisk, paths: Sequence[Path]) -> Whole:
    """Return all volumes as processes see them now, un-synced data and all."""
    copy = disk.copy()
    copy.lose_power(ALL_KEPT)
    return [copy.image_below(path) for path in paths]
