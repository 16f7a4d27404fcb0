"""The list of wheels, and problems found in one."""

import re
from pathlib import Path

from tools.wheels.plan import LARGEST, LIBRARIES, WANTED, contents_complaints, library_complaints

ROOT = Path(__file__).resolve().parents[2]
OLD, _, STABLE = WANTED


def test_names():
    assert [wheel.file_name("1.0", "aarch64") for wheel in WANTED] == [
        "horovod-1.0-cp310-cp310-manylinux_2_28_aarch64.whl",
        "horovod-1.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "horovod-1.0-cp312-abi3-manylinux_2_28_aarch64.whl",
    ]
    assert STABLE.extension("x86_64") == "horovod/_core.abi3.so"
    assert OLD.extension("x86_64") == "horovod/_core.cpython-310-x86_64-linux-gnu.so"


def test_every_built_library_belongs_in_a_wheel():
    lists = [path.read_text() for path in (ROOT / "bindings").glob("*/CMakeLists.txt")]
    folders = {
        name for text in lists for name in re.findall(r"install\(TARGETS \w+ LIBRARY DESTINATION ([\w/]+)\)", text)
    }
    assert folders == {"horovod", *(library.rpartition("/")[0] for library in LIBRARIES)}


def test_contents():
    names = ["horovod/__init__.py", "horovod-1.0.dist-info/METADATA", STABLE.extension("x86_64"), *LIBRARIES]
    assert contents_complaints(names, STABLE.extension("x86_64"), LARGEST) == []
    lost, other = names[:-1], [*names, "tests/job.py", "horovod/_core.cpython-311-x86_64-linux-gnu.so"]
    assert contents_complaints(lost, STABLE.extension("x86_64"), 1) == ["horovod/tensorflow/_tf.so is missing"]
    assert contents_complaints(other, STABLE.extension("x86_64"), LARGEST + 1) == [
        "horovod/_core.cpython-311-x86_64-linux-gnu.so does not belong there",
        "tests/job.py does not belong there",
        f"{LARGEST + 1} bytes are more than {LARGEST}",
    ]


def test_forbidden_dependencies_and_symbols_of_a_library():
    fine = [("memcpy", "GLIBC_2.14", False), ("PyLong_FromLong", None, False), ("__gmon_start__", None, True)]
    assert library_complaints("a.so", fine, ["PyInit__core"], ["libc.so.6", "libgcc_s.so.1"]) == []
    newer, shown = [*fine, ("arc4random", None, False)], ["_ZNSt6thread4joinEv"]
    assert library_complaints("a.so", newer, shown, ["libstdc++.so.6", "ld-linux-x86-64.so.2"]) == [
        "a.so: glibc 2.28 has no arc4random; tools/wheels/newer_glibc.c may",
        "a.so: shows _ZNSt6thread4joinEv of its C++ library to others",
        "a.so: needs libstdc++.so.6",
    ]


def test_the_extras_match_the_documentation():
    text = (ROOT / "pyproject.toml").read_text()
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^([\w-]+) = ", section, re.M))
    promised = (
        "tensorflow tensorflow-cpu tensorflow-gpu keras pytorch mxnet spark pytorch-spark ray all-frameworks dev test"
    )
    assert extras >= {*promised.split(), "jax", "numpy", "data", "kubernetes"}
