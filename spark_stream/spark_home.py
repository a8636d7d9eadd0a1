"""A Spark home without the archive of PySpark, so that Spark's Python processes start from bytecode.

Spark puts `$SPARK_HOME/python/lib/pyspark.zip` first on the path of every Python process that it starts. The archive
holds sources alone, and Python keeps no bytecode of what it finds in archives, so each process compiles PySpark anew:
0.9 s of processor time instead of 0.3 s. A folder of links to the installed package, without its `python`, is a Spark
home that has no such archive. The processes then find PySpark where this one did, with its bytecode.

Such folders lie in the user's cache, one per installation. They are complete when they appear under their name, so
processes that make one at the same time do not meet; the installation itself is never touched.
"""

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import site
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

log = logging.getLogger("jstream")
HOME_VARIABLE = "SPARK_HOME"
ARCHIVES = Path("python", "lib")  # of Spark's home; this is what is left out
LINKED = ("RELEASE", "bin", "conf", "data", "examples", "jars", "licenses", "sbin")  # what else a home may have
_LOCAL = re.compile(r"local(\[.*\])?")
# Who has set one of these says by it which Spark or which Python runs, or has a JVM already.
_DECIDED_ELSEWHERE = (HOME_VARIABLE, "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE")


@contextmanager
def workers_from_bytecode(settings: Mapping[str, str]) -> Iterator[None]:
    """Let a session with these settings, made within the block, have Python processes that start from bytecode.

    Only where they would find the same PySpark without the archive; everywhere else nothing is done. SPARK_HOME is set
    within the block alone, since it counts when the JVM starts.
    """
    home = linked_home() if _is_safe(settings) else None
    if home is None:
        yield
        return
    os.environ[HOME_VARIABLE] = str(home)
    try:
        yield
    finally:
        os.environ.pop(HOME_VARIABLE, None)


def _is_safe(settings: Mapping[str, str]) -> bool:
    """Return whether nobody has chosen a Spark or a Python, and both are those of this process, on this machine."""
    if any(name in os.environ for name in _DECIDED_ELSEWHERE):
        return False
    if not _LOCAL.fullmatch(settings.get("spark.master", "")):
        return False  # executors on other hosts have other folders
    if any(name.startswith("spark.pyspark.") for name in settings):
        return False
    return _workers_run_this_python() and all(_is_seen_by_workers(name) for name in ("pyspark", "py4j"))


def _workers_run_this_python() -> bool:
    chosen = shutil.which(os.environ.get("PYSPARK_PYTHON", "python3"))
    if chosen is None or not sys.executable:
        return False
    # An environment's Python is a link to one that has other packages: the folder counts as well.
    folders = {os.path.realpath(os.path.dirname(path)) for path in (chosen, sys.executable)}
    return len(folders) == 1 and os.path.realpath(chosen) == os.path.realpath(sys.executable)


def _is_seen_by_workers(package: str) -> bool:
    """Return whether a new process of this Python finds the package where this one does."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return False
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    places += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    where = os.path.realpath(Path(spec.origin).parent.parent)
    return where in map(os.path.realpath, places)


def linked_home() -> Path | None:
    """Return the folder of links for the installed PySpark, made if it is missing.

    None if PySpark is not an installation of pip, or the folder cannot be made, or is not as we would make it.
    """
    package = Path(pyspark.__file__).resolve().parent
    if not (package / "bin" / "spark-submit").is_file() or not (package / ARCHIVES).is_dir():
        return None  # that of a tarball has its home two folders above
    links = {name: str(package / name) for name in LINKED if (package / name).exists()}
    if "jars" not in links:
        return None
    names = "\n".join(links.values()).encode()
    name = f"spark-{pyspark.__version__}-{hashlib.sha256(names).hexdigest()[:16]}"
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jstream" / name
        if not os.path.lexists(home):
            _make(home, links)
        if _holds(home, links):
            return home
        log.debug("%s is not as it was made, so Spark's workers start without bytecode; remove it", home)
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        log.debug("Spark's workers start without bytecode: %s", error)
    return None


def _make(home: Path, links: Mapping[str, str]) -> None:
    """Make the folder under another name, then give it its own: whoever sees it sees all of it."""
    home.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = Path(tempfile.mkdtemp(prefix=f".{home.name}-", dir=home.parent))  # for this user alone
    try:
        for name, target in links.items():
            (made / name).symlink_to(target)
        os.rename(made, home)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        if not os.path.lexists(home):  # else another process was first
            raise


def _holds(home: Path, links: Mapping[str, str]) -> bool:
    """Return whether the folder is this user's own and has these links and nothing else."""
    status = os.lstat(home)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        return False
    return {entry.name: os.readlink(entry) if entry.is_symlink() else None for entry in home.iterdir()} == links
