"""The older glibc against which wheels are built."""

import platform
from pathlib import Path

from tools.wheels.sysroot import ARCHES, include_folders, toolchain

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
    assert "CMAKE_SYSTEM_NAME" not in text  # otherwise CMake would cross-compile
