"""Writes what a release contains and needs, a CycloneDX file, beside its source distribution.

    python wheels/sbom.py dist/horovod-1.0.0.tar.gz

It has what pip installs beside Horovod, also for extras, and what is a part of its files: code of
others that is copied or linked into them. The same distribution gives the same bytes.
"""

from __future__ import annotations

import argparse
import datetime
import email
import hashlib
import os
import re
import sys
import tarfile
import uuid
from importlib.metadata import version
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement

SCHEMA = SchemaVersion.V1_6
# Where uPlot names its version.
UPLOT = "src/horovod/runner/dashboard/page/uPlot.esm.js"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sdist", type=Path, help="the source distribution, horovod-….tar.gz")
    sdist = parser.parse_args().sdist
    if not sdist.name.endswith(".tar.gz") or not sdist.is_file():
        sys.exit(f"There is no source distribution {sdist}; `make sdist` writes it to dist/.")
    text = to_json(make_bom(sdist))
    target = sdist.with_name(sdist.name.removesuffix(".tar.gz") + ".cdx.json")
    target.write_text(text, encoding="utf-8")
    print(f"{target}: CycloneDX {SCHEMA.to_version()}")


def make_bom(sdist: Path) -> Bom:
    """Returns what ``sdist`` contains and needs."""
    metadata = email.message_from_string(_read(sdist, "PKG-INFO"))
    digest = hashlib.sha256(sdist.read_bytes()).hexdigest()
    horovod = _component("horovod", metadata["Version"], ComponentType.FRAMEWORK)
    horovod.bom_ref.value = f"horovod=={horovod.version}"  # else a random one
    horovod.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=digest))
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"sha256:{digest}"))
    bom.metadata.component = horovod
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(
        int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc
    )
    parts = [*_installed(metadata.get_all("Requires-Dist", [])), *_contained(sdist)]
    for part in parts:
        bom.components.add(part)
    bom.register_dependency(horovod, parts)
    return bom


def to_json(bom: Bom) -> str:
    """Returns the file for ``bom``.

    Raises:
        SystemExit: if it would not follow the schema.
    """
    text: str = make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2)
    errors = JsonStrictValidator(SCHEMA).validate_str(text)
    if errors is not None:
        sys.exit(f"The list does not follow CycloneDX {SCHEMA.to_version()}: {errors}")
    return text + "\n"


def _installed(requirements: list[str]) -> list[Component]:
    """What pip installs; a package that several extras want appears once for each of its bounds."""
    found = {}
    for each in map(Requirement, requirements):
        scope = ComponentScope.OPTIONAL if each.marker else ComponentScope.REQUIRED
        component = _component(each.name, None, ComponentType.LIBRARY, scope)
        component.properties.add(Property(name="horovod:requirement", value=str(each)))
        found[each.name, str(each.specifier)] = component
    return [_named_apart(name, bounds, each) for (name, bounds), each in found.items()]


def _named_apart(name: str, bounds: str, component: Component) -> Component:
    component.bom_ref.value = f"{name}{bounds}"
    return component


def _contained(sdist: Path) -> list[Component]:
    """Code of others in Horovod's files: copied, or linked into the libraries of wheels."""
    uplot = re.search(r"uPlot \(v([\d.]+)\)", _read(sdist, UPLOT))
    if uplot is None:
        sys.exit(f"{UPLOT} does not name its version.")
    parts = [
        _component("uplot", uplot[1], ComponentType.LIBRARY, kind="npm"),
        _component("nanobind", version("nanobind"), ComponentType.LIBRARY),
        # Its libc++ is a part of the libraries in wheels.
        _component("ziglang", version("ziglang"), ComponentType.LIBRARY),
    ]
    for part in parts:
        part.properties.add(Property(name="horovod:contained", value="true"))
        part.bom_ref.value = f"{part.name}=={part.version}"
    return parts


def _component(
    name: str,
    number: str | None,
    type_: ComponentType,
    scope: ComponentScope | None = None,
    kind: str = "pypi",
) -> Component:
    purl = PackageURL(type=kind, name=name, version=number)
    return Component(name=name, version=number, type=type_, scope=scope, purl=purl)


def _read(sdist: Path, path: str) -> str:
    root = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as files:
        stream = files.extractfile(f"{root}/{path}")
        if stream is None:
            sys.exit(f"{sdist} has no file {path}.")
        return stream.read().decode()


if __name__ == "__main__":
    main()
