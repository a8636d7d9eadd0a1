"""JARs from Maven: which ones Delta needs, and fetching them from a repository that is a folder."""

import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from spark_stream import jars
from spark_stream.session import local_settings

ROOT = Path(jars.__file__).resolve().parents[1]
SETTINGS = """<ivysettings><settings defaultResolver="folder"/><resolvers>
<ibiblio name="folder" m2compatible="true" root="{}"/></resolvers></ivysettings>"""
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>{}</groupId><artifactId>{}</artifactId>
<version>{}</version>{}</project>"""
NEEDS = """<dependencies><dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
</dependency></dependencies>"""
STORAGE = "io.delta:delta-storage:0.1"
HAS_DELTA = pytest.mark.skipif(bool(jars.no_delta()), reason=jars.no_delta())


@pytest.fixture(autouse=True)
def _no_jars_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JSTREAM_DELTA_JARS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that Spark takes for the only Maven repository there is."""
    place, conf = tmp_path / "repository", tmp_path / "conf"
    place.mkdir()
    conf.mkdir()
    (conf / "ivysettings.xml").write_text(SETTINGS.format(place.as_uri()))
    (conf / "spark-defaults.conf").write_text(f"spark.jars.ivySettings {conf / 'ivysettings.xml'}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    return place


def deploy(repository: Path, package: str, needs: str = "") -> None:
    group, artifact, number = package.split(":")
    place = repository / group.replace(".", "/") / artifact / number
    place.mkdir(parents=True)
    (place / f"{artifact}-{number}.pom").write_text(
        POM.format(group, artifact, number, NEEDS.format(*needs.split(":")) if needs else "")
    )
    with zipfile.ZipFile(place / f"{artifact}-{number}.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")


def command(*words: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "spark_stream.cli", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        cwd=folder,
    )


@HAS_DELTA
def test_the_package_is_that_of_the_installed_delta_and_spark() -> None:
    spark = ".".join(version("pyspark").split(".")[:2])
    assert jars.delta_package() == f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"


@HAS_DELTA
@pytest.mark.spark
def test_jars_are_fetched_with_all_that_they_need_and_then_found(repository: Path, tmp_path: Path) -> None:
    package = jars.delta_package()
    assert package is not None
    deploy(repository, package, needs=STORAGE)
    deploy(repository, STORAGE)
    folder = tmp_path / "jars of ours"
    folder.mkdir()
    (folder / "other.txt").touch()
    done = command("etl", "fetch-jars", "jars of ours", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == [
        "delta-spark_" + jars.jar_name(package).partition("_")[2],
        "delta-storage-0.1.jar",
        "other.txt",
    ]
    assert f"JSTREAM_DELTA_JARS={folder}" in done.stderr
    assert list(folder.parent.glob(".jars*")) == []

    reported: list[str] = []
    jars.require_delta_jars({}, reported.append)  # into the user's cache
    assert [jar.name for jar in jars.delta_jars()] == [jars.jar_name(package), "delta-storage-0.1.jar"]
    assert reported == [f"fetching Delta's JARs, once ({package})"]
    jars.require_delta_jars({}, reported.append)
    assert len(reported) == 1


@HAS_DELTA
@pytest.mark.spark
def test_a_pom_without_its_jar_in_the_home_of_the_user_stands_in_nobodys_way(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Maven leaves such POMs behind. Spark's resolver asks `~/.m2` first, and takes that answer for the only one."""
    package = jars.delta_package()
    assert package is not None
    deploy(repository, package, needs=STORAGE)
    deploy(repository, STORAGE)
    deploy(tmp_path / "home" / ".m2" / "repository", STORAGE)
    (lonely,) = (tmp_path / "home").rglob("*.jar")
    lonely.unlink()
    (tmp_path / "conf" / "ivysettings.xml").write_text(
        """<ivysettings><settings defaultResolver="both"/><resolvers><chain name="both" returnFirst="true">
        <ibiblio name="home" m2compatible="true" root="file:${user.home}/.m2/repository/"/>"""
        f'<ibiblio name="folder" m2compatible="true" root="{repository.as_uri()}"/></chain></resolvers></ivysettings>'
    )
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-Duser.home={tmp_path / 'home'}")
    done = command("etl", "fetch-jars", "jars", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "jars").glob("*.jar"))) == 2


@HAS_DELTA
def test_jars_are_not_fetched_into_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "jars").touch()
    done = command("etl", "fetch-jars", "jars", folder=tmp_path)
    assert done.returncode == 1
    assert f"cannot be fetched: {tmp_path / 'jars'} is not a directory" in done.stderr


@HAS_DELTA
@pytest.mark.spark
def test_a_pipeline_whose_jars_cannot_be_fetched_says_what_to_do_before_spark_starts(
    repository: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    assert command("store", "create", str(store)).returncode == 0
    assert command("stream", "add", "ORDERS", "--store", str(store)).returncode == 0
    (tmp_path / "orders.toml").write_text(
        'checkpoint = "c"\n[source]\nstore = "store"\nstream = "ORDERS"\n[sink]\nkind = "delta"\npath = "t"\n'
    )
    done = command("etl", "run", "--verbose", str(tmp_path / "orders.toml"))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"({jars.delta_package()}) cannot be fetched: [unresolved dependency" in last
    assert "run `jstream etl fetch-jars DIR`" in last and "set JSTREAM_DELTA_JARS=DIR" in last
    assert "starting Spark" not in done.stderr


def test_a_folder_without_delta_is_refused_and_settings_of_ones_own_are_not_looked_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JSTREAM_DELTA_JARS", str(tmp_path))
    with pytest.raises(jars.JarsError, match="no delta-spark"):
        jars.require_delta_jars({})
    own = {"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}
    jars.require_delta_jars(own)
    assert "spark.sql.extensions" in local_settings(own)
    assert "spark.sql.extensions" not in local_settings({})


def test_jars_of_the_user_stand_beside_those_of_delta(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JSTREAM_DELTA_JARS", str(tmp_path))
    (tmp_path / "delta-spark_4.2.jar").touch()
    assert local_settings({"spark.jars": "mine.jar"})["spark.jars"] == f"{tmp_path}/delta-spark_4.2.jar,mine.jar"
    assert local_settings({"spark.jars": "mine.jar"}, delta=False)["spark.jars"] == "mine.jar"


def test_the_telling_line_of_a_failed_download_is_found() -> None:
    output = "resolving\n\tServer access error at url X (UnknownHostException: X)\nException in thread main\n"
    assert jars.failure_reason(output) == "Server access error at url X (UnknownHostException: X)"
    output = 'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: a#b;1: not found]'
    assert jars.failure_reason(output) == "[unresolved dependency: a#b;1: not found]"
    assert jars.failure_reason("\n") == "Spark said nothing"


@pytest.mark.parametrize(
    ("spark", "delta", "package"),
    [
        ("4.0.5", "4.4.0", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        ("4.1.4", "4.4.0", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("4.2.0", "4.4.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.0.5", "4.0.1", "io.delta:delta-spark_2.13:4.0.1"),
        ("4.1.4", "4.0.1", None),
        ("4.3.0", "4.4.0", None),
    ],
)
def test_delta_is_that_of_the_installed_spark(
    monkeypatch: pytest.MonkeyPatch, spark: str, delta: str, package: str | None
) -> None:
    monkeypatch.setattr(jars, "version", {"pyspark": spark, "delta-spark": delta}.__getitem__)
    assert jars.delta_package() == package
    if package is None:
        with pytest.raises(jars.JarsError, match=f"Delta {delta} has no JARs for Spark {spark[:3]}"):
            jars.require_delta_jars({})


def test_jars_of_another_spark_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JSTREAM_DELTA_JARS", str(tmp_path))
    (tmp_path / "delta-spark_3.9_2.13-4.4.0.jar").touch()
    assert jars.delta_jars() == []
    with pytest.raises(jars.JarsError, match=r"delta-spark_3\.9_2\.13-4\.4\.0\.jar is not for Spark"):
        jars.require_delta_jars({})
