"""Search for NCCL, CUDA's driver and NVTX, and NCCL's version, with files that replace the libraries."""

import importlib.metadata
import subprocess
import sys

import pytest

from horovod.common import util
from horovod.common.devices import libraries
from horovod.common.devices.libraries import Library, Missing

NCCL = """
const char words[] = "NCCL version %s";
int ncclGetVersion(int* version) { *version = %d; return 0; }
"""


def compile_nccl(path, text="2.28.9+cuda13.0", code=22809):
    source = path.with_suffix(".c")
    source.write_text(NCCL % (text, code))
    soname = f"-Wl,-soname,{path.name.split('.so')[0]}.so.2"
    subprocess.run(["gcc", "-shared", "-fPIC", soname, "-o", path, source], check=True, timeout=60)
    return path


@pytest.fixture
def nowhere(monkeypatch):
    """A simulated machine without any of these libraries."""
    monkeypatch.setattr(libraries, "folders_of", lambda package: [])
    monkeypatch.setattr(libraries, "folders_of", lambda package: [])
    monkeypatch.setattr(libraries, "loaded", lambda name: "")
    monkeypatch.setattr(libraries, "_SYSTEM", ())
    monkeypatch.setattr(libraries, "CACHE", "/nowhere")
    monkeypatch.setattr(sys, "prefix", "/nowhere")


def file(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return str(path)


def test_the_order_in_which_nccl_is_looked_for(nowhere, monkeypatch, tmp_path):
    missing = libraries.nccl({})
    assert isinstance(missing, Missing)
    assert "there is no libnccl.so.2" in missing.reason
    assert libraries.of_nccl(missing) == 0

    monkeypatch.setattr(libraries, "folders_of", lambda package: [str(tmp_path / package)])
    system = file(tmp_path / "system/libnccl.so.2")
    environ = {"LD_LIBRARY_PATH": f"/nowhere::{tmp_path}/system"}
    assert libraries.nccl(environ) == Library(system, "the system")
    beside = file(tmp_path / "conda/lib/libnccl.so.2")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "conda"))
    assert libraries.nccl(environ) == Library(beside, "beside Python")
    package = file(tmp_path / "nvidia/nccl/lib/libnccl.so.2")
    assert libraries.nccl(environ) == Library(package, "a package of Python")
    monkeypatch.setattr(libraries, "loaded", lambda name: f"/torch/{name}")
    assert libraries.nccl(environ) == Library("/torch/libnccl.so.2", "loaded already")
    assert libraries.nccl_search({**environ, "HOROVOD_NCCL_LIBRARY": " x.so "}) == (
        "x.so",
        [package, beside, system, "libnccl.so.2"],
    )
    chosen = file(tmp_path / "mine.so")
    assert libraries.nccl({**environ, "HOROVOD_NCCL_LIBRARY": chosen}) == Library(chosen, "HOROVOD_NCCL_LIBRARY")
    named = {**environ, "HOROVOD_NCCL_LIBRARY": "libnccl.so.2"}
    assert libraries.nccl(named) == Library(system, "HOROVOD_NCCL_LIBRARY")
    wrong = libraries.nccl({**environ, "HOROVOD_NCCL_LIBRARY": "/no/libnccl.so.2"})
    assert wrong == Missing("HOROVOD_NCCL_LIBRARY is '/no/libnccl.so.2', and there is no such file")


def test_nccl_warns_unless_configured_otherwise(tmp_path):
    conf, none = tmp_path / "nccl.conf", str(tmp_path / "none")
    for text, environ, expected in (
        ("", {}, "WARN"),
        ("", {"NCCL_DEBUG": "INFO"}, "INFO"),
        ("", {"NCCL_DEBUG": ""}, ""),
        ("NCCL_IB_DISABLE=1\n# NCCL_DEBUG=INFO\n", {}, "WARN"),
        ("NCCL_IB_DISABLE=1\nNCCL_DEBUG=INFO\n", {}, None),
    ):
        conf.write_text(text)
        libraries.have_nccl_warn(environ, [none, str(conf)])
        assert environ.get("NCCL_DEBUG") == expected, text


def test_libraries_already_in_the_process_are_found(tmp_path):
    """A library loaded by any caller is found in this process, even if its symbols are not global.

    Another library beside it is reported as one that cannot be loaded. Runs in a separate process.
    """
    library = compile_nccl(tmp_path / "libnccl.so.2", code=22703)
    code = (
        "import ctypes, os\n"
        "from horovod.common import util\n"
        "from horovod.common.devices import libraries\n"
        f"held = ctypes.CDLL({str(library)!r})\n"
        "found = libraries.nccl(os.environ)\n"
        "print(found.path, found.source.split()[0], libraries.of_nccl(found), util.nccl_built())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == ([str(library), "loaded", "22703", "22703"], "")
    source, crash = tmp_path / "crash.c", tmp_path / "crash.so"
    source.write_text("#include <unistd.h>\n__attribute__((constructor)) void begin(void) { _exit(3); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", crash, source], check=True, timeout=60)
    code, reason = libraries.load_elsewhere(str(crash))
    assert code == 0
    assert reason.startswith("the process that loaded it ended with 3")
    code, reason = libraries.load_elsewhere(file(tmp_path / "broken.so"))
    assert code == 0
    assert "broken.so: file too short" in reason


@pytest.mark.parametrize(
    ("text", "code"), [("2.28.9", 22809), ("2.18.3+cuda12.2", 21803), ("2.7.8", 2708), ("2.9.6", 20906), ("new", 0)]
)
def test_version_codes(text, code):
    assert libraries.code_of(text) == code
    if code:
        assert libraries.text_of(code) == text.partition("+")[0]


def test_find_the_cuda_driver(nowhere, tmp_path):
    driver = compile_nccl(tmp_path / "libcuda.so.1")
    assert libraries.driver({}) == "libcuda.so.1"
    assert libraries.driver_error({"HOROVOD_CUDA_LIBRARY": str(driver)}) == ""
    assert "/no/libcuda.so.1 cannot be loaded: " in libraries.driver_error({"HOROVOD_CUDA_LIBRARY": "/no/libcuda.so.1"})


def test_nvtx(nowhere, monkeypatch, tmp_path):
    assert isinstance(libraries.nvtx({}), Missing)
    old = file(tmp_path / "nvidia/nvtx/lib/libnvToolsExt.so.1")
    monkeypatch.setattr(libraries, "folders_of", lambda package: [str(tmp_path / package)])
    assert libraries.nvtx({}) == Library(old, "a package of Python")
    new = file(tmp_path / "nvidia/cu13/lib/libnvtx3interop.so.1")
    assert libraries.nvtx({}) == Library(new, "a package of Python")


def test_gpu_available(nowhere, monkeypatch, tmp_path, capsys):
    """True if the framework is built for GPUs, and this process may use one."""
    from horovod.common.devices import nvml

    monkeypatch.setattr(libraries, "built_for_gpus", lambda name: name == "torch")
    monkeypatch.setattr(util, "extension_available", lambda name, verbose: name in ("torch", "keras"))
    monkeypatch.setattr(util, "_cached", {"gpus": nvml.Survey(gpus=[nvml.Gpu(0, uuid="GPU-1")])})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [util.gpu_available(name) for name in ("torch", "keras", "mxnet")] == [True, False, False]
    assert util.gpu_available("torch", verbose=True)
    assert capsys.readouterr().out == "GPUs for horovod.torch: available\n"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert not util.gpu_available("torch")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(util, "_cached", {"gpus": nvml.Survey(reason="no driver")})
    assert not util.gpu_available("torch")


def test_the_only_installed_package_determines_the_version(nowhere, monkeypatch, tmp_path):
    known = {"nvidia-nccl-cu12": "2.21.5"}

    def version(name):
        if name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    library = compile_nccl(tmp_path / "libnccl.so.2")
    wheel = Library(str(library), "a package of Python")
    assert [libraries.of_nccl(each) for each in (wheel, Library(str(library), "the system"))] == [22105, 22809]
    known["nvidia-nccl-cu13"] = "2.28.9"  # which of the two wrote the file is unknown
    assert libraries.of_nccl(wheel) == 22809
    code, reason = libraries.load_elsewhere(file(tmp_path / "broken.so"))
    assert (code, "broken.so: file too short" in reason) == (0, True)


def test_frameworks_built_for_gpus(nowhere, monkeypatch, tmp_path):
    assert not any(map(libraries.built_for_gpus, ("torch", "tensorflow", "jax", "keras", "mxnet")))
    monkeypatch.setattr(libraries, "folders_of", lambda package: [str(tmp_path)] if "jax" not in package else [])
    info = tmp_path / "python/platform/build_info.py"
    file(info)
    for torch, tensorflow in (("", False), ("", True), ("13.0", False)):
        (tmp_path / "version.py").write_text(f"cuda: Optional[str] = {torch or None!r}\n")
        info.write_text(f"build_info = dict([('is_cuda_build', {tensorflow})])")
        built = [libraries.built_for_gpus(name) for name in ("torch", "tensorflow", "jax", "keras")]
        assert built == [bool(torch), tensorflow, False, bool(torch) or tensorflow]
