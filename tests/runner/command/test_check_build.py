import importlib.metadata

import pytest

from horovod.common.devices import nvml
from horovod.runner.command import check_build

ALL = {
    *("horovod._core", "horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.mxnet", "horovod.jax"),
    *("torch", "tensorflow", "keras", "tf_keras", "jax", "mxnet"),
}


def marks(text):
    """Return for each table whether a name is marked."""
    tables = {}
    for line in text.splitlines():
        if line.startswith("Available "):
            rows = tables[line[len("Available ") : -1]] = {}
        elif line.startswith("    ["):
            rows[line[8:]] = {"[X]": True, "[ ]": False}[line[4:7]]
    return tables


@pytest.mark.parametrize(
    ("missing", "unmarked"),
    [
        (set(), set()),
        ({"torch"}, {"PyTorch"}),
        ({"horovod.torch"}, {"PyTorch"}),
        ({"tensorflow"}, {"TensorFlow"}),
        ({"keras"}, set()),
        ({"keras", "tf_keras"}, {"Keras"}),
        ({"horovod._core"}, {"Gloo"}),
        ({"mxnet"}, {"MXNet"}),
        (ALL, {"TensorFlow", "PyTorch", "Keras", "MXNet", "JAX", "Gloo"}),
    ],
)
def test_available_components_are_marked(monkeypatch, missing, unmarked):
    monkeypatch.setattr(check_build, "_present", lambda module: module in ALL - missing)
    # Features that the engine cannot use are never marked.
    available = {"TensorFlow", "PyTorch", "Keras", "MXNet", "JAX", "Gloo"} - unmarked
    tables = marks(check_build.report())
    assert {title: list(rows) for title, rows in tables.items()} == {
        "Frameworks": ["TensorFlow", "PyTorch", "Keras", "MXNet", "JAX"],
        "Controllers": ["MPI", "Gloo"],
        "Tensor Operations": ["NCCL", "DDL", "CCL", "MPI", "Gloo"],
    }
    for rows in tables.values():
        assert rows == {name: name in available for name in rows}


def test_versions_are_shown_on_request(monkeypatch):
    versions = {"torch": "2.1", "tensorflow-cpu": "2.16"}

    def version(package):
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(check_build, "_present", lambda module: module in ALL)
    monkeypatch.setattr(check_build.metadata, "version", version)
    text = check_build.report(verbose=True)
    for line in ("    torch 2.1\n", "    tensorflow 2.16\n", "    keras of unknown version\n"):
        assert line in text
    assert "torch 2.1" not in check_build.report()


def test_gpus_and_their_libraries_are_shown_on_request(monkeypatch, tmp_path):
    monkeypatch.setenv("HOROVOD_NCCL_LIBRARY", str(tmp_path / "libnccl.so.2"))
    lines = check_build.report(verbose=True).splitlines()
    assert f"    no NCCL: HOROVOD_NCCL_LIBRARY is '{tmp_path}/libnccl.so.2', and there is no such file" in lines
    (tmp_path / "libnccl.so.2").write_bytes(b"NCCL version 2.28.9+cuda13.0")
    monkeypatch.setattr(
        nvml, "survey", lambda: nvml.Survey([nvml.Gpu(0, "H200", capability=(9, 0))], [], "580.1", "13.0")
    )
    monkeypatch.setenv("HOROVOD_CUDA_LIBRARY", "/no/libcuda.so.1")
    lines = check_build.report(verbose=True).splitlines()
    at = lines.index("    NVIDIA driver 580.1, CUDA 13.0")
    assert lines[at + 1] == "    GPUs 0 H200 (9.0)"
    assert lines[at + 2].startswith("    /no/libcuda.so.1 cannot be loaded: ")
    assert lines[at + 3] == f"    NCCL 2.28.9, {tmp_path}/libnccl.so.2 (HOROVOD_NCCL_LIBRARY)"
    monkeypatch.setattr(nvml, "survey", lambda: nvml.Survey(reason="there is no driver"))
    assert "    no GPU: there is no driver" in check_build.report(verbose=True).splitlines()
