"""The machines of a job, from the variables that training services set."""

import json

import pytest

from horovod.runner import api
from horovod.runner.base.job_result import LaunchError
from horovod.runner.command import cli
from horovod.runner.doctor import doctor
from horovod.runner.plan import allocations
from horovod.runner.plan.allocations import Machines, machines
from horovod.runner.plan.hosts import Host

CONFIG = {
    "current_host": "algo-1",
    "current_instance_type": "ml.p3.16xlarge",
    "current_group_name": "homogeneousCluster",
    "hosts": ["algo-1", "algo-2"],
    "instance_groups": [
        {"instance_group_name": "homogeneousCluster", "instance_type": "ml.p3.16xlarge", "hosts": ["algo-1", "algo-2"]}
    ],
    "network_interface_name": "eth0",
}
SAGEMAKER = {
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-1",
    "SM_NUM_GPUS": "8",
    "SM_RESOURCE_CONFIG": json.dumps(CONFIG),
}
SPEC = {
    "cluster": {
        "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
        "workerpool1": ["cmle-training-workerpool1-ab-0:2222", "cmle-training-workerpool1-ab-1:2222"],
        "workerpool2": ["cmle-training-workerpool2-ab-0:2222"],
    },
    "environment": "cloud",
    "task": {"type": "workerpool0", "index": 0},
}
VERTEX = {"CLUSTER_SPEC": json.dumps(SPEC)}
VERTEX_NAMES = tuple(f"cmle-training-workerpool{name}" for name in ("0-ab-0", "1-ab-0", "1-ab-1"))


def spec(**changes):
    return {"CLUSTER_SPEC": json.dumps({**SPEC, **changes})}


def test_sagemakers_containers():
    expected = Machines("SageMaker", ("algo-1", "algo-2"), "algo-1", 8)
    assert machines(SAGEMAKER) == expected
    assert machines({**SAGEMAKER, "SM_RESOURCE_CONFIG": ""}) == expected, "by the toolkit's other variables"
    other = json.dumps({**CONFIG, "current_host": "algo-2"})
    assert machines({}, other) == Machines("SageMaker", ("algo-1", "algo-2"), "algo-2"), "without the toolkit"
    assert machines({**SAGEMAKER, "SM_HOSTS": '["algo-1"]', "SM_RESOURCE_CONFIG": ""}) is None, "one machine"
    assert machines({"PATH": "/bin", "SM_NUM_GPUS": "8"}) is None


def test_vertex_ais_replicas():
    assert machines(VERTEX) == Machines("Vertex AI", VERTEX_NAMES, VERTEX_NAMES[0], port=2222), "no reduction servers"
    assert machines(spec(cluster={"workerpool0": ["a"], "workerpool1": ["b"]})) == Machines(
        "Vertex AI", ("a", "b"), "a"
    )
    assert machines(spec(task={"type": "workerpool1", "index": 1})).here == VERTEX_NAMES[2]
    assert machines(spec(task={"type": "workerpool0"})).here == VERTEX_NAMES[0]
    assert machines(spec(cluster={"workerpool0": ["one:2222"]})) is None
    assert machines({"CLUSTER_SPEC": '{"of": "somebody else"}'}) is None
    assert machines(spec(cluster={"ps": ["a:1"]})) is None


def test_the_job_is_started_on_the_first():
    with pytest.raises(LaunchError, match=r"SageMaker has assigned 2 machines to this job, .* 'algo-2'\. .* ssh"):
        machines({**SAGEMAKER, "SM_CURRENT_HOST": "algo-2"}).hosts(2)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"SM_HOSTS": "algo-1,algo-2"}, "SM_HOSTS must be JSON, got 'algo-1,algo-2'"),
        (
            {"SM_HOSTS": '"algo-1"', "SM_CURRENT_HOST": "algo-1"},
            "the hosts in SM_HOSTS must be a list of names, got 'algo-1'",
        ),
        ({"SM_HOSTS": '["a", ""]', "SM_CURRENT_HOST": "a"}, "must be a list of names"),
        ({"SM_HOSTS": '["a", "b"]'}, "SM_HOSTS does not say which of the hosts a, b this one is"),
        ({**SAGEMAKER, "SM_NUM_GPUS": "many"}, "SM_NUM_GPUS must be an integer of 0 or more, got 'many'"),
        ({"SM_RESOURCE_CONFIG": "[]"}, r"SM_RESOURCE_CONFIG must be a JSON object, got '\[\]'"),
        ({"SM_RESOURCE_CONFIG": "{"}, "SM_RESOURCE_CONFIG must be JSON, got '{'"),
        (spec(task={"type": "workerpool1", "index": 7}), "CLUSTER_SPEC does not say which"),
    ],
)
def test_invalid_cloud_variables(environ, says):
    with pytest.raises(LaunchError, match=says):
        machines(environ)


def settings(*arguments, environ):
    namespace, command = cli.parse([*arguments, "python", "train.py"])
    return cli.settings(namespace, command, environ)


@pytest.fixture
def local(monkeypatch):
    """Names of this machine."""
    names = {"algo-1"}
    monkeypatch.setattr("horovod.runner.plan.hosts.is_local", names.__contains__)
    return names


def test_horovodrun_uses_the_cloud_hosts_by_default(capsys, tmp_path, monkeypatch, local):
    parsed = settings("-np", "10", environ=SAGEMAKER)
    assert [slot.hostname for slot in parsed.slots] == ["algo-1"] * 8 + ["algo-2"] * 2
    message = "horovodrun: SageMaker has given this job algo-1:8,algo-2:8; -H names others\n"
    assert capsys.readouterr().err == message
    local.clear()  # a name that resolves to this machine some other way
    assert [slot.hostname for slot in settings("-np", "2", environ=VERTEX).slots] == ["localhost", VERTEX_NAMES[1]]
    local.add("algo-1")
    capsys.readouterr()
    elastic = settings("-np", "4", "--min-np", "2", environ=SAGEMAKER).elastic
    assert elastic.hosts == (Host("algo-1", 8), Host("algo-2", 8))
    with pytest.raises(LaunchError, match="17 processes asked for, but the hosts algo-1:8,algo-2:8 have only 16"):
        settings("-np", "17", environ=SAGEMAKER)
    capsys.readouterr()
    for argv in (["-H", "localhost:2"], ["--host-discovery-script", "/bin/true", "--min-np", "2"]):
        settings("-np", "2", *argv, environ={**SAGEMAKER, "SM_CURRENT_HOST": "algo-2"})
    assert [slot.hostname for slot in settings("-np", "2", environ={}).slots] == ["localhost"] * 2
    assert capsys.readouterr().err == ""
    path = tmp_path / "resourceconfig.json"
    path.write_text(json.dumps(CONFIG))
    monkeypatch.setattr(allocations, "SAGEMAKER_FILE", str(path))
    assert [slot.hostname for slot in settings("-np", "2", environ={}).slots] == ["algo-1", "algo-2"]


def examined_hosts(*arguments, environ):
    """Return by rank the hosts that the doctor examines."""
    namespace, _ = cli.parse(["--doctor", *arguments])
    return [slot.hostname for slot in doctor._settings(namespace, environ).slots]


def test_the_doctor_examines_all_workers(capsys, local):
    assert examined_hosts(environ=SAGEMAKER) == ["algo-1"] * 8 + ["algo-2"] * 8
    assert capsys.readouterr().err.count("SageMaker has given this job algo-1:8,algo-2:8") == 1
    assert examined_hosts(environ=VERTEX) == ["localhost", *VERTEX_NAMES[1:]], "no variable describes GPUs"
    assert examined_hosts("-np", "2", environ=VERTEX) == ["localhost", VERTEX_NAMES[1]]
    capsys.readouterr()
    assert examined_hosts("-H", "a:2,b:1", environ=SAGEMAKER) == ["a", "a", "b"]
    assert examined_hosts(environ={}) == ["localhost"]
    assert capsys.readouterr().err == ""


def test_horovod_run_uses_the_allocation(monkeypatch, local):
    for name, value in SAGEMAKER.items():
        monkeypatch.setenv(name, value)
    assert api._hosts(3, None, None) == [Host("algo-1", 8), Host("algo-2", 8)]
    assert api._hosts(3, "here:3", None) == [Host("here", 3)]
