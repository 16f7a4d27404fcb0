"""Jobs on a real cluster with faults: rights, quotas, evicted pods, lost nodes.

The cluster is that of tools/kubernetes_bed, with the tests as administrator.
"""

import os
import time

import pytest
import yaml

from horovod.runner.kubernetes.api import Api
from tests.runner.kubernetes.real import (
    CONFIG,
    NODES,
    ON_BED,
    STEPS,
    SUM,
    Running,
    admin,
    ask,
    namespace_of,
    nothing_left,
    path,
    pods,
    run,
    until,
)
from tests.runner.kubernetes.test_deploy import DEPLOY

pytestmark = ON_BED
BOB = os.environ.get("HVD_TEST_KUBECONFIG_BOB", "")
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/hvd-team/"


def role(without=()):
    """Create the role of deploy/ for bob, without these pairs (resource, verb)."""
    role, binding = yaml.safe_load_all((DEPLOY / "kubernetes/role.yaml").read_text())
    for rule in role["rules"]:
        for resource, verb in without:
            if resource in rule["resources"]:
                rule["verbs"].remove(verb)
    role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
    return [(ROLES + "roles", role), (ROLES + "rolebindings", binding)]


def run_as_bob(name, *rest):
    return run(name, *rest, config=BOB, namespace="hvd-team")


def test_the_role_permits_all_operations(capfd):
    with namespace_of("hvd-team", *role()):
        assert run_as_bob("hvd-bob", "-np", "2", "--", "python", "-c", SUM) == 0
        assert "[1]<stdout>:rank 1 of 2 local 0 sums 3.0" in capfd.readouterr().out
        assert nothing_left("hvd-bob", "hvd-team")


@pytest.mark.parametrize(("resource", "verb"), [("secrets", "create"), ("pods", "watch")])
def test_missing_permission(capfd, resource, verb):
    with namespace_of("hvd-team", *role([(resource, verb)])):
        assert run_as_bob("hvd-bob", "-np", "2", "--", "true") == 1
        err = capfd.readouterr().err
        assert f"you are not allowed to {verb} {resource} in namespace hvd-team: {resource}" in err
        assert nothing_left("hvd-bob", "hvd-team")


def quota(**hard):
    return path("", "resourcequotas", "hvd-team"), {"metadata": {"name": "few"}, "spec": {"hard": hard}}


def test_exceeded_quota_of_pods(capfd):
    with namespace_of("hvd-team", *role(), quota(pods="2")):
        assert run_as_bob("hvd-bob", "-np", "4", "--start-timeout", "12", "--", "true") == 1
        err = capfd.readouterr().err
        assert "waited 12 s" in err  # the launcher's pod or horovodrun gives up first
        assert "Error creating: pods" in err
        assert "is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2" in err
        assert nothing_left("hvd-bob", "hvd-team")


def elastic(name, *rest, program=STEPS):
    return Running(name, "-np", "2", "--min-np", "1", "--max-np", "2", "--", "python", "-c", program, *rest)


def test_deletion_of_a_pod_notifies_all_ranks():
    with elastic("hvd-go", "stops") as job:
        job.stepped(2)
        time.sleep(1)  # a process without a subscription gets no message
        admin().request("DELETE", path(next(iter(pods("hvd-go")))))
        assert job.wait(60) == 0
        stops = [text for _, text in job.lines if "stops at" in text]
        assert len(stops) == 2, job.text
        assert len({text.rpartition(" ")[2] for text in stops}) == 1  # at the same step
        assert nothing_left("hvd-go")


def test_drained_pods_are_replaced_at_once():
    with elastic("hvd-drain") as job:
        job.stepped(2)
        first = set(pods("hvd-drain"))
        drained = sorted(first)[0]
        start = time.time()
        evict(drained)
        until(lambda: drained not in pods("hvd-drain"), 30)
        until(lambda: set(pods("hvd-drain")) - first, 5, "no other pod comes at once")
        job.stepped(1, start, 30)
        job.stepped(2, time.time(), 60)
    assert nothing_left("hvd-drain")


def evict(pod):
    """Evict a pod by the API, as `kubectl drain` does."""
    body = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": pod}}
    api = Api(CONFIG)
    response = api._send("POST", api._configuration.host + path(f"{pod}/eviction"), 30.0, body)
    assert response.status < 300, response.data


@pytest.mark.skipif(NODES < 2, reason="the cluster has one node (make test-kubernetes)")
def test_ranks_on_two_nodes(tmp_path, capfd):
    program = SUM + "import os, socket; print('is at', socket.gethostname(), hvd.cross_size(), flush=True)"
    template = tmp_path / "pod.yaml"
    workers = {"app.kubernetes.io/instance": "hvd-two", "app.kubernetes.io/component": "worker"}
    label = {"matchLabels": workers}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    spec = {"containers": [{"name": "horovod"}], "topologySpreadConstraints": [{**spread, "labelSelector": label}]}
    template.write_text(yaml.safe_dump({"spec": spec}))
    args = ("-np", "4", "--slots-per-pod", "2", "--detach", "--keep", "60", "--pod-template", str(template))
    assert run("hvd-two", *args, "--", "python", "-c", program) == 0
    assert ask("attach", "hvd-two") == 0
    nodes = {each["spec"]["nodeName"] for each in pods("hvd-two").values()}
    assert nodes == {"bed-1", "bed-2"}
    out = capfd.readouterr().out
    for rank in range(4):
        assert f"[{rank}]<stdout>:rank {rank} of 4 local {rank % 2} sums 10.0" in out
        assert f"[{rank}]<stdout>:is at hvd-two-workers-{rank // 2} 2" in out
    assert ask("delete", "hvd-two") == 0
    assert nothing_left("hvd-two")
