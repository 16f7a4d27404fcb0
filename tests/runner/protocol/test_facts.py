"""An agent's report about its host."""

from horovod.common.contract import cgroups
from horovod.runner.protocol import messages


def test_cores_are_those_that_a_quota_leaves(monkeypatch):
    monkeypatch.setattr(cgroups, "cores", lambda: 0.5)
    assert messages.gather().cores == 1
