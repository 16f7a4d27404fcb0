"""Commands for nft and tc."""

import pytest

from horovod.chaos import network


def test_a_cut():
    assert network.cut(["eth0", "eth1.5@if3"], 3.0) == (
        "flush set inet horovod_chaos down\n"
        'add element inet horovod_chaos down { "eth0" timeout 3000ms, "eth1.5@if3" timeout 3000ms }\n'
    )
    assert '{ "eth0" }' in network.cut(["eth0"], None)
    with pytest.raises(ValueError, match="the name of interface 'a\"b' cannot be given to nft"):
        network.cut(['a"b'], None)


def test_a_slow_link():
    lines = [" ".join(words) for words in network.slow("eth0", ["10.0.0.2", "fd77::2"], 0.005)]
    assert lines == [
        "tc qdisc add dev eth0 root handle c4a0: prio bands 4",
        "tc qdisc add dev eth0 parent c4a0:4 handle c4a1: netem delay 5000us limit 100000",
        "tc filter add dev eth0 parent c4a0: protocol ip prio 1 u32 match ip dst 10.0.0.2/32 flowid c4a0:4",
        "tc filter add dev eth0 parent c4a0: protocol ipv6 prio 2 u32 match ip6 dst fd77::2/128 flowid c4a0:4",
    ]
    assert " ".join(network.slow_no_more("eth0")) == "tc qdisc del dev eth0 root handle c4a0:"
