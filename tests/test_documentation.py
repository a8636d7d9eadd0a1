"""What README and guide show is run.

What is in a fence says who runs it; a block that nobody runs stands in NOT_RUN, with the reason and with what is
checked of it instead.

    python      here: all of a page, in order, with a session of its own, in a folder that is empty
    sh          here: after the page's Python, by bash, in the same folder. Each line must end with 0, or with the exit
                code that its comment ends with
    text        here: what the page's Python prints, in this order
    console     tests/spark_stream/cli/test_guide.py, which compares what is printed
    sh, toml, py, text and json of OF_PIPELINES: tests/spark_stream/pipelines/test_guide.py
"""

import ast
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

import storage_core.errors
from spark_stream.cli.app import app
from spark_stream.cli.named_stores import FOLDER_FILE
from spark_stream.metrics import MAINTENANCE_METRICS, METRICS
from spark_stream.pipelines.config import load_pipeline
from spark_stream.ui.server import PAGES as SERVED_PAGES

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GUIDE = sorted((DOCS / "guide").glob("*.md"))
PAGES = [ROOT / "README.md", *GUIDE, DOCS / "scheduling.md"]
ALL_PAGES = sorted({*PAGES, *DOCS.rglob("*.md"), *ROOT.glob("*.md")})
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
EXIT_CODE = re.compile(r"#.*\bexit code (\d+)(?=$|:)")
# Run by tests/spark_stream/pipelines/test_guide.py.
OF_PIPELINES = ("etl.md", "first-hour.md", "windows.md", "dead-letters.md", "scheduling.md")
DATA = ROOT / "tests" / "data"
# What the examples find in their folder: stores of other servers.
SERVERS = {
    **{node: DATA / "nats-orders" / "store" / node for node in ("n1", "n2", "n3")},
    "nats-data": DATA / "nats" / "consumers" / "store",
    "stan-data": DATA / "stan" / "basic" / "store",
}


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *kinds: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind in kinds]


# --- what is run ---


def bash_of(page: Path) -> str:
    """Return the sh blocks of a page as one script that ends at the first line with another exit code than it says."""
    lines = ["set -u"]
    for line in "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines():
        said = EXIT_CODE.search(line)
        wrong = f"{page.name}: {line}"
        lines += [
            f"echo {shlex.quote('$ ' + line)}",
            line,
            f"code=$?; [ $code = {said[1] if said else 0} ] ||",
            f"    {{ echo {shlex.quote(wrong)}: exit code $code >&2; exit 1; }}",
        ]
    return "\n".join(lines)


def runs_here(page: Path) -> bool:
    return bool(blocks(page, "python")) or (page.name not in OF_PIPELINES and bool(blocks(page, "sh")))


class Examples:
    """A process that runs the Python of one page after another in one folder, each with a session of its own.

    They share its JVM, which takes far longer to start and to warm up than any page takes to run.
    """

    PROGRAM = """
import runpy, sys
from pyspark.sql import SparkSession

for script in map(str.rstrip, sys.stdin):
    runpy.run_path(script, run_name="__main__")
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    print("\\nEND OF THE PAGE", flush=True)
"""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._errors = place.with_suffix(".stderr")
        self._process: subprocess.Popen[str] | None = None

    def run(self, script: Path) -> str:
        """Return what the script prints on stdout."""
        if self._process is None or self._process.poll() is not None:  # else the page before this one has failed
            with self._errors.open("w") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", self.PROGRAM], cwd=self.place, env=environment(self.place), text=True,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                )  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        print(script, file=self._process.stdin, flush=True)
        printed = ""
        for line in self._process.stdout:
            if line == "END OF THE PAGE\n":
                return printed
            printed += line
        self._process.wait(60)
        raise AssertionError(printed[-3000:] + self._errors.read_text()[-3000:])

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examples]:
    made = Examples(tmp_path_factory.mktemp("examples"))
    yield made
    made.close()


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in PAGES if runs_here(page)], ids=page_name)
def test_examples_of_a_page_run_in_order(page: Path, examples: Examples, tmp_path: Path) -> None:
    place = examples.place
    for left in place.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    text = page.read_text()
    for name, store in SERVERS.items():
        if re.search(rf"\b{name}\b", text):
            shutil.copytree(store, place / name)
    if python := blocks(page, "python"):
        script = tmp_path / "examples.py"
        script.write_text("\n".join(python))
        printed, at = examples.run(script), 0
        for shown in blocks(page, "text"):
            assert shown in printed[at:], f"{page_name(page)}: not printed:\n{shown}\nbut:\n{printed[at:]}"
            at = printed.index(shown, at) + len(shown)
    if page.name not in OF_PIPELINES and blocks(page, "sh"):
        script = tmp_path / "examples.sh"
        script.write_text(bash_of(page))
        run(["bash", str(script)], place)


def environment(place: Path) -> dict[str, str]:
    # What runs here runs once: a JVM that compiles quickly is better than one that compiles well.
    made = {**os.environ, "MPLBACKEND": "agg", "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
    made.pop("JSTREAM_STORE", None)
    made["XDG_CONFIG_HOME"] = str(place / ".config")  # where `jstream context` keeps its names
    return made


def run(command: list[str], place: Path) -> None:
    done = subprocess.run(
        command, cwd=place, env=environment(place), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_pipeline_files_of_the_pages_are_pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {}
    for page in PAGES:
        for text in blocks(page, "toml", "py"):
            head = re.match(r"# (\S+\.(?:toml|py))\n", text)
            assert head, (page, text)
            files[head[1]] = text
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    pipelines = [load_pipeline(tmp_path / name, "shop") for name in files if name.endswith(".toml")]
    assert {one.name for one in pipelines} == {"countries", "gross", "hours", "orders", "sales", "shop"}


def test_json_of_the_pages_is_json() -> None:
    found = [json.loads(text) for page in PAGES for text in blocks(page, "json")]
    assert len(found) == 1


def test_the_landing_page_shows_what_the_readme_runs_and_the_version() -> None:
    page = (DOCS / "index.md").read_text()
    shown, readme = blocks(DOCS / "index.md", "python", "text"), blocks(ROOT / "README.md", "python", "text")
    assert shown == readme[:2]
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None and f"Version {version[1]} " in page and "pip install" in page and "s3://" in page


# --- what is not run, and what is checked of it instead ---


def is_crontab(text: str) -> None:
    """Variables, or five fields and commands that the command line takes."""
    for line in text.strip().splitlines():
        if not line or re.fullmatch(r"[A-Z_]+=\S+", line):
            continue
        fields = re.fullmatch(r"((?:[\d*,/-]+\s+){5})(.+)", line)
        assert fields, line
        for command in re.split(r"\|\||>>", fields[2]):
            if command.strip().startswith("jstream"):
                is_command(command.strip())


def is_command(line: str) -> None:
    """The command line has this verb, and takes these words."""
    words = shlex.split(line, comments=True)
    assert words.pop(0) == "jstream", line
    command, names = find_command(words)
    assert not hasattr(command, "commands"), line
    command.make_context(" ".join(names), words, obj="shop")  # obj: the store


def is_commands(text: str) -> None:
    for line in text.strip().splitlines():
        is_command(line)


def is_python(text: str) -> None:
    ast.parse(text)


def is_shell(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def names_metrics(text: str) -> None:
    """Each metric that an alert is about is one that we export."""
    found = set(re.findall(r"\bjstream_\w+", text))
    assert found
    assert found <= METRICS.keys() | MAINTENANCE_METRICS.keys(), found - set(METRICS)


def names_targets(text: str) -> None:
    for target in re.findall(r"^make (\S+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def are_pages(text: str) -> None:
    """Each address is that of a page."""
    patterns = [page.path for page in SERVED_PAGES] + ["/overview", "/rescue", "/rescue/streams/{name}"]
    shapes = [re.compile(re.sub(r"\{.*?\}", "[^/]+", pattern)) for pattern in patterns]
    for address in text.split():
        path = address.removeprefix("/api").partition("?")[0]
        assert any(shape.fullmatch(path) for shape in shapes), address


def begins_a_pipeline(text: str) -> None:
    """With a sink it is the file of a pipeline."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f'{text}\n[sink]\nkind = "console"\n')
        file.flush()
        load_pipeline(Path(file.name))


def is_a_pipeline(text: str) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        load_pipeline(Path(file.name))


def are_spark_settings(text: str) -> None:
    """Each line is a setting and a value."""
    for line in text.splitlines():
        assert re.fullmatch(r"spark(\.\w+)+\s+\S+(\s+#.*)?", line), line


def anything(text: str) -> None:
    """Nothing to check without the program that it is for."""


@dataclass(frozen=True)
class NotRun:
    page: str
    begins: str  # how the block begins
    reason: str  # why it is not run; files that are named here are there
    check: Callable[[str], None]


NOT_RUN = [
    NotRun(
        "README.md", "make demo", "tests/spark_stream/test_demo.py runs the demo; the tests are these", names_targets
    ),
    NotRun("README.md", "pip install", "tests/test_packaging.py installs the wheel", is_shell),
    *(
        NotRun(
            "docs/guide/from-kafka.md",
            begins,
            "needs a broker; tests/spark_stream/pipelines/test_kafka.py runs it with one",
            check,
        )
        for begins, check in (
            ("# kafka.toml", is_a_pipeline),
            ("$ jstream etl run kafka.toml", anything),
            ("orders = (", is_python),
        )
    ),
    NotRun(
        "docs/guide/from-nats.md",
        "# warehouse.toml",
        "needs running servers; tests/spark_stream/pipelines/test_live.py has one",
        is_a_pipeline,
    ),
    NotRun(
        "docs/guide/live-nats.md",
        "orders = (",
        "needs running servers; tests/datasource/test_live.py has one",
        is_python,
    ),
    NotRun(
        "docs/guide/live-nats.md",
        "query = (",
        "needs running servers; tests/datasource/test_live_stream.py has one",
        is_python,
    ),
    NotRun(
        "docs/guide/live-nats.md",
        "(\n    orders.select",
        "needs running servers; tests/datasource/test_live_writer.py has one",
        is_python,
    ),
    NotRun(
        "docs/guide/live-nats.md",
        "$ jstream mirror nats://",
        "needs running servers; tests/spark_stream/cli/test_mirror.py has one",
        anything,
    ),
    NotRun(
        "docs/guide/object-stores.md",
        "jstream store create",
        "needs buckets; tests/spark_stream/cli/test_object_stores.py has some",
        is_commands,
    ),
    NotRun(
        "docs/guide/object-stores.md",
        "mkdir -p buckets",
        "needs a free port; tests/spark_stream/cli/test_object_stores.py runs it on another one",
        is_shell,
    ),
    NotRun(
        "docs/guide/object-stores.md",
        "checkpoint = ",
        "needs S3A; tests/spark_stream/pipelines/test_state.py has a checkpoint in a bucket",
        begins_a_pipeline,
    ),
    NotRun("docs/guide/quickstart.md", "python3 -m venv", "tests/test_packaging.py installs the wheel", is_shell),
    NotRun(
        "docs/guide/etl.md",
        "export PYSPARK_SUBMIT_ARGS",
        "tests/datasource/test_spark_connect.py runs it, twice, with a folder of its own",
        is_shell,
    ),
    NotRun(
        "docs/guide/monitoring.md",
        "jstream metrics --port",
        "goes on until it is stopped; tests/spark_stream/cli/test_metrics.py asks it",
        is_command,
    ),
    NotRun(
        "docs/guide/monitoring.md",
        "import logging",
        "needs running queries; tests/spark_stream/test_monitoring.py has them",
        is_python,
    ),
    NotRun(
        "docs/guide/monitoring.md",
        "query copying",
        "a line of a log, which tests/spark_stream/test_monitoring.py looks for",
        anything,
    ),
    NotRun(
        "docs/guide/ui.md",
        "jstream ui",
        "goes on until it is stopped; tests/spark_stream/cli/test_ui.py starts it",
        is_command,
    ),
    NotRun("docs/guide/ui.md", "/api/overview", "tests/spark_stream/ui/test_pages.py asks them", are_pages),
    NotRun("docs/guide/monitoring.md", "jstream_up", "Prometheus reads it", names_metrics),
    NotRun("docs/guide/operations.md", "*/10 * * * *", "cron runs it", is_crontab),
    NotRun(
        "docs/guide/operations.md",
        "jstream export --set-aside",
        "needs a copy of a store that was written on; tests/spark_stream/cli/test_losses.py has one",
        is_commands,
    ),
    NotRun(
        "docs/guide/where-it-runs.md",
        "jstream doctor",
        "needs a cluster; tests/spark_stream/test_executors.py has one on this machine",
        is_command,
    ),
    NotRun("docs/guide/where-it-runs.md", "spark.hadoop.fs.s3a", "needs S3A", are_spark_settings),
    NotRun("docs/guide/where-it-runs.md", "spark-submit --master yarn", "needs YARN", is_shell),
    NotRun("docs/guide/where-it-runs.md", "python3 -m venv", "packs 150 MB, for a cluster", is_shell),
    NotRun("docs/scheduling.md", "PATH=", "cron runs it", is_crontab),
    NotRun(
        "docs/scheduling.md",
        "spark-submit",
        "fetches Delta from Maven; tests/spark_stream/pipelines/test_killed.py submits with JARs that are here",
        is_shell,
    ),
]


def not_run(page: Path, text: str) -> list[NotRun]:
    return [one for one in NOT_RUN if one.page == page_name(page) and text.startswith(one.begins)]


def is_run(page: Path, kind: str) -> bool:
    if kind == "text":
        return page.name in OF_PIPELINES or bool(blocks(page, "python"))
    if kind in ("python", "console"):
        return page.name != "README.md" or kind == "python"
    if page.name in OF_PIPELINES:
        return kind in ("sh", "toml", "py", "json")
    return kind == "sh"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_is_run_or_has_a_reason_not_to_be(page: Path) -> None:
    for kind, text in BLOCK.findall(page.read_text()):
        if not is_run(page, kind):
            (why,) = not_run(page, text) or pytest.fail(f"{page_name(page)}: nobody runs this block:\n{text}")
            why.check(text)


@pytest.mark.parametrize("one", NOT_RUN, ids=lambda one: f"{Path(one.page).stem}-{one.begins.split()[0]}")
def test_every_reason_not_to_run_is_one_of_a_block_and_names_what_is_there(one: NotRun) -> None:
    page = ROOT / one.page
    assert [kind for kind, text in BLOCK.findall(page.read_text()) if one in not_run(page, text)] == [""]
    assert all((ROOT / name).exists() for name in re.findall(r"\S+\.py", one.reason))


# --- what is named within a line ---


@cache
def program() -> Any:
    return typer.main.get_command(app)


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that `words` begin with, and its name; takes these words, and options before them, away."""
    command = program()
    names: list[str] = []
    while hasattr(command, "commands") and words:
        found = command.get_command(None, words[0])
        if found is None:
            assert command.invoke_without_command, (names, words)
            break
        command = found
        names.append(words.pop(0))
    return command, names


def commands_in_lines() -> Iterator[tuple[str, str]]:
    for page in ALL_PAGES:
        for span in re.findall(r"`(jstream [^`]+)`", BLOCK.sub("", page.read_text())):
            yield page_name(page), span


def test_commands_named_in_the_text_are_commands() -> None:
    wrong = []
    for page, span in commands_in_lines():
        words = [word for word in span.split()[1:] if word != "..."]
        if words[0] in ("VERB", "--help", "--version") or words[0].isupper():
            continue
        try:
            command, _ = find_command(words)
        except AssertionError:
            wrong.append(f"{page}: {span}: no such command")
            continue
        options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        said = re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", span)
        wrong += [f"{page}: {span}: {option}" for option in said if option not in options]
    assert wrong == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=page_name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    missing = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert missing == []


def test_make_targets_named_in_the_text_are_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in ALL_PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert named <= targets, named - targets


def test_files_named_in_the_text_are_there() -> None:
    folders = ("benchmarks", "conf", "datasource", "scripts", "spark_stream", "storage_core", "tests")
    there = [f"/{file.name}" for file in ROOT.glob("*.*")]
    there.append(f"/{FOLDER_FILE}")  # users write it
    there += [f"/{file.relative_to(ROOT).as_posix()}" for name in folders for file in (ROOT / name).rglob("*.*")]
    wrong = []
    for page in ALL_PAGES:
        for span in re.findall(r"`([\w./-]+\.(?:py|toml|conf|properties|yml))`", BLOCK.sub("", page.read_text())):
            if not any(file.endswith(f"/{span}") for file in there):
                wrong.append(f"{page_name(page)}: {span}")
    assert wrong == []


# --- tables that are made, or that quote the code ---


def test_the_option_tables_are_those_of_the_code() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "option_tables.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (DOCS / "guide" / "options.md").read_text() == made.stdout


def test_the_versions_of_spark_are_those_that_tests_run_with() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "spark_matrix.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    page = (DOCS / "guide" / "where-it-runs.md").read_text()
    assert all(row in page.splitlines() for row in made.stdout.splitlines())


def test_the_table_of_errors_is_that_of_the_classes() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "error_table.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (DOCS / "guide" / "errors.md").read_text() == made.stdout


def test_the_picture_is_that_of_the_demos_nodes() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "drift_picture.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (DOCS / "images" / "drift.svg").read_text() == made.stdout


# Messages that are Spark's or Python's own.
NOT_OURS = (
    "DATA_SOURCE_NOT_FOUND",
    "JAVA_GATEWAY_EXITED",
    "Python worker failed to connect back",
    "UNSUPPORTED_DATA_SOURCE_SAVE_MODE",
)
# What stands for any value in a quoted message.
EXAMPLE = r"(?<!\w)'[^']*'|/srv\S+|\b(?=\w*\d)[\w.]+\b|\bhost \w\b"


@cache
def texts_of_the_code() -> list[str]:
    """Return every text in the packages, with NUL where a value is put in."""
    found = []
    for package in ("storage_core", "datasource", "spark_stream", "pyspark_jstream"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [one.value if isinstance(one, ast.Constant) else "\0" for one in node.values]
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


def is_said(message: str) -> bool:
    """Return whether the code has this message. `...` leaves out; quoted names and numbers stand for any value."""
    error = re.match(r"(\w+Error)(: |$)", message)
    if error:
        if not issubclass(getattr(storage_core.errors, error[1], type), Exception):
            return False
        message = message[error.end() :]
    for piece in message.split("..."):
        words = [re.escape(one) for one in re.split(EXAMPLE, piece.strip(" :;,"))]
        pattern = re.compile(".*".join(words), re.DOTALL)
        if piece.strip(" :;,") and not any(pattern.search(text) for text in texts_of_the_code()):
            return False
    return True


@pytest.mark.parametrize("name", ["operations", "troubleshooting"])
def test_messages_that_a_page_quotes_are_said_by_the_code(name: str) -> None:
    """Those in the first column of tables that tell what messages mean."""
    quoted = []
    for table in re.findall(r"^\| (?:error|it says) \|.*\n\|[-|]+\n((?:\|.*\n)+)", page_text(name), re.MULTILINE):
        quoted += [span for row in table.splitlines() for span in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(quoted) >= 4
    assert [span for span in quoted if not span.startswith(NOT_OURS) and not is_said(span)] == []


def page_text(name: str) -> str:
    return (DOCS / "guide" / f"{name}.md").read_text() + "\n"


# Errors that no user gets to see: base classes, and those that are caught on the way.
WITHIN = {"StorageError", "CorruptRecordError", "RequirementError", "TruncatedRecordError"}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\w+Error", text))


def test_every_error_that_users_get_is_looked_up_by_its_name() -> None:
    text = page_text("troubleshooting")
    kinds = [kind for kind in vars(storage_core.errors).values() if isinstance(kind, type)]
    classes = {kind.__name__: kind for kind in kinds if issubclass(kind, storage_core.errors.StorageError)}
    assert classes.keys() >= WITHIN
    # One that is made of another says what that one is about.
    looked_up = {name for name, kind in classes.items() if {one.__name__ for one in kind.__mro__[:2]} & names_in(text)}
    assert classes.keys() - WITHIN - looked_up == set()


def test_a_message_that_nobody_says_is_noticed() -> None:
    assert is_said("NoQuorumError")
    assert is_said("no stream 'ORDRES' ...; did you mean 'ORDERS'?")
    assert not is_said("NoSuchError")
    assert not is_said("no stream 'ORDRES' was ever so blue")


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?((?:https?:)?//[^\" >]+)", page.read_text()
        )
        assert fetched == [], page  # the site is whole without a network
    quickstart = (tmp_path / "site" / "guide" / "quickstart.html").read_text()
    copied = [html.unescape(text).splitlines() for text in re.findall(r'data-copy="([^"]*)"', quickstart)]
    assert copied == [
        re.findall(r"^\$ (.*)$", text, re.MULTILINE) for text in blocks(DOCS / "guide" / "quickstart.md", "console")
    ]
    made_pages = {
        name: (tmp_path / "site" / "reference" / f"{name}.html").read_text() for name in ("commands", "python")
    }
    assert "jstream cluster volume replace" in made_pages["commands"]
    assert all(name in made_pages["python"] for name in ("Store.open_or_create", "Consumer.fetch", "rescue.compare"))
    pages = {page.relative_to(DOCS).with_suffix(".html").as_posix() for page in DOCS.rglob("*.md")}
    made = {page.relative_to(tmp_path / "site").as_posix() for page in (tmp_path / "site").rglob("*.html")}
    assert {name.replace("README.html", "index.html") for name in pages} <= made
