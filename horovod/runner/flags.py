"""Every flag of horovodrun, in one table: spelling, kind of value, the variable that carries it to the workers, help.

The parser, the variables and the check for features that are not there are all made from this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


@dataclass(frozen=True)
class Value:
    """A kind of value: `parse` returns it or raises ValueError; `accepted` is what the message says then."""

    metavar: str
    accepted: str
    parse: Callable[[str], object]


def _integer(minimum: int) -> Value:
    def parse(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise ValueError
        return value

    return Value("N", f"an integer of at least {minimum}", parse)


def _number(minimum: float, maximum: float = math.inf) -> Value:
    def parse(text: str) -> float:
        value = float(text)
        if not (minimum <= value <= maximum) or math.isinf(value):
            raise ValueError
        return value

    limits = f"from {minimum:g} to {maximum:g}" if maximum < math.inf else f"of at least {minimum:g}"
    return Value("F", f"a number {limits}", parse)


def _cores(text: str) -> str:
    if any(int(core) < 0 for core in text.split(",")):
        raise ValueError
    return text


def _level(text: str) -> str:
    if text.upper() not in LOG_LEVELS:
        raise ValueError
    return text.upper()


def _text(metavar: str) -> Value:
    def parse(text: str) -> str:
        if not text:
            raise ValueError
        return text

    return Value(metavar, "text that is not empty", parse)


COUNT = _integer(1)
SIZE = _integer(0)
SECONDS = _integer(0)
PORT = Value("N", "a port from 1 to 65535", lambda text: int(text) if 1 <= int(text) <= 65535 else int(""))
MEBIBYTES = _integer(0)


@dataclass(frozen=True)
class Flag:
    """One row. `value` None: a switch. `no`: also --no-..., which sets the variable to 0."""

    names: tuple[str, ...]
    group: str
    help: str
    value: Value | None = None
    variable: str | None = None
    no: bool = False
    nargs: int = 1
    repeat: bool = False
    exclusive: str | None = None  # at most one flag of this name may be given
    needs: str | None = None  # without this flag (or its variable) the flag has no effect
    missing: str | None = None  # the feature that is not there yet
    scale: int = 1  # the variable holds the value times this
    constant: str | None = None  # what a switch writes into the variable

    @property
    def dest(self) -> str:
        return max(self.names, key=len).lstrip("-").replace("-", "_")


JOB, HOSTS, OUTPUT = "job", "hosts and network", "output"
TUNING, AUTOTUNE, TIMELINE = "tuning", "autotune", "timeline"
STALL, ELASTIC, LIBRARIES, LOGGING = "stall check", "elastic", "libraries", "logging"
GROUPS = (JOB, HOSTS, OUTPUT, TUNING, AUTOTUNE, TIMELINE, STALL, ELASTIC, LIBRARIES, LOGGING)

_ELASTIC = "elastic jobs"
_MPI = "the MPI launcher"

FLAGS: tuple[Flag, ...] = (
    Flag(("-v", "--version"), JOB, "print the version and end"),
    Flag(("-cb", "--check-build"), JOB, "print which frameworks, controllers and operations are there, and end"),
    Flag(("-np", "--num-proc"), JOB, "number of processes", COUNT),
    Flag(("--gloo",), JOB, "use the built-in controller and launcher (the default)", exclusive="controller"),
    Flag(("--mpi",), JOB, "use MPI", exclusive="controller", missing=_MPI),
    Flag(("--jsrun",), JOB, "use jsrun in an LSF job", exclusive="controller", missing="the jsrun launcher"),
    Flag(("--start-timeout",), JOB, "seconds until all processes must have met", COUNT, "HOROVOD_START_TIMEOUT"),
    Flag(
        ("--config-file",),
        JOB,
        "YAML file with the values of other flags",
        _text("FILE"),
        missing="the configuration file",
    ),
    Flag(("-H", "--hosts"), HOSTS, "hosts and slots, as in host1:2,host2:4", _text("h:n,..."), exclusive="hosts"),
    Flag(
        ("-hostfile", "--hostfile"), HOSTS, "file with a line 'name slots=N' per host", _text("FILE"), exclusive="hosts"
    ),
    Flag(
        ("--host-discovery-script",),
        HOSTS,
        "program that prints the hosts there are now; makes the job elastic",
        _text("FILE"),
        exclusive="hosts",
        missing=_ELASTIC,
    ),
    Flag(
        ("--network-interfaces",),
        HOSTS,
        "network interfaces to use, as in eth0,eth1",
        _text("a,b"),
        exclusive="interfaces",
    ),
    Flag(
        ("--network-interface",), HOSTS, "a network interface to use", _text("a"), repeat=True, exclusive="interfaces"
    ),
    Flag(("-p", "--ssh-port"), HOSTS, "port of ssh on other hosts", PORT),
    Flag(("-i", "--ssh-identity-file"), HOSTS, "private key for ssh to other hosts", _text("FILE")),
    Flag(("--disable-cache",), HOSTS, "repeat the checks of hosts that were checked less than 60 minutes ago"),
    Flag(("--output-filename",), OUTPUT, "also write DIR/rank.N/stdout and stderr", _text("DIR")),
    Flag(("-prefix-timestamp", "--prefix-output-with-timestamp"), OUTPUT, "time before each line of output"),
    Flag(("--verbose",), OUTPUT, "tell what is started"),
    Flag(
        ("--fusion-threshold-mb",),
        TUNING,
        "MiB of tensors to fuse at most; 0: no fusion (128)",
        MEBIBYTES,
        "HOROVOD_FUSION_THRESHOLD",
        scale=1 << 20,
    ),
    Flag(
        ("--cycle-time-ms",),
        TUNING,
        "ms that operations are held at most to batch them (1)",
        _number(0),
        "HOROVOD_CYCLE_TIME",
    ),
    Flag(
        ("--cache-capacity",),
        TUNING,
        "negotiations to remember; 0: none (1024)",
        SIZE,
        "HOROVOD_CACHE_CAPACITY",
    ),
    Flag(
        ("--hierarchical-allreduce",),
        TUNING,
        "reduce inside the hosts first, then between them",
        None,
        "HOROVOD_HIERARCHICAL_ALLREDUCE",
        no=True,
    ),
    Flag(
        ("--hierarchical-allgather",),
        TUNING,
        "gather inside the hosts first, then between them",
        None,
        "HOROVOD_HIERARCHICAL_ALLGATHER",
        no=True,
    ),
    Flag(
        ("--torus-allreduce",),
        TUNING,
        "reduce along the hosts and across them",
        None,
        "HOROVOD_TORUS_ALLREDUCE",
        no=True,
    ),
    Flag(("--autotune",), AUTOTUNE, "search for good values while training", None, "HOROVOD_AUTOTUNE", no=True),
    Flag(
        ("--autotune-log-file",),
        AUTOTUNE,
        "file for what was tried",
        _text("FILE"),
        "HOROVOD_AUTOTUNE_LOG",
        needs="--autotune",
    ),
    Flag(
        ("--autotune-warmup-samples",),
        AUTOTUNE,
        "samples to discard first (3)",
        SIZE,
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        needs="--autotune",
    ),
    Flag(
        ("--autotune-steps-per-sample",),
        AUTOTUNE,
        "steps in a sample (10)",
        COUNT,
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        needs="--autotune",
    ),
    Flag(
        ("--autotune-bayes-opt-max-samples",),
        AUTOTUNE,
        "samples to try at most (20)",
        COUNT,
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        needs="--autotune",
    ),
    Flag(
        ("--autotune-gaussian-process-noise",),
        AUTOTUNE,
        "regularisation of the search, 0 to 1 (0.8)",
        _number(0, 1),
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        needs="--autotune",
    ),
    Flag(("--timeline-filename",), TIMELINE, "write a Chrome trace to FILE", _text("FILE"), "HOROVOD_TIMELINE"),
    Flag(
        ("--timeline-mark-cycles",),
        TIMELINE,
        "mark the engine's cycles in the trace",
        None,
        "HOROVOD_TIMELINE_MARK_CYCLES",
        no=True,
        needs="--timeline-filename",
    ),
    Flag(
        ("--no-stall-check",),
        STALL,
        "no warnings about tensors that wait for some ranks",
        None,
        "HOROVOD_STALL_CHECK_DISABLE",
        exclusive="stall",
    ),
    Flag(
        ("--stall-check",),
        STALL,
        "warn about tensors that wait for some ranks (the default)",
        None,
        "HOROVOD_STALL_CHECK_DISABLE",
        constant="0",
        exclusive="stall",
    ),
    Flag(
        ("--stall-check-warning-time-seconds",),
        STALL,
        "seconds before the warning (60)",
        SECONDS,
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
    ),
    Flag(
        ("--stall-check-shutdown-time-seconds",),
        STALL,
        "seconds before the job fails; 0: never (0)",
        SECONDS,
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    ),
    Flag(("--min-np", "--min-num-proc"), ELASTIC, "processes to go on with at least", COUNT, missing=_ELASTIC),
    Flag(("--max-np", "--max-num-proc"), ELASTIC, "processes to use at most", COUNT, missing=_ELASTIC),
    Flag(("--slots-per-host",), ELASTIC, "slots of discovered hosts that tell none", COUNT, missing=_ELASTIC),
    Flag(("--elastic-timeout",), ELASTIC, "seconds to wait for enough processes (600)", SECONDS, missing=_ELASTIC),
    Flag(("--reset-limit",), ELASTIC, "resets before the job fails", SIZE, missing=_ELASTIC),
    Flag(
        ("--blacklist-cooldown-range",),
        ELASTIC,
        "seconds until a failed host may come back",
        _integer(1),
        nargs=2,
        missing=_ELASTIC,
    ),
    Flag(
        ("--mpi-threads-disable",),
        LIBRARIES,
        "tell MPI that only one thread calls it",
        None,
        "HOROVOD_MPI_THREADS_DISABLE",
        no=True,
    ),
    Flag(("--mpi-args",), LIBRARIES, "arguments added to mpirun", _text('"..."'), missing=_MPI),
    Flag(("--binding-args",), LIBRARIES, "binding arguments of mpirun", _text('"..."'), missing=_MPI),
    Flag(("--tcp",), LIBRARIES, "use TCP, not InfiniBand", None, "NCCL_IB_DISABLE"),
    Flag(
        ("--num-nccl-streams",),
        LIBRARIES,
        "CUDA streams for NCCL (1)",
        COUNT,
        "HOROVOD_NUM_NCCL_STREAMS",
    ),
    Flag(
        ("--thread-affinity",),
        LIBRARIES,
        "core of the engine's thread, or one core per local rank",
        Value("N[,N...]", "a core number or a comma list of them", _cores),
        "HOROVOD_THREAD_AFFINITY",
    ),
    Flag(
        ("--gloo-timeout-seconds",),
        LIBRARIES,
        "seconds until a connection must stand (30)",
        COUNT,
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
    ),
    Flag(
        ("--log-level",),
        LOGGING,
        "least important message shown (WARNING)",
        Value("LEVEL", "one of " + ", ".join(LOG_LEVELS), _level),
        "HOROVOD_LOG_LEVEL",
    ),
    Flag(
        ("--log-with-timestamp",),
        LOGGING,
        "time in log messages (the default)",
        None,
        "HOROVOD_LOG_HIDE_TIME",
        constant="0",
        exclusive="log time",
    ),
    Flag(
        ("--log-without-timestamp",),
        LOGGING,
        "no time in log messages",
        None,
        "HOROVOD_LOG_HIDE_TIME",
        exclusive="log time",
    ),
    Flag(
        ("--no-log-hide-timestamp",),
        LOGGING,
        "deprecated: --log-with-timestamp",
        None,
        "HOROVOD_LOG_HIDE_TIME",
        constant="0",
        exclusive="log time",
    ),
    Flag(
        ("--log-hide-timestamp",),
        LOGGING,
        "deprecated: --log-without-timestamp",
        None,
        "HOROVOD_LOG_HIDE_TIME",
        exclusive="log time",
    ),
)
