"""Software bill of materials of a release, in CycloneDX format: third-party code in the wheels, and dependencies."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement

LICENSE = LicenseFactory()


def _package(name: str, version: str | None, **more: object) -> Component:
    url = PackageURL("pypi", name=name, version=version)
    return Component(
        name=name,
        version=version,
        purl=url,
        bom_ref=str(url),
        type=ComponentType.LIBRARY,
        **more,  # type: ignore[arg-type]
    )


def linked(nanobind: str, robin_map: str, compilers: Iterable[str]) -> list[Component]:
    """Return the third-party components compiled into the libraries.

    Args:
        nanobind: Version of nanobind.
        robin_map: Version of the hash map that nanobind includes.
        compilers: Versions of GCC, which can differ between CPU architectures.
    """
    return [
        _package("nanobind", nanobind, licenses=[LICENSE.make_with_expression("BSD-3-Clause")]),
        Component(
            name="robin-map",
            version=robin_map,
            type=ComponentType.LIBRARY,
            bom_ref=f"robin-map@{robin_map}",
            purl=PackageURL("github", namespace="tessil", name="robin-map", version=f"v{robin_map}"),
            licenses=[LICENSE.make_with_expression("MIT")],
        ),
        *(
            Component(
                name="libstdc++",
                version=compiler,
                type=ComponentType.LIBRARY,
                bom_ref=f"libstdc++@{compiler}",
                description="linked statically, of GCC",
                licenses=[LICENSE.make_with_expression("GPL-3.0-or-later WITH GCC-exception-3.1")],
            )
            for compiler in sorted(set(compilers))
        ),
    ]


def asked_for(requirements: Iterable[str]) -> list[Component]:
    """Return the packages that pip installs along with a wheel, excluding extras.

    Each package is described by its name and version range.
    """
    found = [Requirement(text) for text in requirements]
    return [_package(each.name, None, description=str(each), scope=ComponentScope.REQUIRED) for each in found]


def document(
    version: str,
    files: Mapping[str, bytes],
    parts: Iterable[Component],
    needs: Iterable[Component],
    tools: Mapping[str, str],
    epoch: int,
) -> str:
    """Return the CycloneDX document as JSON. It depends only on the arguments.

    Args:
        version: Version of the release.
        files: Contents of the sdist and the wheels, by file name.
        parts: Components for the libraries that are part of the wheels, from `linked`.
        needs: Components for the packages that the wheels depend on, from `asked_for`.
        tools: Versions of the build tools by name.
        epoch: Time of the release, in seconds since 1970.

    Raises:
        ValueError: If the document is not valid CycloneDX 1.6.
    """
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, f"horovod {version} {hashes}"))
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, timezone.utc)
    licenses = [LICENSE.make_with_expression("Apache-2.0")]
    bom.metadata.component = horovod = _package("horovod", version, licenses=licenses)
    for name, number in sorted(tools.items()):
        bom.metadata.tools.components.add(Component(name=name, version=number, type=ComponentType.APPLICATION))
    packages = [
        Component(
            name=name,
            type=ComponentType.FILE,
            bom_ref=name,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        )
        for name, digest in hashes.items()
    ]
    parts, needs = list(parts), list(needs)
    for component in [*parts, *needs, *packages]:
        bom.components.add(component)
    bom.register_dependency(horovod, [*needs, *packages])
    for file in packages:
        if file.name.endswith(".whl"):
            bom.register_dependency(file, parts)
    text = JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ValueError(f"not CycloneDX 1.6: {error}")
    return text


def robin_map_version(nanobind: Path) -> str:
    """Return the version of robin-map, the hash map bundled with nanobind."""
    text = (nanobind / "ext/robin_map/include/tsl/robin_growth_policy.h").read_text()
    numbers = re.findall(r"#define TSL_RH_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)
    return ".".join(numbers) or "unknown"
