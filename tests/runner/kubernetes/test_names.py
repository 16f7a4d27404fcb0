import pytest

from horovod.runner.kubernetes import values


@pytest.mark.parametrize("text", ["a", "train", "train-2", "x" * values.LONGEST])
def test_names_of_jobs(text):
    assert values.job_name(text) == text


@pytest.mark.parametrize(
    "text", ["", "Train", "2train", "train-", "-t", "a.b", "a_b", "x" * (values.LONGEST + 1), "a\n"]
)
def test_invalid_job_names(text):
    with pytest.raises(ValueError):
        values.job_name(text)


@pytest.mark.parametrize(("text", "value"), [("2", 2), ("500m", 0.5), ("1.5", 1.5), ("16Gi", 2**34), ("2k", 2000)])
def test_quantities(text, value):
    assert values.quantity(text) == text
    assert values.amount(text) == value


@pytest.mark.parametrize("text", ["", "0", "-1", "2GB", "2 Gi", "Gi", "1e3x"])
def test_invalid_quantities(text):
    with pytest.raises(ValueError):
        values.quantity(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu", {"key": "gpu", "operator": "Exists"}),
        ("gpu:NoSchedule", {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}),
        ("nvidia.com/gpu=yes:NoExecute", {
            "key": "nvidia.com/gpu", "operator": "Equal", "value": "yes", "effect": "NoExecute"}),
        ("*", {"operator": "Exists"}),
        ("*:NoSchedule", {"operator": "Exists", "effect": "NoSchedule"}),
    ],
)  # fmt: skip
def test_tolerations(text, expected):
    assert values.toleration(text) == expected


def test_namespaces_have_no_dots():
    assert values.namespace("team-a") == "team-a"
    for text in ("team.a", "Team", "", "x" * 64):
        with pytest.raises(ValueError):
            values.namespace(text)
