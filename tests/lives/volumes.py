"""The volumes of a life: where they are, what has happened to them, and what may still happen to them."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lives.ledger import NEVER

if TYPE_CHECKING:
    from lives.life import Life

SOLO = "solo"  # the stream with one replica


class Volumes:
    """At most `tolerated` are damaged between two completed repairs; any number may be away while none is damaged."""

    def __init__(self, life: "Life", count: int) -> None:
        self._life, self._random = life, life.random
        self.paths = [life.folder / f"v{number}" for number in range(count)]
        self.tolerated = count // 2
        self.solo_path: Path | None = None  # of the volume that has the stream with one replica
        self.damaged: dict[Path, str] = {}
        self.wrong: set[Path] = set()  # damaged by having another disk in their place
        self.touched: set[Path] = set()  # were away since the last completed repair
        self.absent: dict[Path, Callable[[], None]] = {}  # those that are away, and how they come back
        self.leaving: set[Path] = set()  # being removed from the store
        self.images: dict[Path, Path] = {}  # what they were before
        self.excused_until = 0.0  # the moment up to which too many were out of order for anything to be done

    @property
    def impaired(self) -> set[Path]:
        return {*self.damaged, *self.absent, *self.touched}

    @property
    def is_blackout(self) -> bool:
        return len(self.impaired) > self.tolerated

    @property
    def is_solo_impaired(self) -> bool:
        return self.solo_path in self.impaired

    def may_damage(self) -> list[Path]:
        """Return the volumes that may be damaged now."""
        if self.absent:
            return []
        return [path for path in self.paths if path != self.solo_path and len({*self.impaired, path}) <= self.tolerated]

    def may_leave(self) -> list[Path]:
        """Return the volumes that may go away now."""
        here = [path for path in self.paths if path not in self.absent]
        if "everything" in self._life.without and len(here) == 1:
            return []
        if not self.damaged:
            return here
        return [path for path in here if len({*self.impaired, path}) <= self.tolerated]

    def take_away(self, path: Path) -> None:
        if path in self.absent or path not in self.may_leave() or not path.is_dir():
            return
        elsewhere = self._life.folder / f"{path.name}-away"
        path.rename(elsewhere)
        self._life.note(f"   {path.name} is away")
        self._life.counts["away"] += 1

        def come_back() -> None:
            if path.exists():
                shutil.rmtree(path)
            elsewhere.rename(path)

        self._left(path, come_back)

    def close(self, path: Path) -> None:
        """Take away the right to read a volume, or a part of it."""
        if path in self.absent or path not in self.may_leave() or not path.is_dir():
            return
        inside = sorted(one for one in path.rglob("*") if not one.is_symlink())
        what = self._random.choice([path, path, *inside])
        mode = what.stat().st_mode & 0o777
        what.chmod(0)
        self._life.note(f"   {what.relative_to(self._life.folder)} is closed")
        self._life.counts["closed"] += 1

        def come_back() -> None:
            if what.exists():
                what.chmod(mode)

        self._left(path, come_back)

    def _left(self, path: Path, come_back: Callable[[], None]) -> None:
        self.absent[path] = come_back
        self.touched.add(path)
        if self.is_blackout:
            self.excused_until = NEVER

    def come_back(self, path: Path) -> None:
        self.absent.pop(path)()
        self._life.note(f"   {path.name} is back")
        if not self.is_blackout and self.excused_until == NEVER:
            self.excused_until = self._life.now()

    def all_back(self) -> None:
        for path in list(self.absent):
            self.come_back(path)

    def describe(self) -> str:
        told = [f"{path.name} {why}" for path, why in self.damaged.items()]
        told += [f"{path.name} away" for path in self.absent] + [f"{path.name} was away" for path in self.touched]
        return "volumes: " + (", ".join(told) or "all well")

    def ways_in(self) -> list[str]:
        """Return paths to open the store by: of volumes that are all right, or all of them."""
        bad = {*self.damaged, *self.absent, *self.leaving}
        good = [path for path in self.paths if path not in bad]
        if not good or (self._random.random() < 0.3 and "every way in" not in self._life.without):
            return [str(path) for path in self.paths]
        return [str(path) for path in self._random.sample(good, self._random.randrange(1, len(good) + 1))]
