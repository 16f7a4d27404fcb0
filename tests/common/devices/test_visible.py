"""Assignment of GPUs to workers."""

import os

import pytest

from horovod.common.devices import visible
from horovod.common.devices.nvml import Gpu, Survey
from horovod.common.devices.visible import BRIDGE, FAR, NODE, SWITCH, Card, Near

TWO = Survey(gpus=[Gpu(0, uuid="GPU-aaaa-1"), Gpu(1, uuid="GPU-aabb-2")])
CUT = Survey(gpus=[Gpu(0, uuid="GPU-1", mig=True, slices=["MIG-x", "MIG-y"]), Gpu(1, uuid="GPU-2")])
NONE = Survey(reason="there is no driver")


@pytest.mark.parametrize(
    ("value", "survey", "found"),
    [
        (None, TWO, ["0", "1"]),
        (None, CUT, ["MIG-x", "MIG-y", "1"]),
        (None, NONE, []),
        ("1,0", TWO, ["1", "0"]),
        (" 1 , 0 ", TWO, ["1", "0"]),
        ("", TWO, []),
        ("-1", TWO, []),
        ("NoDevFiles", TWO, []),
        ("1,-1,0", TWO, ["1"]),
        ("0,7,1", TWO, ["0"]),  # CUDA stops at the first unknown index
        ("0,0", TWO, []),
        ("GPU-aabb,GPU-aaaa-1", TWO, ["GPU-aabb", "GPU-aaaa-1"]),
        ("GPU-aa", TWO, []),  # ambiguous
        ("GPU-zz", TWO, []),
        ("MIG-y", CUT, ["MIG-y"]),
        ("MIG-GPU-1/2/0", CUT, ["MIG-GPU-1/2/0"]),
        ("MIG-z", CUT, []),
        ("MIG-GPU-2/1/0", CUT, []),  # that GPU has no MIG instances
        ("NoDevFiles", NONE, []),
        ("0,5", NONE, ["0", "5"]),  # no information: accepted as given
    ],
)
def test_visible_device_values(value, survey, found):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert visible.choices(environ, survey)[0] == found


def test_each_worker_gets_its_own_gpus():
    four = Survey(gpus=[Gpu(index, uuid=f"GPU-{index}") for index in range(4)])
    pci = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible.cut({}, four, 2, 2) == [
        {"CUDA_VISIBLE_DEVICES": "0,1", **pci},
        {"CUDA_VISIBLE_DEVICES": "2,3", **pci},
    ]
    # An order chosen by the user is kept, and with it the meaning of the numbers in a list.
    assert visible.cut({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, four, 1, 1) == [{"CUDA_VISIBLE_DEVICES": "0"}]
    environ = {"CUDA_VISIBLE_DEVICES": "3,GPU-1,0"}
    assert visible.cut(environ, four, 2, 1) == [{"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "GPU-1"}]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in visible.cut({}, CUT, 3, 1)] == ["MIG-x", "MIG-y", "1"]


@pytest.mark.parametrize(
    ("environ", "survey", "workers", "each", "text"),
    [
        (
            {},
            TWO,
            3,
            1,
            "--gpus-per-worker 1 for 3 workers needs 3 GPUs on this host, where only 2 GPUs can be used (as NVIDIA's "
            "driver says); start fewer workers",
        ),
        ({}, NONE, 1, 1, "for 1 worker needs 1 GPU on this host, where no GPU can be used (there is no driver)"),
        (
            {"CUDA_VISIBLE_DEVICES": "0"},
            TWO,
            1,
            2,
            "needs 2 GPUs on this host, where only 1 GPU can be used (CUDA_VISIBLE_DEVICES there is '0')",
        ),
        ({}, CUT, 1, 2, "are cut into MIG devices, of which CUDA uses one in a process; --gpus-per-worker 1 gives"),
    ],
)
def test_too_few_gpus(environ, survey, workers, each, text):
    with pytest.raises(visible.VisibleError) as raised:
        visible.cut(environ, survey, workers, each)
    assert text in str(raised.value)


def test_the_gpus_of_each_worker():
    """Without --gpus-per-worker workers see all GPUs; the launcher's own list does not reach them."""
    one, other = TWO.gpus
    assert visible.of_workers({"CUDA_VISIBLE_DEVICES": "1,0"}, TWO, 3, 0) == [[one], [other], [one]]
    assert visible.of_workers({"CUDA_VISIBLE_DEVICES": "1,0"}, TWO, 2, 1) == [[other], [one]]
    assert visible.of_workers({}, TWO, 1, 2) == [[one, other]]
    assert visible.of_workers({}, CUT, 2, 1) == [[CUT.gpus[0]], [CUT.gpus[0]]]
    with pytest.raises(visible.VisibleError, match=r"needs a GPU on this host, where none can be used \(there is no d"):
        visible.of_workers({}, NONE, 1, 0)
    with pytest.raises(visible.VisibleError, match="does not tell of the GPUs here"):
        visible.of_workers({"CUDA_VISIBLE_DEVICES": "0"}, NONE, 1, 1)


# Devices and CPUs near a GPU, from file trees like those in /sys.

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
        content = {"numa_node": f"{node}\n", "local_cpulist": "0-3,8-11\n" if node == 0 else "4-7\n", **files}
        for file, text in content.items():
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
    assert visible.near(GPU, sys) == Near(0, [0, 1, 2, 3, 8, 9, 10, 11])
    assert visible.near("0000:81:00.0", sys) == Near(1, [4, 5, 6, 7])
    assert visible.near(GPU.upper(), sys).node == 0
    assert visible.near("0000:99:00.0", sys) == Near()
    assert visible.near(GPU, "/nowhere") == Near()


def test_cards_nearest_first(sys):
    found = visible.cards(GPU, sys)
    assert found == [
        Card("mlx5_0", SWITCH, True),
        Card("eth0", BRIDGE),
        Card("mlx5_1", NODE, True),
        Card("mlx5_2", FAR, True),
    ]
    assert {card.distance for card in visible.cards("0000:99:00.0", sys)} == {""}
    assert visible.cards(GPU, "/nowhere") == []


def test_binding(sys):
    gpus = [Gpu(0, bus=GPU), Gpu(1, cpus=[3, 4]), Gpu(2)]
    assert visible.binding(gpus[:1], range(100), sys) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert visible.binding(gpus, {2, 3, 4, 5}, sys) == [2, 3, 4]
    with pytest.raises(visible.AffinityError, match="which CPUs are near GPU 2 is not known on this host"):
        visible.binding(gpus[2:], range(100), sys)
    with pytest.raises(visible.AffinityError, match=r"the CPUs near GPU 1, 3-4, are not among .* on this host, 0-1"):
        visible.binding(gpus[1:2], {0, 1}, sys)


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
    assert visible.parse_cpus(text) == cpus
    assert visible.parse_cpus(visible.shown_cpus(reversed(cpus))) == cpus


def test_this_machine_is_examined_without_errors():
    for entry in os.listdir("/sys/bus/pci/devices") if os.path.isdir("/sys/bus/pci/devices") else []:
        assert isinstance(visible.near(entry).cpus, list)
        assert all(card.distance in (SWITCH, BRIDGE, NODE, FAR, "") for card in visible.cards(entry))


def test_ports_and_gpus_without_a_driver(sys):
    ports = [(port.device, port.number, port.state, port.rate, port.layer) for port in visible.ports(sys)]
    assert ports == [("mlx5_2", 1, "ACTIVE", "400 Gb/sec (4X NDR)", "InfiniBand")]
    assert visible.gpus_by_vendor(sys) == {"NVIDIA": [GPU]}
