"""Parser that turns the `horovodrun` command line into validated settings."""

from __future__ import annotations

import argparse
import socket
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from horovod.common.contract import boot
from horovod.common.contract.log import warn_user
from horovod.common.contract.notices import misspelt_sentences, notices, sentences
from horovod.common.contract.setting import is_off
from horovod.common.contract.settings import BY_NAME, Settings
from horovod.runner.base.job_result import LaunchError
from horovod.runner.command import command_line, config_file, elastic_flags, flags
from horovod.runner.command.config_file import Config
from horovod.runner.command.flags import FLAGS, GROUPS, Flag
from horovod.runner.job import terminal
from horovod.runner.plan import allocations, environment, hosts
from horovod.runner.plan.hosts import Slot
from horovod.runner.plan.settings import LaunchSettings, MpiOptions, WorkerOptions, mpi_options, patterns


class _Parser(argparse.ArgumentParser):
    def format_help(self) -> str:
        return flags.help_text()

    def error(self, message: str) -> NoReturn:
        raise LaunchError(message)


class _Check:
    """Converter that argparse applies to a flag's value. argparse prints its error message after the flag's name."""

    def __init__(self, flag: Flag) -> None:
        self._flag = flag

    def __call__(self, text: str) -> object:
        value = self._flag.value
        assert value is not None
        try:
            return value.parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {value.accepted}, got {text!r}") from None


def make_parser() -> argparse.ArgumentParser:
    """Create the argparse parser for the flags that precede the command."""
    parser = _Parser(prog="horovodrun", usage=flags.USAGE, allow_abbrev=False)
    exclusive: dict[str, argparse._MutuallyExclusiveGroup] = {}
    for title in GROUPS:
        group = parser.add_argument_group(title)
        for flag in (flag for flag in FLAGS if flag.group == title):
            target: argparse._ActionsContainer = group
            if flag.exclusive is not None:
                target = exclusive.setdefault(flag.exclusive, group.add_mutually_exclusive_group())
            _add(target, flag)
    return parser


def _add(target: argparse._ActionsContainer, flag: Flag) -> None:
    if flag.value is None:
        target.add_argument(*flag.names, dest=flag.dest, action="store_const", const=True)
        if flag.no:
            names = ["--no-" + name[2:] for name in flag.names]
            target.add_argument(*names, dest=flag.dest, action="store_const", const=False)
        return
    target.add_argument(
        *flag.names,
        dest=flag.dest,
        type=_Check(flag),
        nargs=flag.nargs if flag.nargs > 1 else None,
        action="append" if flag.repeat else "store",
    )


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line into flag values and the command. The value of an absent flag is None.

    Raises:
        LaunchError: If a flag is unknown, or its value is invalid.
    """
    before, command = command_line.split(arguments)
    return make_parser().parse_args(before), command


def settings(namespace: argparse.Namespace, command: list[str], environ: Mapping[str, str]) -> LaunchSettings:
    """Check the flags and return the settings of the job, with ranks assigned to hosts.

    Args:
        namespace: Values of the flags, from `parse`.
        command: Command that each rank runs, with its arguments.
        environ: The launcher's environment variables.

    Raises:
        LaunchError: If a flag is missing, is invalid, or contradicts another flag.
    """
    config = Config()
    if namespace.config_file is not None:
        config = config_file.read(namespace.config_file)
        if not (namespace.gloo or namespace.mpi or namespace.jsrun) and config.controller is not None:
            setattr(namespace, config.controller, True)
    if namespace.num_proc is None:
        example = "`horovodrun -np 2 python train.py`"
        if moved := command_line.moved_number(command):
            raise LaunchError(
                f"{moved} must precede the command, got it after the command's first word; put flags first, as in "
                f"{example}"
            )
        raise LaunchError(f"-np is missing: say how many processes to start, as in {example}")
    if namespace.benchmark:
        command = [*boot.arguments("horovod.benchmark.__main__"), *command]
    else:
        for text in misspelt_sentences(command_line.assigned(command)):
            warn_user(text)
        command = command_line.through_env(command)
    if not command:
        raise LaunchError("the command is missing: it comes after the flags, as in `horovodrun -np 2 python train.py`")
    variables = flag_variables(namespace, environ, config)
    if namespace.auto:
        command = command_line.with_auto(command, namespace.lr_scale or "none")
        variables.setdefault(
            "PYTHONHASHSEED", environ.get("PYTHONHASHSEED", "0")
        )  # All ranks must use the same hash seed to iterate over sets of strings in the same order.
    elif namespace.lr_scale is not None:
        raise LaunchError("--lr-scale has no effect without --auto: add --auto, or scale the rate in the program")
    given = chosen_hosts(namespace, environ)
    elastic = elastic_flags.of_flags(namespace, given, environ)
    if namespace.auto and elastic is not None:
        raise LaunchError("--auto cannot run elastic jobs: remove --auto, or the flags that make the job elastic")
    local = [hosts.Host("localhost", namespace.num_proc)]
    slots = [] if elastic is not None else hosts.assign(given or local, namespace.num_proc)
    names = [slot.hostname for slot in slots] if elastic is None else [host.name for host in elastic.hosts]
    variables.update(interface_variables(_interfaces(namespace), names))
    launch_settings = LaunchSettings(
        command=command,
        slots=slots,
        variables=variables,
        output_filename=namespace.output_filename,
        timestamp=bool(namespace.prefix_output_with_timestamp),
        prefix=not namespace.benchmark,
        prefix_host=bool(namespace.prefix_output_with_host),
        collapse=bool(namespace.collapse_output),
        verbose=bool(namespace.verbose),
        ssh_port=namespace.ssh_port,
        ssh_identity_file=namespace.ssh_identity_file,
        mpi=_mpi_options(namespace) if namespace.mpi or namespace.jsrun else None,
        jsrun=bool(namespace.jsrun),
        options=WorkerOptions(own_python=bool(namespace.benchmark)),
        elastic=elastic,
    )
    checked = with_variables(launch_settings, environ)
    if checked.mpi is not None and checked.debug_rank is not None:
        warnings.warn(
            f"rank {checked.debug_rank}, which is debugged, has no terminal under mpirun or jsrun", stacklevel=2
        )
    return checked


def _mpi_options(namespace: argparse.Namespace) -> MpiOptions:
    return mpi_options(namespace.mpi_args, namespace.binding_args, bool(namespace.tcp))


def with_variables(settings: LaunchSettings, environ: Mapping[str, str]) -> LaunchSettings:
    """Update the settings from the environment variables that the launcher itself uses.

    `settings.variables` take precedence over `environ`. All variables are checked as the workers would check them, so
    that mistakes are reported once, before any process starts. A warning names variables that have no effect.

    Raises:
        LaunchError: If the value of a variable is invalid.
    """
    try:
        checked = Settings.from_environ({**environ, **settings.variables})
    except ValueError as error:
        raise LaunchError(str(error)) from None
    for text in sentences({**environ, **dict.fromkeys(settings.variables, "")}, mpi=settings.mpi is not None):
        warn_user(text)
    settings = elastic_flags.with_variables(settings, checked)
    check_affinity(checked.integers("HOROVOD_THREAD_AFFINITY") or [], settings.slots)
    gpus, near = checked.integer("HOROVOD_GPUS_PER_WORKER"), checked.flag("HOROVOD_GPU_AFFINITY")
    if (gpus or near) and settings.mpi is not None:
        given = f"--gpus-per-worker (HOROVOD_GPUS_PER_WORKER) is {gpus}" if gpus else "--gpu-affinity is given"
        raise LaunchError(
            f"{given}, but mpirun and jsrun start the workers, who see all GPUs or those that these give them, and "
            "bind them; a program takes the GPU of its local rank, as in torch.cuda.set_device(hvd.local_rank())"
        )
    return replace(
        settings,
        variables={name: text for name, text in settings.variables.items() if name not in environment.NOT_PASSED_ON},
        start_timeout=checked.number("HOROVOD_START_TIMEOUT"),
        remote_python=checked.text("HOROVOD_REMOTE_PYTHON") or None,
        ssh_fanout=checked.integer("HOROVOD_SSH_FANOUT"),
        debug_rank=None
        if settings.elastic is not None
        else terminal.check(checked.integer("HOROVOD_DEBUG_RANK"), settings.slots),
        dashboard=checked.integer("HOROVOD_DASHBOARD_PORT") if checked.flag("HOROVOD_DASHBOARD") else None,
        heartbeat_timeout=checked.number("HOROVOD_HEARTBEAT_TIMEOUT"),
        grace=checked.number("HOROVOD_GRACE_SECONDS"),
        torch_env=checked.flag("HOROVOD_TORCH_DISTRIBUTED_ENV"),
        torch_port=checked.integer("HOROVOD_TORCH_DISTRIBUTED_PORT"),
        env_allow=tuple(patterns(checked.text("HOROVOD_ENV_ALLOW"))),
        options=settings.options.with_settings(checked),
    )


def flag_variables(namespace: argparse.Namespace, environ: Mapping[str, str], config: Config) -> dict[str, str]:
    """Return the workers' environment variables that are set by flags or the config file. Flags take precedence.

    A flag or key that has no effect without another one is omitted, with a warning.
    """
    variables: dict[str, str] = {}
    source: dict[str, str] = {}  # Maps each variable to the flag or config key that set it, in the user's spelling
    for flag in FLAGS:
        value = getattr(namespace, flag.dest)
        if flag.variable is not None and value is not None:
            variables[flag.variable] = str(value) if flag.value else flag.constant if value else "0"
            source[flag.variable] = flag.names[-1]
    for variable, text in config.variables.items():
        if variables.setdefault(variable, text) is text:
            source.setdefault(variable, config.keys[variable])
    for flag in FLAGS:
        if flag.variable in variables and flag.needs is not None and not _is_on(flag.needs, variables, environ):
            text, way = variables.pop(flag.variable), source[flag.variable]
            if way.startswith("-"):
                warnings.warn(f"{way} has no effect without {flag.needs}", stacklevel=2)
            elif _changes(flag.variable, text) and _variable_of(flag.needs) not in variables:
                key = BY_NAME[_variable_of(flag.needs)].yaml
                warnings.warn(f"{way} has no effect without {key}", stacklevel=2)
    for variable, reason in notices(variables).items():
        warnings.warn(f"{source[variable]}: {reason}", stacklevel=2)
    return variables


def _is_on(name: str, variables: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Return True if a flag, the config file or the environment enables the setting that belongs to the flag `name`."""
    variable = _variable_of(name)
    return not is_off(variables.get(variable, environ.get(variable, "")))


def _variable_of(name: str) -> str:
    variable = next(flag.variable for flag in FLAGS if name in flag.names)
    assert variable is not None
    return variable


def _changes(variable: str, text: str) -> bool:
    """Return True if `text` sets the variable to a value other than its default."""
    return BY_NAME[variable].parse(text) != BY_NAME[variable].default


def _interfaces(namespace: argparse.Namespace) -> list[str]:
    many, each = namespace.network_interfaces, namespace.network_interface
    given: list[str] = [many] if many else each or []
    if each and any("," in name for name in given):
        warnings.warn("a comma list in --network-interface is deprecated: use --network-interfaces", stacklevel=3)
    return [name for word in given for name in word.split(",")]


def interface_variables(interfaces: Sequence[str], names: Collection[str]) -> dict[str, str]:
    """Return the variables that select network interfaces.

    The engine uses only the first interface, whereas NCCL uses all of them.

    Args:
        interfaces: Names of network interfaces.
        names: Names of the job's hosts.

    Raises:
        LaunchError: If this machine lacks one of the interfaces. This is checked only if the job runs on this machine
            alone.
    """
    here = bool(interfaces and names) and all(hosts.is_local(name) for name in set(names))
    present = [name for _, name in socket.if_nameindex()]
    for name in interfaces:
        if here and name not in present:
            raise LaunchError(f"there is no network interface {name!r}; this machine has {', '.join(present)}")
    if not interfaces:
        return {}
    return {"HOROVOD_GLOO_IFACE": interfaces[0], "NCCL_SOCKET_IFNAME": ",".join(interfaces)}


def requested_hosts(namespace: argparse.Namespace) -> list[hosts.Host]:
    """Return the hosts from -H or the host file, or an empty list if neither is given.

    Raises LaunchError if they are invalid.
    """
    if namespace.hosts is not None:
        return hosts.parse_hosts(namespace.hosts)
    if namespace.hostfile is not None:
        return read_hostfile(namespace.hostfile)
    return []


def chosen_hosts(namespace: argparse.Namespace, environ: Mapping[str, str], log: bool = True) -> list[hosts.Host]:
    """Return the hosts that the user selected, or else the hosts that the training service assigned.

    Args:
        namespace: Values of the flags.
        environ: The launcher's environment variables.
        log: Whether to print the hosts on stderr.

    Returns:
        The hosts. An empty list means this machine, or hosts that a discovery script or jsrun finds later.

    Raises:
        LaunchError: If the hosts or the variables of the training service are invalid.
    """
    given = requested_hosts(namespace)
    if given or namespace.host_discovery_script or namespace.jsrun:
        return given
    return hosts_of_service(namespace.num_proc or 1, environ, log)


def machines_of_service(environ: Mapping[str, str]) -> allocations.Machines | None:
    """Return the machines that SageMaker or Vertex AI lists in this container, or None if there are fewer than two.

    Raises:
        LaunchError: If the list of machines is invalid.
    """
    try:
        config = Path(allocations.SAGEMAKER_FILE).read_text(encoding="utf-8")
    except OSError:
        config = None
    return allocations.machines(environ, config)


def hosts_of_service(size: int, environ: Mapping[str, str], log: bool = True) -> list[hosts.Host]:
    """Return the hosts that SageMaker or Vertex AI assigned to this job.

    Args:
        size: Number of processes of the job.
        environ: The launcher's environment variables.
        log: True to print the hosts on stderr.

    Returns:
        The hosts. The list is empty outside these services, and for a job on one machine.

    Raises:
        LaunchError: If the list of machines is invalid.
    """
    machines = machines_of_service(environ)
    if machines is None:
        return []
    found = machines.hosts(size)
    # The host names of Vertex AI are resolved through a proxy, so use localhost for this machine.
    if not hosts.is_local(machines.here):
        found[0] = hosts.Host("localhost", found[0].slots)
    if log:
        listed = ",".join(f"{host.name}:{host.slots}" for host in found)
        print(f"horovodrun: {machines.service} has given this job {listed}; -H names others", file=sys.stderr)
    return found


def read_hostfile(path: str) -> list[hosts.Host]:
    """Read a host file. Raises LaunchError with the path and line number if the file is invalid."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"--hostfile {path}: cannot be read: {error}") from None
    return hosts.parse_hostfile(text, path)


def check_affinity(cores: Sequence[int], slots: Sequence[Slot]) -> None:
    """Raise LaunchError unless `cores` contains one core, or at least as many cores as local ranks."""
    needed = max((slot.local_size for slot in slots), default=1)
    if 1 < len(cores) < needed:
        raise LaunchError(
            f"--thread-affinity (HOROVOD_THREAD_AFFINITY) must be one core or one per local rank, got {len(cores)} "
            f"({','.join(map(str, cores))}) for {needed} processes on a host"
        )
