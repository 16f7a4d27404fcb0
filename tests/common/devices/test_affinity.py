"""Devices and CPUs near a GPU, from file trees like those in /sys."""

import os

import pytest

from horovod.common.devices import affinity
from horovod.common.devices.affinity import BRIDGE, FAR, NODE, SWITCH, Card, Near
from horovod.common.devices.nvml import Gpu

GPU = "0000:3b:00.0"


@pytest.fixture
def sys(tmp_path):
    """Two sockets with network cards.

    Below the first socket's bridge pci0000:3a are a switch with the GPU and mlx5_0, and another root port with
    eth0. Below pci0000:20 on the same socket is mlx5_1; on the second socket is mlx5_2. One card has no PCI device.
    """

    def device(way, node, **files):
        folder = tmp_path / "devices" / way
        folder.mkdir(parents=True)
        name = way.rsplit("/", 1)[1]
        given = {"numa_node": f"{node}\n", "local_cpulist": "0-3,8-11\n" if node == 0 else "4-7\n", **files}
        for file, text in given.items():
            (folder / file).write_text(text)
        (tmp_path / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (tmp_path / "bus/pci/devices" / name).symlink_to(os.path.relpath(folder, tmp_path / "bus/pci/devices"))
        return folder

    def card(kind, name, folder):
        entry = tmp_path / "class" / kind / name
        entry.mkdir(parents=True)
        if folder is not None:
            (entry / "device").symlink_to(folder)
        return entry

    switch = "pci0000:3a/0000:3a:00.0"
    device(f"{switch}/0000:3b:00.0", 0, vendor="0x10de\n", **{"class": "0x030200\n"})
    card("infiniband", "mlx5_0", device(f"{switch}/0000:3c:00.0", 0))
    eth0 = device("pci0000:3a/0000:3a:01.0/0000:3d:00.0", 0)
    (eth0 / "virtio0").mkdir()
    card("net", "eth0", eth0 / "virtio0")
    card("infiniband", "mlx5_1", device("pci0000:20/0000:21:00.0", 0))
    port = card("infiniband", "mlx5_2", device("pci0000:80/0000:81:00.0", 1)) / "ports/1"
    port.mkdir(parents=True)
    for file, text in {"state": "4: ACTIVE\n", "rate": "400 Gb/sec (4X NDR)\n", "link_layer": "InfiniBand\n"}.items():
        (port / file).write_text(text)
    card("net", "lo", None)
    device("pci0000:3a/0000:3b:00.1", 0, vendor="0x10de\n", **{"class": "0x040300\n"})  # its sound card
    device("pci0000:3a/0000:3e:00.0", 0, vendor="0x8086\n", **{"class": "0x030000\n"})  # the GPU of another vendor
    return str(tmp_path)


def test_cpus_and_nodes(sys):
    assert affinity.near(GPU, sys) == Near(0, [0, 1, 2, 3, 8, 9, 10, 11])
    assert affinity.near("0000:81:00.0", sys) == Near(1, [4, 5, 6, 7])
    assert affinity.near(GPU.upper(), sys).node == 0
    assert affinity.near("0000:99:00.0", sys) == Near()
    assert affinity.near(GPU, "/nowhere") == Near()


def test_cards_nearest_first(sys):
    found = affinity.cards(GPU, sys)
    assert found == [
        Card("mlx5_0", SWITCH, True),
        Card("eth0", BRIDGE),
        Card("mlx5_1", NODE, True),
        Card("mlx5_2", FAR, True),
    ]
    assert {card.distance for card in affinity.cards("0000:99:00.0", sys)} == {""}
    assert affinity.cards(GPU, "/nowhere") == []


def test_binding(sys):
    gpus = [Gpu(0, bus=GPU), Gpu(1, cpus=[3, 4]), Gpu(2)]
    assert affinity.binding(gpus[:1], range(100), sys) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert affinity.binding(gpus, {2, 3, 4, 5}, sys) == [2, 3, 4]
    with pytest.raises(affinity.AffinityError, match="which CPUs are near GPU 2 is not known on this host"):
        affinity.binding(gpus[2:], range(100), sys)
    with pytest.raises(affinity.AffinityError, match=r"the CPUs near GPU 1, 3-4, are not among .* on this host, 0-1"):
        affinity.binding(gpus[1:2], {0, 1}, sys)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8\n", [0, 1, 2, 3, 8]),
        ("5", [5]),
        ("", []),
        ("0-", []),
        ("a", []),
        ("0-99999999999", []),
        ("-1", []),
        ("3,1-2,2", [1, 2, 3]),
        ("100000-100001", [100000, 100001]),
    ],
)
def test_lists_of_cpus(text, cpus):
    assert affinity.parse_cpus(text) == cpus
    assert affinity.parse_cpus(affinity.shown_cpus(reversed(cpus))) == cpus


def test_this_machine_is_looked_at_without_errors():
    for entry in os.listdir("/sys/bus/pci/devices") if os.path.isdir("/sys/bus/pci/devices") else []:
        assert isinstance(affinity.near(entry).cpus, list)
        assert all(card.distance in (SWITCH, BRIDGE, NODE, FAR, "") for card in affinity.cards(entry))
