"""Slurm's notation for hosts and for tasks per node."""

import pytest

from horovod.common.launchers import expand_hosts, expand_tasks


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n1,m2", ["n1", "m2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1-2,7],login", ["n1", "n2", "n7", "login"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]n[3-4]", ["r1n3", "r1n4", "r2n3", "r2n4"]),
        ("gpu-[1-2].cluster,a.b-c", ["gpu-1.cluster", "gpu-2.cluster", "a.b-c"]),
        ("n[5]", ["n5"]),
        ("n[65535-65536]", ["n65535", "n65536"]),
    ],
)
def test_expand(text, names):
    assert expand_hosts(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n]1[", "n[a-b]", "n[3-1]", "n[1-2]]", "n[]", "n[1-99999999]"])
def test_invalid_host_lists(text):
    with pytest.raises(ValueError) as caught:
        expand_hosts(text)
    assert repr(text) in str(caught.value)


def test_tasks():
    assert expand_tasks("3,1") == [3, 1]
    assert expand_tasks("2(x3),1") == [2, 2, 2, 1]
    for text in ("", "2(x", "x2", "-1"):
        with pytest.raises(ValueError):
            expand_tasks(text)
