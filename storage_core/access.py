"""Who may use a file, told to somebody who may not: which user asked, whose it is, and what to do."""

import grp
import os
import pwd
import stat
from pathlib import Path

from storage_core.files import GROUP_DIRECTORY


def refusal(path: Path, writing: bool = False) -> str:
    """Return why this process may not read (or write) a file, and what to do; "" if its modes do not say.

    A file that is not there yet is to be made: that is for its directory to allow.
    """
    if writing and not os.path.lexists(path):
        path = path.parent
    for place in (*reversed(path.parents), path):
        wanted = os.X_OK if place != path else os.R_OK | (os.W_OK if writing else 0)
        try:
            status = os.lstat(place)
            if stat.S_ISLNK(status.st_mode) or os.access(place, wanted, effective_ids=True):
                continue
        except OSError:
            return ""
        return f"{_who()} may not {_verb(place, path, writing)} {place}, {_whose(status)}. {_remedy(status)}"
    return ""


def in_words(error: OSError, writing: bool = False) -> str:
    """Return what was refused, for people: by whose file, if an error says that it is a matter of rights."""
    denied = isinstance(error, PermissionError) and error.filename
    return (refusal(Path(os.fsdecode(error.filename)), writing) if denied else "") or f"{error.strerror}"


def _verb(place: Path, path: Path, writing: bool) -> str:
    return "enter" if place != path else "write" if writing else "read"


def _who() -> str:
    groups = sorted({_group(number) for number in (os.getegid(), *os.getgroups())})
    return f"user {_user(os.geteuid())} (groups {', '.join(groups)})"


def _whose(status: os.stat_result) -> str:
    return f"which is {stat.filemode(status.st_mode)} of user {_user(status.st_uid)} and group {_group(status.st_gid)}"


def _remedy(status: os.stat_result) -> str:
    owner, group = _user(status.st_uid), _group(status.st_gid)
    bits = (status.st_mode >> 3) & 0o7
    if bits & 0o5 and (not stat.S_ISDIR(status.st_mode) or bits & 0o1):
        return f"Let user {_user(os.geteuid())} be in group {group}, or run this as user {owner}"
    of_store = stat.S_ISDIR(status.st_mode) and status.st_mode & GROUP_DIRECTORY == GROUP_DIRECTORY
    if of_store:
        return f"Let user {_user(os.geteuid())} be in group {group}"
    return (
        f"Run this as user {owner}. A store that users share is made with permissions=group (`jstream store create "
        "--permissions group`), in a directory of the group that they are in"
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
