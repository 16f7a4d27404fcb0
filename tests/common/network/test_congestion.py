"""Congestion control of data connections: the choice, and its effect on a real socket."""

import socket

import pytest

from horovod.common.network import connecting


@pytest.fixture
def connected():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        local = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    with local, peer:
        yield local


def current(sock):
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).partition(b"\0")[0].decode()


@pytest.mark.parametrize(
    ("requested", "system", "round_trip_us", "queried"),
    [
        ("auto", "bbr", 50, ("reno", "cubic")),
        ("auto", "bbr", 1000, ()),
        ("auto", "cubic", 50, ()),
        ("auto", "dctcp", 50, ()),
        ("system", "bbr", 50, ()),
        ("bbr", "cubic", 50, ("bbr",)),
    ],
)
def test_only_bbr_to_a_near_host_is_replaced(requested, system, round_trip_us, queried):
    assert connecting.congestion_choices(requested, system, round_trip_us) == queried


def test_socket_options_are_set_by_name(connected):
    connecting.set_congestion(connected, "reno")  # every kernel has it and allows it for all users
    assert current(connected) == "reno"
    connecting.set_congestion(connected, "system")
    connecting.set_congestion(connected, "auto")
    assert current(connected) == "reno"


def test_an_unknown_name_is_refused_with_the_accepted_names(connected):
    with pytest.raises(ValueError, match=r"HOROVOD_TCP_CONGESTION must be auto, system, or .*reno.*got 'nosuch'"):
        connecting.set_congestion(connected, "nosuch")
