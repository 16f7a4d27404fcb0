"""The older glibc that wheels are built against."""

import platform
from pathlib import Path

import pytest

from tools.wheels.sysroot import ARCHES, Missing, include_folders, make, toolchain

SEARCHED = """ignoring nonexistent directory "/usr/include/none"
#include "..." search starts here:
#include <...> search starts here:
 /usr/include/c++/12
 /usr/include/x86_64-linux-gnu/c++/12
 /usr/lib/gcc-cross/aarch64-linux-gnu/12/include
 /usr/lib/gcc-cross/aarch64-linux-gnu/12/../../../../aarch64-linux-gnu/include
 /usr/local/include
 /usr/include
End of search list.
 /usr/lib/gcc/after
"""


def test_only_headers_of_the_compiler_are_taken_from_it():
    assert include_folders(SEARCHED) == [
        "/usr/include/c++/12",
        "/usr/include/x86_64-linux-gnu/c++/12",
        "/usr/lib/gcc-cross/aarch64-linux-gnu/12/include",
    ]


def test_the_toolchain_leaves_the_system_out():
    name = platform.machine()
    text = toolchain(ARCHES[name], Path("/root"), ["/c++", "/glibc"], Path("/checkout"))
    assert '"-nostdinc -isystem /root/include -isystem /c++ -isystem /glibc -D__GLIBC_MINOR__=28 ' in text
    assert "-ffile-prefix-map=/checkout=." in text
    assert "-L/root/lib" in text
    assert "-z,noexecstack" in text
    assert "CMAKE_SYSTEM_NAME" not in text  # or CMake would take it for another machine's


def test_another_machine_has_a_compiler_of_its_own():
    (other,) = {*ARCHES} - {platform.machine()}
    text = toolchain(ARCHES[other], Path("/root"), [], Path("/checkout"))
    assert f"set(CMAKE_SYSTEM_PROCESSOR {other})" in text
    assert f"set(CMAKE_CXX_COMPILER {other}-linux-gnu-g++)" in text


def test_a_missing_tool_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Missing, match=r"ziglang is not installed: pip install -r tools/wheels/requirements.txt"):
        make(ARCHES["x86_64"], tmp_path, tmp_path)
