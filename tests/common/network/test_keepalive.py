"""Options by which connections detect a lost host. tests/cluster shows their effect in network namespaces."""

import socket

import pytest

from horovod.common.network import connecting


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(10, (4, 2, 3)), (4, (1, 1, 3)), (30, (9, 7, 3)), (1, (1, 1, 3)), (7.5, (4, 1, 3)), (172800, (32767, 32767, 3))],
)
def test_probes_take_the_given_time(seconds, expected):
    idle, interval, probes = connecting.probe_times(seconds)
    assert (idle, interval, probes) == expected
    assert idle + interval * probes <= max(4, seconds)


@pytest.mark.parametrize(("control", "expected"), [(True, (4, 2, 3, 10000)), (False, (4, 2, 3, 0))])
def test_options_of_a_connection(control, expected):
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sock:
        connecting.set_keepalive(sock, 10, control)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert tuple(sock.getsockopt(socket.IPPROTO_TCP, option) for option in options) == expected
