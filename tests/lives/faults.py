"""What happens to the folder of one volume: damage, older content, other disks. All of it from outside the store."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

PAGE_SIZE = 4096


def files_of(volume: Path) -> list[Path]:
    return sorted(path for path in volume.rglob("*") if path.is_file() and path.name != "lock" and path.stat().st_size)


def copy_volume(volume: Path, copy: Path) -> None:
    shutil.copytree(volume, copy, symlinks=True)


def _flip(path: Path, random: Random) -> str:
    content = bytearray(path.read_bytes())
    at = random.randrange(len(content) * 8)
    content[at // 8] ^= 1 << at % 8
    path.write_bytes(content)
    return f"bit {at}"


def _flip_many(path: Path, random: Random) -> str:
    return ", ".join(_flip(path, random) for _ in range(random.randrange(2, 9)))


def _zero_page(path: Path, random: Random) -> str:
    content = bytearray(path.read_bytes())
    at = random.randrange(len(content)) // PAGE_SIZE * PAGE_SIZE
    content[at : at + PAGE_SIZE] = bytes(len(content[at : at + PAGE_SIZE]))
    path.write_bytes(content)
    return f"page at {at}"


def _cut(path: Path, random: Random) -> str:
    size = path.stat().st_size
    to = random.choice((0, size - 1, random.randrange(size), size // 2 // PAGE_SIZE * PAGE_SIZE, size // 64 * 64))
    to = min(to, size - 1)
    os.truncate(path, to)
    return f"to {to} of {size}"


def _remove(path: Path, random: Random) -> str:
    path.unlink()
    return ""


def _garbage(path: Path, random: Random) -> str:
    with path.open("ab") as file:
        file.write(random.randbytes(random.randrange(1, 3 * PAGE_SIZE)))
    return "behind its end"


ON_FILES: dict[str, Callable[[Path, Random], str]] = {
    "bit": _flip,
    "bits": _flip_many,
    "zeros": _zero_page,
    "cut": _cut,
    "remove": _remove,
    "garbage": _garbage,
}


def hurt_file(volume: Path, random: Random) -> str:
    """Do something to one file; return what, or "" if there is none."""
    files = files_of(volume)
    kinds = sorted({path.suffix for path in files})
    if not kinds:
        return ""
    suffix = random.choice(kinds)
    path = random.choice([one for one in files if one.suffix == suffix])
    kind = random.choice(sorted(ON_FILES))
    return f"{kind} {path.relative_to(volume)} {ON_FILES[kind](path, random)}"


def hurt_files(volume: Path, random: Random) -> str:
    return "; ".join(filter(None, (hurt_file(volume, random) for _ in range(random.randrange(2, 12)))))


def swap_files(volume: Path, random: Random) -> str:
    """Exchange the content of two files of a kind, or put one in the place of the other."""
    files = files_of(volume)
    pairs = [(a, b) for a in files for b in files if a < b and a.suffix == b.suffix]
    if not pairs:
        return ""
    first, second = random.choice(pairs)
    a, b = first.read_bytes(), second.read_bytes()
    second.write_bytes(a)
    if random.random() < 0.5:
        first.write_bytes(b)
    return f"{first.relative_to(volume)} and {second.relative_to(volume)}"


def remove_folder(volume: Path, random: Random) -> str:
    folders = sorted(path for path in volume.rglob("*") if path.is_dir())
    if not folders:
        return ""
    folder = random.choice(folders)
    shutil.rmtree(folder)
    return str(folder.relative_to(volume))


def remove_volume(volume: Path, random: Random) -> str:
    shutil.rmtree(volume)
    return "whole"


def blank_volume(volume: Path, random: Random) -> str:
    shutil.rmtree(volume)
    volume.mkdir()
    return "empty"


def put_older(volume: Path, image: Path, random: Random) -> str:
    """Put back what the volume, its metadata, or one file of it was before."""
    part = random.choice(("volume", "meta", "file", "page"))
    if part == "volume":
        shutil.rmtree(volume)
        copy_volume(image, volume)
    elif part == "meta":
        shutil.rmtree(volume / "meta", ignore_errors=True)
        copy_volume(image / "meta", volume / "meta")
    else:
        names = [one.relative_to(image) for one in files_of(image)]
        names = [one for one in names if (volume / one).is_file() and (volume / one).stat().st_size]
        changed = [one for one in names if (volume / one).read_bytes() != (image / one).read_bytes()]
        if not changed:
            return ""
        name = random.choice(changed)
        older, now = (image / name).read_bytes(), (volume / name).read_bytes()
        if part == "page":
            at = random.randrange(0, len(now), PAGE_SIZE)
            older = now[:at] + older[at : at + PAGE_SIZE] + now[at + len(older[at : at + PAGE_SIZE]) :]
        if older == now:
            return ""
        (volume / name).write_bytes(older)
        return f"{part} {name}"
    return part


ON_VOLUMES: dict[str, Callable[[Path, Random], str]] = {
    "file": hurt_file,
    "files": hurt_files,
    "swap": swap_files,
    "folder": remove_folder,
    "removed": remove_volume,
    "blank": blank_volume,
}
