"""The function `horovod.run`, which calls a Python function on each rank of a new job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.common.contract import boot
from horovod.runner.base import linux
from horovod.runner.base.arguments import HOROVOD_RUN, integer, renamed
from horovod.runner.command import cli, elastic_flags
from horovod.runner.external_launchers import mpi
from horovod.runner.function import outcome
from horovod.runner.function import outcome as function_package
from horovod.runner.job import terminal
from horovod.runner.job.job import make_job
from horovod.runner.output.output import standard_output
from horovod.runner.plan import allocations
from horovod.runner.plan import hosts as host_lists
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings, WorkerOptions, mpi_options


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: tuple[int, int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | Sequence[str] | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call `func(*args, **kwargs)` on `num_proc` ranks and return the results in rank order.

    The function, its arguments and its results are serialized with cloudpickle. Lambdas, closures, and classes that are
    defined in a script or notebook therefore work. The output of the ranks appears on `sys.stdout` and `sys.stderr`,
    and each line begins with its rank. This function can be called from any thread. With `min_num_proc` or
    `host_discovery_script`, the job is elastic.

    Args:
        func: Function to call on each rank.
        args: Positional arguments for `func`.
        kwargs: Keyword arguments for `func`.
        num_proc: Number of ranks. In an elastic job, this is the initial number.
        min_num_proc: Minimum number of ranks of an elastic job. The default is `num_proc`.
        max_num_proc: Maximum number of ranks of an elastic job. The default is all available slots.
        slots: Slots of each host for which the discovery script prints no number.
        reset_limit: Maximum number of changes of the ranks before an elastic job fails. The default is no limit.
        cooldown_range: Initial and maximum delay in seconds before a host on which a worker failed gets new workers. By
            default, such a host gets no new workers.
        hosts: Hosts and slots, such as `"host1:2,host2:4"`. The default is this machine.
        hostfile: Path of a file with a line `name slots=N` for each host. It cannot be combined with `hosts`.
        host_discovery_script: Path of a program that prints the available hosts. It cannot be combined with `hosts` or
            `hostfile`.
        start_timeout: Seconds within which all ranks must start. The default is `HOROVOD_START_TIMEOUT`.
        ssh_port: Port of ssh on other hosts.
        ssh_identity_file: Path of the private key for ssh to other hosts.
        disable_cache: Ignored, because checks of hosts are not cached.
        output_filename: Folder for copies of each rank's output, as `rank.N/stdout` and `rank.N/stderr`.
        verbose: If not 0, show what the launcher starts.
        use_gloo: Use the built-in launcher, which is the default.
        use_mpi: Start the ranks with mpirun. It cannot be combined with `use_gloo` or elastic jobs.
        mpi_args: Additional arguments for mpirun. They require `use_mpi=True`.
        network_interface: Deprecated name of `network_interfaces`.
        network_interfaces: Names of the network interfaces to use, as a sequence or as a comma-separated string.
        executable: Python interpreter of the workers. The default is the interpreter of this process.
        np: Deprecated name of `num_proc`.
        min_np: Deprecated name of `min_num_proc`.
        max_np: Deprecated name of `max_num_proc`.

    Returns:
        Results of all ranks in rank order. For an elastic job, results of ranks 0 to `min_num_proc - 1` at its end.

    Raises:
        WorkerError: If a process has failed or ended without a result. The error is a RuntimeError and contains the
            rank that failed first and its exit code. If this rank raised an exception, the error is also an instance of
            the exception's class, and contains the traceback.
        TypeError: If the function or an argument cannot be pickled.
        ValueError: If an argument is invalid, contradicts another argument, or requests an unsupported feature.
        KeyboardInterrupt: If the user interrupted the job. The ranks are interrupted first. The exception is raised
            when they have ended, after at most `HOROVOD_GRACE_SECONDS`.
    """
    for old, new, value in (
        ("np", "num_proc", np),
        ("min_np", "min_num_proc", min_np),
        ("max_np", "max_num_proc", max_np),
        ("network_interface", "network_interfaces", network_interface),
    ):
        renamed(old, new, value)
    arguments = {
        "min_num_proc": min_np if min_num_proc is None else min_num_proc,
        "max_num_proc": max_np if max_num_proc is None else max_num_proc,
        "slots": slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
        "host_discovery_script": host_discovery_script,
    }
    if use_gloo and use_mpi:
        raise ValueError("only one of use_gloo and use_mpi must be given, got both")
    if mpi_args is not None and not use_mpi:
        raise ValueError(f"mpi_args must be None without use_mpi=True, got {mpi_args!r}")
    size = integer("num_proc", num_proc if np is None else np, 1)
    elastic = _elastic(size, arguments, hosts, hostfile, use_mpi)
    assigned = [] if elastic is not None else host_lists.assign(_hosts(size, hosts, hostfile), size)
    interfaces = network_interface if network_interfaces is None else network_interfaces
    names = [slot.hostname for slot in assigned] if elastic is None else [host.name for host in elastic.hosts]
    variables = _variables(interfaces, start_timeout, names)
    settings = LaunchSettings(
        command=[*filter(None, [executable]), *boot.arguments("horovod.runner.function.worker")],
        options=WorkerOptions(own_python=not executable),
        slots=assigned,
        variables=variables,
        output_filename=output_filename,
        verbose=bool(verbose),
        ssh_port=ssh_port,
        ssh_identity_file=ssh_identity_file,
        mpi=mpi_options(mpi_args, None, tcp=False) if use_mpi else None,
        elastic=elastic,
        names=HOROVOD_RUN,
    )
    payload = function_package.pack(func, args, kwargs or {})
    settings = cli.with_variables(settings, os.environ)
    environ = _environment(os.environ)
    with linux.interrupts() as queue:
        if use_mpi:
            result = mpi.run_function(settings, environ, payload, standard_output(), queue)
        else:
            with terminal.terminal_restored(settings.debug_rank):
                job = make_job(
                    settings, environ, signals=queue, payload=payload, results=True, output=standard_output()
                )
                result = job.run()
    if elastic is None:
        return outcome.by_rank(result, {slot.rank: slot.hostname for slot in assigned})
    return outcome.of_elastic(result, elastic.least)


# Variables of a notebook kernel that workers must not inherit. Workers must not use the kernel's plot backend either,
# because they cannot show figures in a cell.
_OF_THE_KERNEL = ("JPY_PARENT_PID", "JPY_SESSION_NAME", "JPY_INTERRUPT_EVENT")


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    passed = {name: value for name, value in environ.items() if name not in _OF_THE_KERNEL}
    if passed.get("MPLBACKEND", "").startswith("module://"):
        del passed["MPLBACKEND"]
    return passed


def _elastic(
    size: int, arguments: Mapping[str, Any], names: str | None, hostfile: str | None, use_mpi: bool | None
) -> ElasticSettings | None:
    """Return the settings of an elastic job, or None if the arguments describe a fixed-size job."""
    script = arguments["host_discovery_script"]
    if script is None and arguments["min_num_proc"] is None:
        for name, value in arguments.items():
            if value is not None:
                raise ValueError(
                    f"{name} must be None for a job of fixed size, got {value!r}; give min_num_proc or "
                    "host_discovery_script to make the job elastic"
                )
        return None
    if use_mpi:
        raise ValueError(
            "use_mpi must be False for an elastic job, got True: mpirun cannot start and end single processes; use "
            "use_gloo=True, or neither"
        )
    if script is not None and (names is not None or hostfile is not None):
        raise ValueError(
            f"only one of host_discovery_script and hosts or hostfile must be given, got both (script {script!r})"
        )
    return elastic_flags.make_settings(
        start=size,
        least=arguments["min_num_proc"],
        max_size=arguments["max_num_proc"],
        slots=arguments["slots"],
        resets=arguments["reset_limit"],
        cooldown=arguments["cooldown_range"],
        script=script,
        requested=[] if script is not None else _hosts(size, names, hostfile),
        names=HOROVOD_RUN,
        nodes=None if (script, names, hostfile) != (None, None, None) else allocations.allocation(os.environ),
    )


def _hosts(size: int, names: str | None, hostfile: str | None) -> list[host_lists.Host]:
    if names is not None and hostfile is not None:
        raise ValueError(f"only one of hosts and hostfile must be given, got {names!r} and {hostfile!r}")
    if names is not None:
        return host_lists.parse_hosts(names)
    if hostfile is not None:
        return cli.read_hostfile(hostfile)
    return cli.hosts_of_service(size, os.environ) or [host_lists.Host("localhost", size)]


def _variables(
    interfaces: str | Sequence[str] | None, start_timeout: int | None, hosts: Sequence[str]
) -> dict[str, str]:
    names = interfaces.split(",") if isinstance(interfaces, str) else list(interfaces or ())
    variables = cli.interface_variables(names, hosts)
    if start_timeout is not None:
        variables["HOROVOD_START_TIMEOUT"] = str(start_timeout)
    return variables
