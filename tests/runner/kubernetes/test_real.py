"""Jobs on a real cluster, which `make test-kubernetes` names: with its own scheduler, kubelets, DNS and quotas."""

import os

import pytest
import yaml

from horovod.runner.kubernetes.api import Api
from horovod.runner.launch import main

CONFIG, IMAGE = os.environ.get("HVD_TEST_KUBECONFIG", ""), os.environ.get("HVD_TEST_IMAGE", "")
NAMESPACE = os.environ.get("HVD_TEST_NAMESPACE") or "default"
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (CONFIG and IMAGE), reason="no real cluster here (make test-kubernetes)"),
]
SUM = """
import horovod.numpy as hvd, numpy as np
hvd.init()
total = hvd.allreduce(np.array([float(hvd.rank() + 1)]), op=hvd.Sum)
print("rank", hvd.rank(), "of", hvd.size(), "sums", total[0], flush=True)
"""


def run(name, *rest):
    cluster = ["--kubeconfig", CONFIG, "--namespace", NAMESPACE]
    return main(["kubernetes", *cluster, "--image", IMAGE, "--name", name, "--grace", "5", *rest])


def nothing_left(name):
    api = Api(CONFIG, namespace=NAMESPACE)
    label = f"app.kubernetes.io/instance={name}"
    return not any(api.list(kind, labelSelector=label)["items"] for kind in ("Pod", "Job", "Service"))


@pytest.mark.parametrize("elastic", [(), ("--min-np", "1", "--max-np", "4")])
def test_the_api_server_takes_what_is_created(capfd, elastic):
    assert run("hvd-dry", "-np", "2", *elastic, "--dry-run", "--", "true") == 0
    api = Api(CONFIG, namespace=NAMESPACE)
    for each in yaml.safe_load_all(capfd.readouterr().out):
        made = api.create(each, dry=True)
        if each["kind"] == "Job" and "completionMode" in each["spec"]:
            assert made["spec"]["completionMode"] == "Indexed"  # from Kubernetes 1.24 on


def test_a_job_trains(capfd):
    assert run("hvd-train", "-np", "4", "--slots-per-pod", "2", "--", "python", "-c", SUM) == 0
    out = capfd.readouterr().out
    for rank in range(4):
        assert f"[{rank}]<stdout>:rank {rank} of 4 sums 10.0" in out
    assert nothing_left("hvd-train")


def test_the_exit_code(capfd):
    assert run("hvd-fail", "-np", "2", "--", "python", "-c", SUM + "raise SystemExit(7 * hvd.rank())") == 7
    assert nothing_left("hvd-fail")


def test_an_image_that_is_not_there(capfd):
    assert run("hvd-image", "-np", "1", "--image", "registry.invalid/none:1", "--", "true") == 1
    assert "cannot start: " in capfd.readouterr().err
    assert nothing_left("hvd-image")


def test_more_than_there_is(capfd):
    assert run("hvd-much", "-np", "1", "--cpu", "100000", "--start-timeout", "10", "--", "true") == 1
    assert "Unschedulable" in capfd.readouterr().err
    assert nothing_left("hvd-much")
