"""The software bill of materials."""

import hashlib
import json

import pytest

pytest.importorskip("cyclonedx")
from tools.wheels import sbom

pytestmark = pytest.mark.heavy
FILES = {"horovod-1.0.tar.gz": b"sources", "horovod-1.0-cp312-abi3-manylinux_2_28_x86_64.whl": b"wheel"}
WHEEL = "horovod-1.0-cp312-abi3-manylinux_2_28_x86_64.whl"


def written(files=FILES, epoch=1_700_000_000):
    parts = sbom.linked("3.1.0", "1.4.0", ["12.2.0", "12.2.0"])
    needs = sbom.asked_for(["pyzmq>=25.1"])
    return sbom.document("1.0", files, parts, needs, {"cmake": "4.0"}, epoch)


def test_the_sbom_lists_the_content_of_each_file():
    content = json.loads(written())
    components = {component["name"]: component for component in content["components"]}
    assert set(components) == {*FILES, "nanobind", "robin-map", "libstdc++", "pyzmq"}
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert components[WHEEL]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert components["pyzmq"]["description"] == "pyzmq>=25.1"
    depends = {entry["ref"]: entry.get("dependsOn", []) for entry in content["dependencies"]}
    assert depends[WHEEL] == ["libstdc++@12.2.0", "pkg:pypi/nanobind@3.1.0", "robin-map@1.4.0"]
    assert depends["horovod-1.0.tar.gz"] == []  # it has only our own sources
    assert content["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
