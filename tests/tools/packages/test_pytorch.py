"""Selection of a PyTorch build."""

import pytest

from tools.packages.pytorch import CPU_INDEX, choose, cpu_build

TAGS = frozenset({"cp311-cp311-manylinux_2_28_x86_64", "cp311-cp311-linux_x86_64"})
FITS = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def test_the_plain_package_is_chosen_with_a_gpu():
    choice = choose("2.13.0", "/usr/bin/nvidia-smi", "2.13.0+cpu", "2.13.0+cpu")
    assert choice.arguments == ("torch==2.13.0",)
    assert "NVIDIA GPU: /usr/bin/nvidia-smi" in choice.line()


def test_a_local_wheel_comes_before_the_index():
    assert choose("2.13.0", None, "2.13.0+cpu", "2.13.0+cpu.new").arguments == ("torch==2.13.0+cpu",)


def test_the_index_comes_before_the_plain_package():
    assert choose("2.13.0", None, None, "2.13.0+cpu").arguments == ("torch==2.13.0+cpu", "--extra-index-url", CPU_INDEX)


def test_the_plain_package_comes_last_with_a_reason():
    choice = choose("2.13.0", None, None, None, "the index is on fire")
    assert choice.arguments == ("torch==2.13.0",)
    assert "the index is on fire" in choice.line()
    assert 'TORCH="torch==..."' in choice.line()


@pytest.mark.parametrize(
    ("wheels", "build"),
    [
        ([FITS], "2.13.0+cpu"),
        (["torch-2.13.0+cpu.cxx11.abi-cp311-cp311-linux_x86_64.whl"], "2.13.0+cpu.cxx11.abi"),
        (["torch-2.13.0+cpu-cp310.cp311-cp311-linux_aarch64.linux_x86_64.whl"], "2.13.0+cpu"),
        ([FITS.replace("2.13.0", "2.13.1"), FITS.replace("2.13.0", "12.13.0"), FITS.replace("2.13.0", "2x13x0")], None),
        ([FITS.replace("+cpu", "")], None),
        ([FITS.replace("+cpu", "+cu130")], None),
        ([FITS.replace("cp311", "cp312")], None),
        ([FITS.replace("x86_64", "aarch64")], None),
        ([FITS.replace("torch", "torchvision"), FITS + ".metadata", "notes.txt", ""], None),
        ([], None),
    ],
)
def test_wheels_of_this_version_and_python_count(wheels, build):
    assert cpu_build("2.13.0", wheels, TAGS) == build
