"""What is published: the wheel, the sdist, and the list of their components (CycloneDX). `make dist`.

    .venv/bin/python scripts/distribution.py dist

The same commit gives the same bytes: hatchling writes fixed times and a fixed order, and the list of components has
neither a time nor a random number. Its versions are those of the environment that runs this script.
"""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
NAME = "pyspark-jstream"
BUNDLED = ("htmx.org", "2.0.11", "0BSD")  # spark_stream/ui/static/htmx.min.js
EXTRAS_OF_DEVELOPERS = {"dev"}


def main(arguments: list[str]) -> None:
    (folder,) = arguments
    for path in build(Path(folder)):
        print(path)


def build(folder: Path) -> list[Path]:
    """Build everything in `folder`, let twine check it, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(folder.resolve())], cwd=ROOT, check=True
    )
    packages = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, packages)], check=True)
    (wheel,) = folder.glob("*.whl")
    components = folder / (wheel.name.split("-py3")[0] + ".cdx.json")
    components.write_text(list_components())
    return [*packages, components]


def list_components() -> str:
    """Return the components of an installation as JSON of CycloneDX 1.6: what the wheel contains and what it needs."""
    tree = Components()
    name, version, license_id = BUNDLED
    bundled = Component(
        name=name,
        version=version,
        bom_ref=f"{name}@{version}",
        licenses=[LicenseFactory().make_from_string(license_id)],
        purl=PackageURL("npm", name=name, version=version),
        scope=ComponentScope.REQUIRED,
    )
    bom = Bom(components=[bundled], serial_number=uuid5(NAMESPACE_URL, tree.root.purl.to_string()))
    bom.metadata.component = tree.root
    bom.components.update(tree.of.values())
    for component, needed in tree.needs:
        bom.register_dependency(component, needed)
    bom.register_dependency(tree.root, [bundled])
    content = json.loads(JsonV1Dot6(bom).output_as_string())
    del content["metadata"]["timestamp"]
    return json.dumps(content, indent=2, sort_keys=True) + "\n"


class Components:
    """The packages that an installation with all extras has, of those that are installed here."""

    def __init__(self) -> None:
        self.of: dict[str, Component] = {}
        self.needs: list[tuple[Component, list[Component]]] = []
        self._scope = ComponentScope.REQUIRED
        self.root = _component(NAME, ComponentScope.REQUIRED)
        extras = set(distribution(NAME).metadata.get_all("Provides-Extra", [])) - EXTRAS_OF_DEVELOPERS
        required = self._needed_by(NAME, {""})
        self._scope = ComponentScope.OPTIONAL
        self.needs.append((self.root, [*required, *self._needed_by(NAME, extras)]))

    def _needed_by(self, package: str, extras: set[str]) -> list[Component]:
        needed = []
        for text in distribution(package).requires or []:
            requirement = Requirement(text)
            environments = [{**default_environment(), "extra": extra} for extra in extras]
            if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
                component = self._add(requirement)
                needed += [component] if component is not None else []
        return needed

    def _add(self, requirement: Requirement) -> Component | None:
        name = canonicalize_name(requirement.name)
        if name in self.of or name == NAME:
            return self.of.get(name)
        try:
            self.of[name] = component = _component(name, self._scope)
        except PackageNotFoundError:
            return None  # of an extra that is not installed here
        self.needs.append((component, self._needed_by(name, {"", *requirement.extras})))
        return component


def _component(name: str, scope: ComponentScope) -> Component:
    found = distribution(name)
    stated = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    return Component(
        name=name,
        version=found.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}@{found.version}",
        licenses=[LicenseFactory().make_from_string(stated)] if stated and len(stated) < 100 else [],
        purl=PackageURL("pypi", name=name, version=found.version),
        scope=scope,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
