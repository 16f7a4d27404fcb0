"""Files in deploy/ match the schemas of Kubernetes and Kubeflow, and the objects that horovodrun creates."""

import copy
import importlib.util
import json
import os
from pathlib import Path

import pytest
import yaml

from horovod.runner.kubernetes import flags, manifests
from horovod.runner.kubernetes.request import from_command_line

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
if not DEPLOY.is_dir():
    pytest.skip("not in a checkout", allow_module_level=True)
VERSION = "1.37"


def documents(path):
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


def objects(*argv, name):
    request = from_command_line(flags.split([*argv, "--", "python", "/app/train.py"]), name, {})
    found = copy.deepcopy(manifests.all_of(request, "x" * 64))
    command = found[0]["spec"]["template"]["spec"]["containers"][0]["command"]
    at = command.index("--of-version")
    del command[at : at + 2]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def validated(found):
    if not importlib.util.find_spec("kubernetes_validate"):
        pytest.skip("kubernetes_validate is not installed")
    import kubernetes_validate

    for each in found:
        kubernetes_validate.validate(each, VERSION, strict=True)


def test_the_role_has_all_requested_permissions():
    role, binding = documents("kubernetes/role.yaml")
    granted = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}
    assert granted == {
        *{("jobs", verb) for verb in ("create", "get", "list", "watch", "patch", "delete")},
        *{(resource, verb) for resource in ("secrets", "services") for verb in ("create", "delete")},
        *{("pods", "list"), ("pods", "watch"), ("pods/log", "get"), ("events", "list"), ("services", "get")},
    }
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    validated([role, binding])


def test_the_kustomize_base_equals_horovodruns_objects():
    argv = ("-np", "4", "--image", "registry.example.com/train:1", "--cpu", "4", "--memory", "16Gi", "--keep", "86400")
    expected = objects(*argv, name="train")
    del expected["Secret", "train"]
    found = documents("kustomize/base/job.yaml")
    assert {(each["kind"], each["metadata"]["name"]): each for each in found} == expected
    validated(found)


def applied(document, patch):
    """Return the document after a patch (RFC 6902). Raises KeyError or IndexError for an invalid path."""
    document = copy.deepcopy(document)
    for operation in patch:
        assert operation["op"] == "add", operation
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at = document
        for part in parents:
            at = at[int(part) if isinstance(at, list) else part]
        at[last] = operation["value"]
    return document


def overlaid():
    """Return the Job of the workers with the GPU overlay's patch."""
    (overlay,) = documents("kustomize/gpu/kustomization.yaml")
    (patch,) = overlay["patches"]
    found = documents("kustomize/base/job.yaml")
    (target,) = [each for each in found if patch["target"] == {"kind": each["kind"], "name": each["metadata"]["name"]}]
    return applied(target, yaml.safe_load(patch["patch"]))


def test_the_overlay_for_gpus_fits_the_base():
    (overlay,) = documents("kustomize/gpu/kustomization.yaml")
    (base,) = documents("kustomize/base/kustomization.yaml")
    assert set(overlay) == {"apiVersion", "kind", "resources", "images", "patches"}, "what this test knows of"
    assert (overlay["resources"], base["resources"]) == (["../base"], ["job.yaml"])
    assert (overlay["apiVersion"], overlay["kind"]) == (base["apiVersion"], base["kind"])
    jobs = [each for each in documents("kustomize/base/job.yaml") if each["kind"] == "Job"]
    pods = [each["spec"]["template"]["spec"] for each in jobs]
    (image,) = overlay["images"]
    assert {pod["containers"][0]["image"].rpartition(":")[0] for pod in pods} == {image["name"]}
    assert set(image) == {"name", "newTag"}
    assert not any("tolerations" in pod for pod in pods), "the patch would replace them"
    pod = overlaid()["spec"]["template"]["spec"]
    assert [each["key"] for each in pod["tolerations"]] == ["nvidia.com/gpu"]
    # Equal to the result of horovodrun with GPUs.
    argv = ("-np", "4", "--image", "registry.example.com/train:1", "--cpu", "4", "--memory", "16Gi", "--gpus", "1")
    resources = objects(*argv, name="train")["Job", "train-workers"]["spec"]["template"]["spec"]["containers"][0]
    assert pod["containers"][0]["resources"]["limits"] == resources["resources"]["limits"]
    for path in ("/spec/template/spec/container/0/image", "/spec/template/spec/containers/1/image"):
        with pytest.raises((KeyError, IndexError)):
            applied(jobs[0], [{"op": "add", "path": path, "value": "x"}])


def rendered_texts(values, name="train"):
    if not importlib.util.find_spec("helm_python"):
        pytest.skip("helm_python is not installed")
    import helm_python

    found = helm_python.Chart.load(DEPLOY / "helm/horovod").render(values=values, name=name, namespace="ml")
    return {Path(path).name: text for path, text in found.items()}


def rendered(values, name="train"):
    texts = rendered_texts(values, name)
    return [each for path, text in texts.items() if path.endswith(".yaml") for each in yaml.safe_load_all(text)]


def test_helm_accepts_the_chart():
    if not importlib.util.find_spec("helm_python"):
        pytest.skip("helm_python is not installed")
    from helm_python import chart

    report = chart.lint(DEPLOY / "helm/horovod", {"image": "app:1"}, strict=True)
    assert [each for each in report["messages"] if each["severity"] > 1] == []
    assert not report["errors"]


@pytest.mark.parametrize("elastic", [False, True])
def test_the_chart_creates_the_same_objects_as_horovodrun(elastic):
    values = {"image": "app:1", "np": 4, "slotsPerPod": 2, "keep": 3600, "env": [{"name": "A", "value": "b"}]}
    argv = ["-np", "4", "--slots-per-pod", "2", "--image", "app:1", "--env", "A=b"]
    resources = {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "2"}
    values |= {"resources": {"limits": resources, "requests": resources}, "shmSize": "1Gi"}
    argv += ["--cpu", "1", "--memory", "2Gi", "--gpus", "2", "--shm-size", "1Gi"]
    if elastic:
        values |= {"minNp": 2, "maxNp": 8}
        argv += ["--min-np", "2", "--max-np", "8"]
    expected = objects(*argv, "--start-timeout", "600", name="train")
    found = {(each["kind"], each["metadata"]["name"]): each for each in rendered(values)}
    assert len(found["Secret", "train"]["data"]["token"]) > 80
    for items in (expected, found):
        items["Secret", "train"]["data"] = {}
        items["Job", "train-workers"]["spec"].pop("ttlSecondsAfterFinished", None)
        for container in containers(items):
            container["env"].sort(key=lambda each: each["name"])
    assert without_env_of_launcher(found) == without_env_of_launcher(expected)
    validated(rendered(values))


def containers(objects):
    return [each["spec"]["template"]["spec"]["containers"][0] for (kind, _), each in objects.items() if kind == "Job"]


def without_env_of_launcher(objects):
    """The chart passes the ranks' variables only to the ranks."""
    launcher = objects["Job", "train"]["spec"]["template"]["spec"]["containers"][0]
    launcher["env"] = [each for each in launcher["env"] if each["name"] != "A"]
    return objects


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "image is missing"),
        ({"image": "i", "np": 3, "slotsPerPod": 2}, "np is 3; expected a multiple of slotsPerPod 2"),
        ({"image": "i", "maxNp": 4}, "maxNp is for elastic jobs"),
    ],
)
def test_values_that_the_chart_refuses(values, message):
    with pytest.raises(Exception, match=message):
        rendered(values)


def definition(name):
    folder = os.environ.get("HVD_TEST_CRDS", "")
    path = Path(folder, name)
    if not folder or not path.exists():
        pytest.skip("no definitions of Kubeflow here (HVD_TEST_CRDS)")
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("path", "crd", "version"),
    [
        ("kubeflow/mpijob-v2beta1.yaml", "mpijobs.json", "v2beta1"),
        ("kubeflow/trainjob.yaml", "trainjobs.json", "v1alpha1"),
    ],
)
def test_definitions_of_kubeflow(path, crd, version):
    jsonschema = pytest.importorskip("jsonschema")
    (found,) = documents(path)
    schemas = {each["name"]: each["schema"]["openAPIV3Schema"] for each in definition(crd)["spec"]["versions"]}
    jsonschema.validate(found, strict(schemas[version]))
    broken = copy.deepcopy(found)
    broken["spec"]["notThere"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, strict(schemas[version]))


def strict(schema):
    """Return the schema with unknown fields forbidden, as the API server does with --validate=strict."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: strict(value) for key, value in schema.items()}
    free = "additionalProperties" in result or result.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(result.get("properties"), dict) and not free and "type" in result:
        result["additionalProperties"] = False
    if result.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    return result


@pytest.mark.parametrize(
    "path", ["kubeflow/mpijob-v1.yaml", "kubeflow/mpijob-v2beta1.yaml", "kubeflow/pytorchjob.yaml"]
)
def test_pods_in_jobs_of_kubeflow(path):
    (found,) = documents(path)
    spec = found["spec"].get("mpiReplicaSpecs") or found["spec"]["pytorchReplicaSpecs"]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **each["template"]} for each in spec.values()
    ]
    assert sum(each["replicas"] for each in spec.values()) in (4, 5)
    validated(pods)
