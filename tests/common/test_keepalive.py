"""Connections that notice a host that is gone. That they do is tested in network namespaces (tests/cluster)."""

import socket

import pytest

from horovod.common import keepalive


@pytest.mark.parametrize(
    ("seconds", "expected"), [(10, (4, 2, 3)), (4, (1, 1, 3)), (30, (12, 6, 3)), (1, (1, 1, 3)), (7.5, (4, 1, 3))]
)
def test_probes_take_the_given_time(seconds, expected):
    idle, interval, probes = keepalive.probe_times(seconds)
    assert (idle, interval, probes) == expected
    assert idle + interval * probes <= max(4, seconds)


@pytest.mark.parametrize("control", [True, False])
def test_options_of_a_connection(control):
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        keepalive.apply(sock, 10, control)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 4
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 2
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == (10000 if control else 0)
