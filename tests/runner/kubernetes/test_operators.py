"""The manifests of deploy/ on a real API server that has the definitions of Kubeflow's jobs."""

import json
import os

import pytest
import yaml

from tests.runner.kubernetes.real import ON_BED, admin, kubectl, names_in, until
from tests.runner.kubernetes.test_deploy import DEPLOY, definition

pytestmark = ON_BED
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS = [
    ("kubeflow/mpijob-v2beta1.yaml", "mpijobs.json", "slotsPerWorker"),
    ("kubeflow/trainjob.yaml", "trainjobs.json", "suspend"),
]


@pytest.fixture
def defined():
    """Install definitions until the test ends."""
    client, created = admin(), []

    def install(crd):
        client.request("POST", CRDS, crd)
        created.append(crd["metadata"]["name"])

        def established():
            found = client.request("GET", f"{CRDS}/{created[-1]}")["status"].get("conditions") or []
            return any((each["type"], each["status"]) == ("Established", "True") for each in found)

        until(established, 30, "the definition is not taken")

    yield install
    for each in created:
        client.request("DELETE", f"{CRDS}/{each}")
        until(lambda: each not in names_in(client, CRDS), 60)  # noqa: B023


@pytest.mark.parametrize(("manifest", "crd", "no_word"), KINDS)
def test_the_server_accepts_the_jobs_of_deploy(defined, manifest, crd, no_word):
    defined(definition(crd))
    code, output = kubectl("create", "--dry-run=server", "-f", str(DEPLOY / manifest))
    assert code == 0, output
    assert "created (server dry run)" in output
    broken = yaml.safe_load((DEPLOY / manifest).read_text())
    broken["spec"][no_word] = "a word"
    code, output = kubectl("create", "--validate=false", "--dry-run=server", "-f", "-", stdin=json.dumps(broken))
    assert code != 0
    assert no_word in output


@pytest.mark.parametrize("manifest", ["kubernetes/role.yaml", "kustomize/base/job.yaml"])
def test_the_server_accepts_jobs_without_operators(manifest):
    found = list(yaml.safe_load_all((DEPLOY / manifest).read_text()))
    for each in found:
        code, output = kubectl(
            *("create", "--validate=false", "--dry-run=server", "-f", "-"),
            stdin=each,
            config=os.environ["HVD_TEST_KUBECONFIG"],
        )
        assert code == 0, output
