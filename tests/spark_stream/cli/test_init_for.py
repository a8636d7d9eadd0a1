"""`jstream init --for`: files that the schema of Kubernetes and systemd take, and commands that jstream takes."""

import re
import shlex
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml

from spark_stream.cli.app import app
from spark_stream.cli.init import OF_SCHEDULER, Scheduler, templates

CONF = Path(__file__).resolve().parents[3] / "conf"
KUBERNETES = sorted((CONF / "kubernetes").glob("*.yaml"))
UNITS = sorted(path for path in (CONF / "systemd").iterdir() if path.suffix in (".service", ".timer"))
KUBERNETES_VERSION = "1.31"  # the resources are older than that, and kubernetes-validate knows the schema
TOKEN = "a token of the tests"


# --- which files are written


@pytest.mark.parametrize("scheduler", Scheduler)
def test_init_writes_what_a_scheduler_needs_beside_a_project_that_is_there(
    jstream, tmp_path: Path, scheduler: Scheduler
) -> None:
    jstream.done("init", tmp_path)
    outcome = jstream("init", tmp_path, "--for", scheduler.value, with_store=False)
    assert outcome.code == 0, outcome
    names = tmp_path / "conf" / OF_SCHEDULER[scheduler][0]
    assert str(names) in outcome.out.splitlines() and f"begin with the names in {names}" in outcome.err
    again = jstream("init", tmp_path, "--for", scheduler.value, with_store=False)
    assert again.code == 1 and "there already; nothing was written" in again.err


def test_every_template_is_written_for_one_purpose() -> None:
    written = [path for scheduler in (None, *Scheduler) for path in templates(scheduler)]
    assert len(written) == len(set(written))
    assert {path.name for path in templates(Scheduler.kubernetes)} >= {"Containerfile", "entrypoint.sh", "ui.yaml"}


def test_another_scheduler_is_refused_with_those_that_there_are(jstream, tmp_path: Path) -> None:
    outcome = jstream("init", tmp_path, "--for", "cron", with_store=False)
    assert outcome.code == 2
    assert all(scheduler.value in outcome.err for scheduler in Scheduler) and not list(tmp_path.glob("conf"))


# --- Kubernetes


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the resources of conf/kubernetes, with the names of their files."""
    for path in KUBERNETES:
        for document in yaml.safe_load_all(path.read_text()):
            yield path.name, document


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the pods of conf/kubernetes are, with the names of their files."""
    for name, document in documents():
        spec = document.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template is not None:
            yield name, template["spec"]


def test_resources_are_as_the_schema_of_kubernetes_wants_them() -> None:
    kinds = []
    for name, document in documents():
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
        kinds.append((name, document["kind"]))
    assert ("pipeline.yaml", "CronJob") in kinds and ("ui.yaml", "Service") in kinds and len(kinds) == 8


def test_the_schema_refuses_a_misspelt_key() -> None:
    document = next(document for name, document in documents() if name == "pipeline.yaml")
    document["spec"]["concurencyPolicy"] = document["spec"].pop("concurrencyPolicy")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


def test_pods_mount_what_they_have_and_write_nowhere_else() -> None:
    for name, pod in pods():
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        assert container["workingDir"] in {mount["mountPath"] for mount in container["volumeMounts"]}, name
        assert container["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["runAsNonRoot"], name


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl, which builds the kustomization, is not here")
@pytest.mark.parametrize("pipeline", ["pipeline.yaml", "continuous.yaml"])
def test_the_kustomization_puts_its_names_into_all_resources(tmp_path: Path, pipeline: str) -> None:
    folder = tmp_path / "conf"
    shutil.copytree(CONF, folder)
    kustomization = folder / "kustomization.yaml"
    kustomization.write_text(
        kustomization.read_text().replace("- kubernetes/pipeline.yaml", f"- kubernetes/{pipeline}")
    )
    built = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True).stdout
    resources = list(yaml.safe_load_all(built))
    for resource in resources:
        kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)
        assert resource["metadata"]["namespace"] == "jstream"
    made = {(resource["kind"], resource["metadata"]["name"]) for resource in resources}
    assert set(re.findall(r"image: (.*)", built)) == {"registry.example.org/jstream:0.1.0"}
    used = re.findall(r"configMap(?:Ref)?:\n\s*name: (.*)", built)
    assert len(used) == 5 and {("ConfigMap", name) for name in used} <= made
    assert {("PersistentVolumeClaim", name) for name in re.findall(r"claimName: (.*)", built)} <= made
    assert {("ServiceAccount", name) for name in re.findall(r"serviceAccountName: (.*)", built)} <= made


def test_probes_of_the_pages_are_answered_without_the_token(jstream, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    pod = next(pod for name, pod in pods() if name == "ui.yaml")
    (container,) = pod["containers"]
    words = [word.replace("/etc/jstream-ui", str(tmp_path)) for word in container["args"][1:]]
    with jstream.start(*words, "--port", "0") as process:
        try:
            assert process.stderr is not None
            address = re.search(rb"http://[\d.]+:(\d+)/", process.stderr.readline())
            assert address is not None
            for probe in (container["readinessProbe"], container["livenessProbe"]):
                headers = {header["name"]: header["value"] for header in probe["httpGet"]["httpHeaders"]}
                url = f"http://127.0.0.1:{int(address[1])}{probe['httpGet']['path']}"
                with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
                    assert answer.status == 200
        finally:
            process.terminate()


# --- systemd


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd, which verifies its units, is not here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong_with_a_unit(tmp_path: Path, unit: Path) -> None:
    for path in UNITS:
        shutil.copy(path, tmp_path / path.name.replace("@", "@orders"))
    assert complaints(tmp_path / unit.name.replace("@", "@orders")) == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd, which verifies its units, is not here")
def test_systemd_complains_of_a_misspelt_value(tmp_path: Path) -> None:
    unit = tmp_path / "jstream-maintain.service"
    unit.write_text((CONF / "systemd" / unit.name).read_text().replace("KillMode=mixed", "KillMode=mixd"))
    assert len(complaints(unit)) == 1


def complaints(unit: Path) -> list[str]:
    """Return what systemd says of this unit; of others, which this machine has, it may say more."""
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return [line for line in done.stderr.splitlines() if "jstream" in line]


def test_units_name_only_variables_that_the_environment_file_has() -> None:
    named = re.findall(r"^(\w+)=", (CONF / "systemd" / "jstream.env").read_text(), re.MULTILINE)
    used = {name for unit in UNITS for name in re.findall(r"\$\{(\w+)\}", unit.read_text())}
    assert used == {"PIPELINES", "METRICS", "TOKEN_FILE", "LISTEN"} <= set(named)


# --- commands


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each command that Kubernetes and systemd start, with the name of its file."""
    for name, pod in pods():
        yield name, pod["containers"][0]["args"]
    for unit in UNITS:
        for line in re.findall(r"^ExecStart=/usr/bin/env (.*)", unit.read_text(), re.MULTILINE):
            yield unit.name, shlex.split(line)


def parse(command: Any, name: str, words: list[str]) -> None:
    """Parse the words of a command as jstream does, without running it."""
    with command.make_context(name, words) as context:
        if hasattr(command, "resolve_command"):
            verb, chosen, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            parse(chosen, verb, rest)


def test_jstream_takes_every_command_of_the_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSTREAM_STORE", "/data/disk-1")
    started = dict(commands())
    assert len(started) == 10
    for program, *words in started.values():
        assert program == "jstream"
        parse(typer.main.get_command(app), program, words)
