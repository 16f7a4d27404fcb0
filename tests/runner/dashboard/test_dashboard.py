"""State and server together: large jobs, and the cost for the launcher's loop."""

import socket

import pytest

from horovod.runner.base.job_result import LaunchError
from horovod.runner.command import cli
from horovod.runner.dashboard import open_sink
from horovod.runner.plan.environment import job_environment
from horovod.runner.plan.settings import LaunchSettings
from tests.runner.dashboard.jobs import slots


def settings(size, port=0):
    return LaunchSettings(["python", "train.py", "it's \udcff"], slots(size), dashboard=port)


def parsed(*argv, **environ):
    namespace, command = cli.parse([*argv, "-np", "2", "python", "train.py"])
    return cli.settings(namespace, command, environ)


def test_flags_and_variables_enable_the_dashboard():
    assert parsed().dashboard is None
    assert parsed("--dashboard").dashboard == 0
    assert parsed("--dashboard", "--dashboard-port", "8800").dashboard == 8800
    assert parsed(HOROVOD_DASHBOARD="1", HOROVOD_DASHBOARD_PORT="8801").dashboard == 8801
    assert parsed("--no-dashboard", HOROVOD_DASHBOARD="1").dashboard is None
    with pytest.warns(UserWarning, match="--dashboard-port has no effect without --dashboard"):
        assert parsed("--dashboard-port", "8800").dashboard is None
    for port in ("-1", "65536", "x", ""):
        with pytest.raises(LaunchError, match=r"--dashboard-port: must be an integer from 0 to 65535, got "):
            parsed("--dashboard", "--dashboard-port", port)
    # Workers know that a dashboard exists, but a launcher among them must be able to have its own.
    arguments = parsed("--dashboard", "--dashboard-port", "8800")
    assert job_environment({"HOROVOD_DASHBOARD_PORT": "8800"}, arguments.variables)["HOROVOD_DASHBOARD"] == "1"
    assert "HOROVOD_DASHBOARD_PORT" not in job_environment({"HOROVOD_DASHBOARD_PORT": "8800"}, arguments.variables)


def test_a_port_in_use_is_named():
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        with pytest.raises(
            LaunchError, match=rf"--dashboard-port \(HOROVOD_DASHBOARD_PORT\) must be .*, got {port}: .* in use"
        ):
            open_sink(settings(1, port))
