"""The job of docs/clouds/sagemaker.md: its code block, checked with the service description in botocore."""

import re

import pytest

from tests import documents

pytest.importorskip("boto3")

from botocore.exceptions import ParamValidationError
from botocore.model import ListShape, MapShape, Shape, StringShape, StructureShape
from botocore.stub import Stubber

ARN = "arn:aws:sagemaker:eu-west-1:123456789012:training-job/x"


def block():
    found = [each for each in documents.blocks() if each.where.startswith("docs/clouds/sagemaker.md:")]
    programs = [each.text for each in found if each.language == "python"]
    if not found:
        pytest.skip("documents are not here")
    (program,) = programs
    return program


@pytest.fixture
def client(monkeypatch):
    import boto3

    client = boto3.client("sagemaker", "eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")
    monkeypatch.setattr(boto3, "client", lambda name: {"sagemaker": client}[name])
    return client


def run(program, client):
    """Return the program's requests to the service, which never leave this process."""
    requests = []
    client.meta.events.register(
        "provide-client-params.sagemaker.CreateTrainingJob", lambda params, **_: requests.append(dict(params))
    )
    with Stubber(client) as stub:
        stub.add_response("create_training_job", {"TrainingJobArn": ARN})
        exec(compile(program, "docs/clouds/sagemaker.md", "exec"), {})
        stub.assert_no_pending_responses()
    (params,) = requests
    return params


def beyond(shape: Shape, value, path=""):
    """Return values that are too long or do not match the service's pattern, which botocore does not check."""
    if isinstance(shape, StructureShape):
        return [bad for name, each in value.items() for bad in beyond(shape.members[name], each, f"{path}.{name}")]
    if isinstance(shape, MapShape):
        return [
            bad
            for name, each in value.items()
            for bad in [*beyond(shape.key, name, f"{path} key"), *beyond(shape.value, each, f"{path}.{name}")]
        ]
    limits = shape.metadata
    size = value if shape.type_name in ("integer", "long") else len(value) if isinstance(value, (str, list)) else 0
    bad = [] if limits.get("min", 0) <= size <= limits.get("max", size) else [f"{path}: {size} is not in {limits}"]
    if isinstance(shape, StringShape) and "pattern" in limits and not re.fullmatch(limits["pattern"], value):
        bad.append(f"{path}: {value!r} is not {limits['pattern']}")
    if isinstance(shape, ListShape):
        bad += [wrong for number, each in enumerate(value) for wrong in beyond(shape.member, each, f"{path}[{number}]")]
    return bad


def test_the_service_accepts_the_documented_job(client):
    shape = client.meta.service_model.operation_model("CreateTrainingJob").input_shape
    params = run(block(), client)
    assert beyond(shape, params) == []
    assert params["AlgorithmSpecification"]["ContainerEntrypoint"] == ["/opt/start.sh"]
    assert len(params["Environment"]["SSH_PRIVATE_KEY"]) == 387
    limits = params["StoppingCondition"]
    assert limits["MaxWaitTimeInSeconds"] >= limits["MaxRuntimeInSeconds"], "as managed spot training asks for"
    # The check finds errors.
    long = {**params, "Environment": {"SSH_PRIVATE_KEY": "x" * 513}, "TrainingJobName": "a job"}
    assert {each.split(":")[0] for each in beyond(shape, long)} == {".Environment.SSH_PRIVATE_KEY", ".TrainingJobName"}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("ContainerEntrypoint", "ContainerEntryPoint"),
        ('"VolumeSizeInGB": 100', '"VolumeSizeInGB": "100"'),
        ("RoleArn=", "Role="),
    ],
)
def test_mistakes_in_the_page_are_refused(client, right, wrong):
    program = block()
    assert right in program
    with pytest.raises(ParamValidationError):
        run(program.replace(right, wrong), client)
