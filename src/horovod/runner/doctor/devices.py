"""Checks of a host's GPUs and of the software that ranks need to use them.

The functions that examine the host raise no exceptions. Separate processes load CUDA and NCCL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from horovod.common.devices import cuda_check, libraries, nvml, visible
from horovod.common.devices.libraries import Library, text_of, too_old
from horovod.runner.doctor import container
from horovod.runner.doctor.report import FAIL, WARN, DeviceReport, Finding, HostResult, Place

MPS_PIPES = "/tmp/nvidia-mps"
_MODULES = ("nvidia_peermem", "nv_peer_mem")


def examine(environ: Mapping[str, str] = os.environ, root: str = "/") -> DeviceReport:
    """Examine the GPUs of this host and their software.

    Args:
        environ: Environment of a worker.
        root: Folder that contains sys and proc; overridden in tests.
    """
    sys = os.path.join(root, "sys")
    survey = nvml.survey(pairs=True)
    hardware = visible.gpus_by_vendor(sys)
    driver_error = libraries.driver_error(environ)
    cache, cache_error = _cache(environ)
    library = libraries.nccl(environ)
    nvtx = libraries.nvtx(environ)
    code, nccl_error = _nccl(library)
    tried = cuda_check.try_cuda(libraries.driver(environ)) if survey.gpus and not driver_error else cuda_check.Result()
    return DeviceReport(
        survey=survey,
        usable=visible.choices(environ, survey)[0][:1024],
        variable=environ.get(visible.VARIABLE),
        places=[Place(visible.near(gpu.bus, sys), visible.cards(gpu.bus, sys)[:16]) for gpu in survey.gpus],
        hardware=hardware,
        driver=libraries.driver(environ)[:4000],
        driver_error=driver_error[:4000],
        cuda_error=tried.cuda[:4000],
        ipc_error=tried.ipc[:4000],
        jit=libraries.of_system(libraries.JIT, environ),
        cache=cache[:4000],
        cache_error=cache_error[:4000],
        torch_cuda=libraries.torch_cuda(),
        nccl=library.path[:4000] if isinstance(library, Library) else "",
        nccl_source=library.source if isinstance(library, Library) else "",
        nccl_version=code,
        nccl_error=nccl_error[:4000],
        nccl_packages=libraries.installed(),
        nvtx=nvtx.path[:4000] if isinstance(nvtx, Library) else "",
        mps=_mps(environ),
        direct=_direct(root),
        ports=visible.ports(sys),
    )


def _nccl(library: Library | libraries.Missing) -> tuple[int, str]:
    """Return NCCL's version code, and the reason why the library cannot be used. The reason is empty if it can.

    A missing library is an error only if HOROVOD_NCCL_LIBRARY names it, because hosts without GPUs do not need NCCL.
    """
    if not isinstance(library, Library):
        return 0, library.reason if libraries.NCCL_VARIABLE in library.reason else ""
    code, error = libraries.load_elsewhere(library.path)
    return code or libraries.of_nccl(library), f"{library.path} cannot be loaded: {error}" if error else ""


def _cache(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the folder in which the driver caches compiled kernels and, if it is not writable, the reason."""
    if environ.get("CUDA_CACHE_DISABLE", "0").strip() not in ("", "0"):
        return "", "CUDA_CACHE_DISABLE is set"
    home = environ.get("HOME", "")
    folder = environ.get("CUDA_CACHE_PATH", "") or (os.path.join(home, ".nv/ComputeCache") if home else "")
    if not folder:
        return "", "there is no HOME and no CUDA_CACHE_PATH"
    place = Path(folder)
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
    except OSError as error:
        return folder, f"{place}: {error.strerror}"
    return folder, "" if os.access(place, os.W_OK | os.X_OK) else f"{place} cannot be written"


def _mps(environ: Mapping[str, str]) -> str:
    folder = environ.get("CUDA_MPS_PIPE_DIRECTORY", "") or MPS_PIPES
    return folder[:4000] if os.path.exists(os.path.join(folder, "control")) else ""


def _direct(root: str) -> str:
    """Return the feature that lets InfiniBand cards access GPU memory, or an empty string if there is none.

    The feature is either a kernel module, or DMA-BUF support in NVIDIA's open kernel modules.
    """
    for name in _MODULES:
        if os.path.isdir(os.path.join(root, "sys/module", name)):
            return name
    try:
        text = Path(root, "proc/driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return ""
    return "DMA-BUF" if "Open Kernel Module" in text and _kernel(root) >= (5, 12) else ""


def _kernel(root: str) -> tuple[int, int]:
    try:
        major, minor = Path(root, "proc/sys/kernel/osrelease").read_text().split("-")[0].split(".")[:2]
        return int(major), int(minor)
    except (OSError, ValueError):
        return 0, 0


LOW_SHM = 512 << 20
_RESULTS = "the job runs, and tensors of GPUs do not take this way"


def gpus(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that the GPU driver works and that the ranks can use the GPUs."""
    for answer, report in _devices(results):
        yield from _driver(answer.host, report)
        yield from _tried(answer, report)
        yield from _modes(answer, report)
        yield from _enough(answer, report)


def _driver(host: str, report: DeviceReport) -> Iterator[Finding]:
    there = [f"{vendor}'s at {', '.join(addresses[:8])}" for vendor, addresses in sorted(report.hardware.items())]
    nvidia = report.survey.gpus or report.hardware.get("NVIDIA")
    if nvidia and not report.survey.gpus:
        yield Finding(
            WARN,
            "GPU",
            host,
            f"there are GPUs ({'; '.join(there)}), but {report.survey.reason}",
            "install or load NVIDIA's driver (`nvidia-smi` then lists them); in a container: docker run --gpus all",
        )
    elif nvidia and report.driver_error:
        yield Finding(
            WARN,
            "GPU",
            host,
            f"NVIDIA's driver knows {len(report.survey.gpus)} GPUs, but {report.driver_error}",
            "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility; else reinstall the driver",
        )
    elif report.torch_cuda and report.driver_error:
        yield Finding(
            WARN,
            "GPU",
            host,
            f"PyTorch is built for CUDA {report.torch_cuda}, but {report.driver_error}",
            "install NVIDIA's driver, in a container: docker run --gpus all; where no GPU is meant, all is well",
        )
    if report.torch_cuda and _major(report.survey.cuda) and _major(report.torch_cuda) > _major(report.survey.cuda):
        yield Finding(
            WARN,
            "GPU",
            host,
            f"PyTorch is built for CUDA {report.torch_cuda}, and the driver {report.survey.driver} knows CUDA up to "
            f"{report.survey.cuda}",
            "a newer driver, or a PyTorch for an older CUDA",
        )


_ADVICE = {  # Advice by the error code of cuInit, the CUDA initialization function
    "(46)": "another process has exclusive use of the GPU (compute mode); wait, or run `nvidia-smi -c 0` as root",
    "(100)": "CUDA sees none of them: CUDA_VISIBLE_DEVICES, or /dev/nvidia* that are not in this container",
    "(802)": "the manager of NVSwitch does not run: `systemctl start nvidia-fabricmanager`, in the driver's version",
    "(803)": "the driver was updated and its old kernel module runs still, or the container has an older libcuda.so.1",
    "(999)": "`modprobe nvidia_uvm` as root; or an MPS daemon that has failed: look at its log",
}


def _tried(result: HostResult, report: DeviceReport) -> Iterator[Finding]:
    if report.cuda_error:
        advice = next(
            (text for code, text in _ADVICE.items() if code in report.cuda_error), "does nvidia-smi work there?"
        )
        yield Finding(WARN, "GPU", result.host, f"CUDA does not start: {report.cuda_error}", advice)
    if report.ipc_error and result.slots > 1:
        yield Finding(
            WARN,
            "links",
            result.host,
            f"processes cannot share memory of GPUs (CUDA IPC): {report.ipc_error}",
            "their data goes through the host's memory, more slowly. Containers: --ipc=host, and --pid=host where each "
            "rank has its own; MIG devices and some sandboxes cannot",
        )


def _major(version: str) -> int:
    major = version.partition(".")[0]
    return int(major) if major.isdecimal() else 0


def _modes(result: HostResult, report: DeviceReport) -> Iterator[Finding]:
    by_mode: dict[str, list[int]] = {}
    for gpu in report.survey.gpus:
        by_mode.setdefault(gpu.mode, []).append(gpu.index)
    if indices := by_mode.get("prohibited"):
        text = f"{_gpus(indices)} {'are' if len(indices) > 1 else 'is'} in compute mode prohibited: no program may use "
        yield Finding(WARN, "GPU", result.host, text + "it", "`nvidia-smi -c 0`, as root")
    exclusive = [*by_mode.get("exclusive process", []), *by_mode.get("exclusive thread", [])]
    if exclusive and result.slots * max(result.gpus_each, 1) > len(report.usable):
        text = f"{_gpus(exclusive)}: compute mode {report.survey.gpus[exclusive[0]].mode}, so ranks cannot share a GPU"
        yield Finding(WARN, "GPU", result.host, text, "`nvidia-smi -c 0` as root, or as many ranks as GPUs")


def _enough(result: HostResult, report: DeviceReport) -> Iterator[Finding]:
    count, wanted = len(report.usable), result.slots * result.gpus_each
    if wanted:
        try:
            given = {} if result.visible_devices is None else {visible.VARIABLE: result.visible_devices}
            visible.cut(given, report.survey, result.slots, result.gpus_each)
        except visible.VisibleError as error:
            what, _, advice = str(error).partition("; ")
            yield Finding(FAIL, "GPU", result.host, what, advice)
    elif report.survey.gpus and not count:
        yield Finding(
            WARN,
            "GPU",
            result.host,
            f"CUDA_VISIBLE_DEVICES of workers there is {report.variable!r}, which hides all GPUs",
            "it is set there by the login's own files or by the system; unset it",
        )
    elif 0 < count < result.slots:
        yield Finding(
            WARN,
            "GPU",
            result.host,
            f"{result.slots} ranks on {count} GPU{'s' if count > 1 else ''}: some share one, and take turns on it",
            "as many ranks as GPUs, if that is not meant",
        )


def alike(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that all hosts have the same GPU models, driver version and NCCL version."""
    known = list(_devices(results))
    counts = {answer.host: str(len(report.usable)) for answer, report in known}
    yield from _compare("GPU", "GPUs", counts, "ranks of a host with fewer share them, and all wait for these")
    with_gpus = [(answer.host, report) for answer, report in known if report.survey.gpus]
    names = {host: ", ".join(sorted({gpu.name for gpu in report.survey.gpus})) for host, report in with_gpus}
    yield from _compare("GPU", "models", names, "all ranks wait for the slowest")
    drivers = {host: report.survey.driver for host, report in with_gpus}
    yield from _compare("GPU", "drivers", drivers, "install the same one")
    libraries = {host: text_of(report.nccl_version) for host, report in with_gpus if report.nccl_version}
    yield from _compare(
        "NCCL", "versions", libraries, "ranks use NCCL together only where all have the same version; install one"
    )


def _compare(check: str, what: str, values: dict[str, str], advice: str) -> Iterator[Finding]:
    hosts: dict[str, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    if len(hosts) > 1:
        listed = "; ".join(f"{value or 'unknown'} on {', '.join(names)}" for value, names in sorted(hosts.items()))
        yield Finding(WARN, check, "", f"{what} differ: {listed}", advice)


def nccl(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that each host with GPUs has exactly one usable NCCL library."""
    for result, report in _devices(results):
        if report.nccl_error:
            yield Finding(WARN, "NCCL", result.host, report.nccl_error, f"install it again; else {_RESULTS}")
        elif report.nccl and (old := too_old(report.nccl_version)):
            advice = (
                f"pip install -U {next(iter(report.nccl_packages), 'nvidia-nccl-cu12')}, as PyTorch's version allows"
            )
            yield Finding(WARN, "NCCL", result.host, f"{report.nccl}: {old}", advice)
        elif report.survey.gpus and not report.nccl:
            text = "there is no libnccl.so.2 for the GPUs"
            advice = "PyTorch's packages for CUDA bring it; else pip install nvidia-nccl-cu13 (or -cu12), or "
            yield Finding(WARN, "NCCL", result.host, text, advice + "HOROVOD_NCCL_LIBRARY=/path/to/libnccl.so.2")
        if len(report.nccl_packages) > 1:
            listed = " and ".join(f"{name} {version}" for name, version in sorted(report.nccl_packages.items()))
            yield Finding(
                WARN,
                "NCCL",
                result.host,
                f"{listed} are installed, which write the same file; it is now NCCL {text_of(report.nccl_version)}",
                "uninstall both, and install again the one for the CUDA of your framework",
            )


def compiling(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that the driver can compile Horovod's kernels and cache them."""
    for result, report in _devices(results):
        if not report.survey.gpus or report.driver_error:
            continue
        if not report.jit:
            text = "there is no libnvidia-ptxjitcompiler.so.1, with which the driver compiles kernels for its GPU"
            advice = "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility; else reinstall the driver"
            yield Finding(WARN, "kernels", result.host, text, advice)
        if report.cache_error:
            text = f"what the driver compiles is not kept: {report.cache_error}"
            advice = (
                "each rank compiles at each start, some seconds; CUDA_CACHE_PATH names a folder that can be written"
            )
            yield Finding(WARN, "kernels", result.host, text, advice)


def links(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check the connections between the GPUs of a host, and from its GPUs to other hosts."""
    several = sum(result.report is not None for result in results) > 1
    for result, report in _devices(results):
        refused = [pair for pair in report.survey.pairs if pair.refused]
        if refused:
            first = refused[0]
            text = f"{len(refused)} of {len(report.survey.pairs)} pairs of GPUs cannot read each other's memory, as "
            text += f"{first.first} and {first.second}: {first.refused}"
            advice = "their data goes through the host's memory, more slowly; ACS and IOMMU settings of the BIOS may "
            yield Finding(WARN, "links", result.host, text, advice + "forbid it (`nvidia-smi topo -p2p r`)")
        assert result.report is not None
        small = 0 <= result.report.shm_free < LOW_SHM and not container.is_scarce(result, result.report)
        # Another check reports a /dev/shm that is too small even for data loaders.
        if small and len(report.usable) > 1 and result.slots > 1:
            text = (
                f"/dev/shm has {result.report.shm_free >> 20} MiB left, in which NCCL and CUDA keep buffers for ranks "
            )
            advice = "in a container: docker run --shm-size=1g, or --ipc=host"
            yield Finding(WARN, "links", result.host, text + "of one host", advice)
        active = [port for port in report.ports if port.state == "ACTIVE"]
        if several and active and (report.survey.gpus or result.report.mpi.path):
            yield from _direct_findings(result, report, active[0].device)


def _direct_findings(result: HostResult, report: DeviceReport, card: str) -> Iterator[Finding]:
    """Check that NCCL and MPI can send data through this network card."""
    if report.survey.gpus and not report.direct:
        text = f"{card} cannot reach the memory of GPUs (GPUDirect RDMA): there is neither nvidia_peermem nor DMA-BUF"
        advice = (
            "`modprobe nvidia_peermem` as root, or NVIDIA's open kernel modules with Linux 5.12 or newer; without, "
        )
        yield Finding(WARN, "links", result.host, text, advice + "NCCL copies through the host's memory")
    assert result.report is not None
    soft = result.report.limits.get("memlock", (-1, -1))[0]
    if 0 <= soft < 1 << 30:
        text = f"a process may lock {soft >> 10} KiB of memory, and {card} needs what it sends from locked"
        advice = (
            "`ulimit -l unlimited` (limits.conf, or LimitMEMLOCK of sshd's service); docker run --ulimit memlock=-1"
        )
        yield Finding(WARN, "links", result.host, text, advice)


def _devices(results: Sequence[HostResult]) -> Iterator[tuple[HostResult, DeviceReport]]:
    for answer in results:
        if answer.report is not None:
            yield answer, answer.report.devices


def _gpus(indices: Sequence[int]) -> str:
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


CHECKS = (gpus, alike, nccl, compiling, links)
