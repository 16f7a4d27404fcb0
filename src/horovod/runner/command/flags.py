"""Table of all `horovodrun` flags. The table defines the parser and the help text.

A flag for a setting gets its variable, type, range and help text from the table of settings
(`horovod.common.contract.settings`).
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from horovod.common.contract.setting import Setting
from horovod.common.contract.settings import BY_NAME


@dataclass(frozen=True)
class Value:
    """Type of a flag's value.

    Attributes:
        metavar: Name of the value in help texts.
        accepted: Description of the valid values, for messages.
        parse: Function that converts text to a value or raises ValueError.
        choices: All valid values, if there are only a few.
        completes: Kind of shell completion: "file", "directory", "host", "interface" or empty.
    """

    metavar: str
    accepted: str
    parse: Callable[[str], object]
    choices: tuple[str, ...] = ()
    completes: str = ""


@dataclass(frozen=True)
class Flag:
    """Command-line flag of horovodrun.

    Attributes:
        names: All spellings of the flag.
        group: Heading in the help text.
        help: Description in the help text.
        value: Type of the value, or None for a switch.
        variable: Environment variable that passes the value to workers, or None.
        constant: Value of this variable if a switch is given.
        no: True if the switch also has the form --no-..., whose value is 0.
        nargs: Number of values.
        repeat: True if the flag can be given several times.
        exclusive: Name of a group of flags of which only one can be given, or None.
        needs: Flag or its variable without which this flag has no effect, or None.
        ignored: True if horovodrun accepts the flag but ignores it. Only --help-all shows such flags.
    """

    names: tuple[str, ...]
    group: str
    help: str
    value: Value | None = None
    variable: str | None = None
    constant: str = "1"
    no: bool = False
    nargs: int = 1
    repeat: bool = False
    exclusive: str | None = None
    needs: str | None = None
    ignored: bool = False

    @property
    def dest(self) -> str:
        """Name of the flag's value in the namespace, derived from the flag's longest spelling."""
        return max(self.names, key=len).lstrip("-").replace("-", "_")


def _integer(minimum: int, maximum: int | None = None) -> Value:
    def parse(text: str) -> int:
        value = int(text)
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError
        return value

    most = "" if maximum is None else f" and at most {maximum}"
    return Value("N", f"an integer of at least {minimum}{most}", parse)


_COMPLETES = {"FILE": "file", "PATH": "file", "DIR": "directory"}


def _text(metavar: str, completes: str = "") -> Value:
    def parse(text: str) -> str:
        if not text:
            raise ValueError
        return text

    return Value(metavar, "text that is not empty", parse, completes=completes or _COMPLETES.get(metavar, ""))


def _choice(metavar: str, *choices: str) -> Value:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    return Value(metavar, f"one of {', '.join(choices)}", parse, choices)


def _value(setting: Setting) -> Value:
    """Return the flag type for a setting. The flag's validated text becomes the environment variable's value."""

    def parse(text: str) -> str:
        if not text.strip():  # Reject an empty value, because an empty variable would silently select the default.
            raise ValueError
        setting.parse(text)
        return text.strip()

    metavars = {
        "int": "N",
        "float": "F",
        "choice": "LEVEL",
        "ints": "N[,N...]",
        "text": "FILE",
        "patterns": "PATTERN,...",
        "steps": "FIRST:END",
    }
    metavar = metavars[setting.kind]
    choices = tuple(choice.upper() for choice in setting.choices)
    return Value(metavar, setting.accepted(), parse, choices, _COMPLETES.get(metavar, ""))


def _mebibytes(setting: Setting) -> Value:
    def parse(text: str) -> str:
        size = int(text) << 20
        setting.parse(str(size))
        return str(size)

    high = int(setting.high or 0) >> 20
    return Value("N", f"an integer from 0 to {high}", parse)


def _shown(setting: Setting) -> str:
    return f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)


def _setting(
    variable: str,
    group: str,
    *,
    value: Value | None = None,
    default: str = "",
    help: str = "",
    exclusive: str | None = None,
    needs: str | None = None,
) -> Flag:
    """Create a command-line flag for a setting in the settings table."""
    setting = BY_NAME[variable]
    switch = setting.kind == "bool"
    shown = default or ("" if switch or setting.default in (None, "") else _shown(setting))
    return Flag(
        names=(setting.flag,),
        group=group,
        help=(help or setting.help) + (f" (default {shown})" if shown else ""),
        value=None if switch else value or _value(setting),
        variable=variable,
        no=switch and exclusive is None,
        exclusive=exclusive,
        needs=needs,
        ignored=bool(setting.ignored),
    )


JOB, HOSTS, ENVIRONMENT, OUTPUT = "job", "hosts and network", "environment", "output"
TUNING, AUTOTUNE, TIMELINE, STATISTICS = "tuning", "autotune", "timeline", "figures about steps"
STALL, ELASTIC, LIBRARIES, LOGGING = "stall check", "elastic", "libraries", "logging"
GROUPS = (JOB, HOSTS, ENVIRONMENT, OUTPUT, TUNING, AUTOTUNE, TIMELINE, STATISTICS, STALL, ELASTIC, LIBRARIES, LOGGING)

_COUNT = _integer(1)
_DISABLE = "HOROVOD_STALL_CHECK_DISABLE"
_HIDE = "HOROVOD_LOG_HIDE_TIME"

# fmt: off
FLAGS: tuple[Flag, ...] = (
    Flag(("-v", "--version"), JOB, "print the version and exit"),
    Flag(("--help-all",), JOB, "show this help with the flags that have no effect yet, and exit"),
    Flag(("-cb", "--check-build"), JOB, "print which frameworks, controllers and operations are available, and exit"),
    Flag(("-np", "-n", "--num-proc"), JOB, "number of processes", _COUNT),
    Flag(("--benchmark",), JOB, "measure the collectives on these processes instead of running a command; options of "
         "the benchmark come after --, as in -np 2 --benchmark -- --quick (-- --help lists them)"),
    Flag(("--auto",), JOB, "train a PyTorch or Keras script that was written for one process on all processes, as in "
         "-np 4 --auto python train.py (docs/auto.md)"),
    Flag(("--lr-scale",), JOB, "with --auto: multiply learning rates by 1, by the number of processes, or by its "
         "square root (default none)", _choice("HOW", "none", "linear", "sqrt")),
    Flag(("--completion",), JOB, "print a script that completes this command line in a shell, and exit",
         _choice("SHELL", "bash", "zsh", "fish")),
    Flag(("--doctor",), JOB, "check this machine and the hosts of the job, and exit"),
    Flag(("--explain",), JOB, "say why a running job waits, and exit; it is found by the number of one of its "
         "processes on this host, or by the folder of its reports or the one that it runs in",
         _text("PID|DIR", "directory")),
    Flag(("--gloo",), JOB, "use the built-in controller and launcher (the default)", exclusive="controller"),
    Flag(("--mpi",), JOB, "start the processes with mpirun or mpiexec", exclusive="controller"),
    Flag(("--jsrun",), JOB, "start the processes with jsrun, in an LSF job (the default there)",
         exclusive="controller"),
    _setting("HOROVOD_START_TIMEOUT", JOB),
    _setting("HOROVOD_GRACE_SECONDS", JOB),
    Flag(("--config-file",), JOB, "YAML file with settings; flags override it wherever they stand",
         _text("FILE")),

    Flag(("-H", "--hosts"), HOSTS, "hosts and slots, as in host1:2,host2:4", _text("h:n,...", "host"),
         exclusive="hosts"),
    Flag(("-hostfile", "--hostfile"), HOSTS, "file with a line 'name slots=N' per host", _text("FILE"),
         exclusive="hosts"),
    Flag(("--host-discovery-script",), HOSTS, "program that prints the available hosts; makes the job elastic",
         _text("FILE"), exclusive="hosts"),
    Flag(("--network-interfaces",), HOSTS, "network interfaces to use, as in eth0,eth1", _text("a,b", "interface"),
         exclusive="interfaces"),
    Flag(("--network-interface",), HOSTS, "a network interface to use", _text("a", "interface"), repeat=True,
         exclusive="interfaces"),
    Flag(("-p", "--ssh-port"), HOSTS, "port of ssh on other hosts", _integer(1, 65535)),
    Flag(("-i", "--ssh-identity-file"), HOSTS, "private key for ssh to other hosts", _text("FILE")),
    Flag(("--disable-cache",), HOSTS, "accepted and ignored: checks of hosts are not cached"),

    _setting("HOROVOD_REMOTE_PYTHON", HOSTS, value=_text("PATH")),
    _setting("HOROVOD_ENV_ALLOW", ENVIRONMENT),
    _setting("HOROVOD_ENV_DENY", ENVIRONMENT),
    _setting("HOROVOD_TORCH_DISTRIBUTED_ENV", ENVIRONMENT, default="on", help="set the variables of torch.distributed "
             "(RANK, WORLD_SIZE, MASTER_ADDR, ...) in the workers"),
    _setting("HOROVOD_TORCH_DISTRIBUTED_PORT", ENVIRONMENT, help="MASTER_PORT of torch.distributed, on rank 0's host",
             default="one that is free"),

    Flag(("--output-filename",), OUTPUT, "also write DIR/rank.N/stdout and stderr", _text("DIR")),
    Flag(("-prefix-timestamp", "--prefix-output-with-timestamp"), OUTPUT, "timestamp before each line of output"),
    Flag(("--prefix-output-with-host",), OUTPUT, "the host's name in the prefix of each line, too, as in "
         "[3@host2]<stdout>:"),
    Flag(("--collapse-output",), OUTPUT, "show a line once that several ranks write within half a second, as in "
         "[0-3]<stdout>:line; the files of --output-filename keep every line"),
    Flag(("--verbose",), OUTPUT, "show what is started"),
    _setting("HOROVOD_DEBUG_RANK", OUTPUT, help="rank that gets this terminal, for pdb and breakpoint(), while the "
             "others wait as long as it takes", default="none"),

    _setting("HOROVOD_FUSION_THRESHOLD", TUNING, value=_mebibytes(BY_NAME["HOROVOD_FUSION_THRESHOLD"]),
             help="MiB of tensors reduced together; 0: each alone", default="128"),
    _setting("HOROVOD_CYCLE_TIME", TUNING),
    _setting("HOROVOD_CACHE_CAPACITY", TUNING),
    _setting("HOROVOD_HIERARCHICAL_ALLREDUCE", TUNING),
    _setting("HOROVOD_HIERARCHICAL_ALLGATHER", TUNING),
    _setting("HOROVOD_TORUS_ALLREDUCE", TUNING),

    _setting("HOROVOD_AUTOTUNE", AUTOTUNE),
    _setting("HOROVOD_AUTOTUNE_LOG", AUTOTUNE, needs="--autotune"),
    _setting("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", AUTOTUNE, needs="--autotune"),
    _setting("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", AUTOTUNE, needs="--autotune"),
    _setting("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", AUTOTUNE, needs="--autotune"),
    _setting("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", AUTOTUNE, needs="--autotune"),
    _setting("HOROVOD_AUTOTUNE_REUSE", AUTOTUNE),
    Flag(("--autotune-show",), AUTOTUNE, "print the stored results of --autotune, and exit"),

    _setting("HOROVOD_TIMELINE", TIMELINE),
    _setting("HOROVOD_TIMELINE_MARK_CYCLES", TIMELINE, needs="--timeline-filename"),
    _setting("HOROVOD_TIMELINE_MERGE", TIMELINE, needs="--timeline-filename"),
    _setting("HOROVOD_TIMELINE_STEPS", TIMELINE, needs="--timeline-filename"),
    _setting("HOROVOD_TIMELINE_LAST", TIMELINE, needs="--timeline-filename"),

    _setting("HOROVOD_STATS_FILE", STATISTICS),
    _setting("HOROVOD_PROFILE", STATISTICS),
    _setting("HOROVOD_METRICS_PORT", STATISTICS, default="none"),
    _setting("HOROVOD_METRICS_ADDRESS", STATISTICS, value=_text("ADDR"), needs="--metrics-port"),
    _setting("HOROVOD_DASHBOARD", STATISTICS, help="serve a page that shows the job while it runs, on loopback, and "
             "print its address"),
    _setting("HOROVOD_DASHBOARD_PORT", STATISTICS, help="port of that page", default="one that is free",
             needs="--dashboard"),

    _setting(_DISABLE, STALL, exclusive="stall"),
    Flag(("--stall-check",), STALL, "warn about tensors that wait for some ranks (the default)", None, _DISABLE, "0",
         exclusive="stall"),
    _setting("HOROVOD_STALL_CHECK_TIME_SECONDS", STALL),
    _setting("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", STALL),
    _setting("HOROVOD_REPORT_DIR", STALL, value=_text("DIR"), default="horovod-UID in TMPDIR, or /tmp",
             help="folder for reports about hangs and flight recordings; each job creates a subfolder"),

    Flag(("--min-np", "--min-num-proc"), ELASTIC, "fewest processes to go on with (default: as at the "
         "start); makes the job elastic", _COUNT),
    Flag(("--max-np", "--max-num-proc"), ELASTIC, "most processes to use (default: as many as there are slots)",
         _COUNT),
    Flag(("--slots-per-host",), ELASTIC, "slots of discovered hosts that do not tell theirs", _COUNT),
    _setting("HOROVOD_ELASTIC_TIMEOUT", ELASTIC),
    _setting("HOROVOD_RESUME", ELASTIC, help="go on from the last checkpoint of an earlier job, where the program "
             "keeps some (hvd.elastic.Checkpoint)"),
    _setting("HOROVOD_CHAOS", ELASTIC, value=_text('"..."'), default="none"),
    Flag(("--chaos-report",), ELASTIC, "say at the end what came of those faults, and how long it took"),
    Flag(("--reset-limit",), ELASTIC, "how often the ranks may change before the job fails (default: any number)",
         _integer(0)),
    Flag(("--blacklist-cooldown-range",), ELASTIC, "seconds, at first and at most, until a host on which a worker has "
         "failed may get new ones (default: never)", _integer(1, 3600),
         nargs=2),

    _setting("HOROVOD_MPI_THREADS_DISABLE", LIBRARIES),
    Flag(("--mpi-args",), LIBRARIES, "arguments added to mpirun", _text('"..."')),
    Flag(("--binding-args",), LIBRARIES, "binding arguments for mpirun, in place of the default ones", _text('"..."')),
    Flag(("--tcp",), LIBRARIES, "use TCP, not InfiniBand", None, "NCCL_IB_DISABLE"),
    _setting("HOROVOD_GPUS_PER_WORKER", LIBRARIES, default="none: all workers see all GPUs",
             help="GPUs of its host that each worker gets for itself, in CUDA_VISIBLE_DEVICES"),
    _setting("HOROVOD_GPU_AFFINITY", LIBRARIES),
    _setting("HOROVOD_NUM_NCCL_STREAMS", LIBRARIES),
    _setting("HOROVOD_THREAD_AFFINITY", LIBRARIES),
    _setting("HOROVOD_GLOO_TIMEOUT_SECONDS", LIBRARIES),

    _setting("HOROVOD_LOG_LEVEL", LOGGING),
    Flag(("--log-with-timestamp",), LOGGING, "log lines with time (the default)", None, _HIDE, "0",
         exclusive="log time"),
    _setting(_HIDE, LOGGING, exclusive="log time"),
    Flag(("--no-log-hide-timestamp",), LOGGING, "deprecated: --log-with-timestamp", None, _HIDE, "0",
         exclusive="log time"),
    Flag(("--log-hide-timestamp",), LOGGING, "deprecated: --log-without-timestamp", None, _HIDE,
         exclusive="log time"),
)
# fmt: on


# Help text of `horovodrun --help`. argparse's own layout differs between Python versions.

USAGE = "horovodrun -np N [flags] [NAME=value ...] command [arguments]"
_ABOUT = "Start N copies of a command that work together as one Horovod job."
_ORDER = (
    "Flags come before the command; everything after its first word belongs to it. Long flags may be shortened as long "
    "as it is clear which one is meant. A flag overrides the key of the YAML file (--config-file), which overrides the "
    "environment variable (docs/settings.md lists all three)."
)
EXAMPLES = (
    ("horovodrun -np 4 python train.py", "four processes on this machine"),
    ("horovodrun -np 8 -H server1:4,server2:4 python train.py", "on two hosts, four each"),
    ("horovodrun -np 16 --hostfile hosts python train.py", "hosts from lines 'server1 slots=4'"),
    ("horovodrun -np 2 --log-level debug --output-filename logs python train.py", "a log per rank in logs/"),
    ("horovodrun -np 2 --config-file horovod.yaml python train.py", "settings from a file"),
    ("horovodrun -np 2 --benchmark", "measure the collectives"),
    ("source <(horovodrun --completion bash)", "completion in this shell"),
)
_INDENT = 2
# Column of the help text at which the descriptions of flags start
_COLUMN = 34
_MAX_WIDTH = 110  # Maximum width of the help text, because longer lines are hard to read


def help_text(width: int | None = None, everything: bool = False) -> str:
    """Return the text of `horovodrun --help`.

    Args:
        width: Width in columns. The default is the width of the terminal.
        everything: True to include flags that horovodrun ignores.
    """
    width = max(60, min(width or shutil.get_terminal_size((100, 24)).columns, _MAX_WIDTH))
    column = min(_COLUMN, width // 2)
    parts = [f"usage: {USAGE}", textwrap.fill(_ABOUT, width), textwrap.fill(_ORDER, width)]
    for group in GROUPS:
        shown = [flag for flag in FLAGS if flag.group == group and (everything or not flag.ignored)]
        rows = [_row(flag_names(flag), flag_description(flag), width, column) for flag in shown]
        if group == GROUPS[0]:
            rows.insert(0, _row("-h, --help", "show this help and exit", width, column))
        if rows:
            parts.append("\n".join([f"{group}:", *rows]))
    ignored = sum(flag.ignored for flag in FLAGS)
    if ignored and not everything:
        parts.append(textwrap.fill(f"{ignored} more flags have no effect or are not available yet: --help-all", width))
    parts.append("\n".join(["examples:", *_examples()]))
    parts.append(textwrap.fill("`horovodrun kubernetes --help` tells of jobs on a Kubernetes cluster", width))
    return "\n\n".join(parts) + "\n"


def flag_names(flag: Flag) -> str:
    """Return the flag's names and value for the help text, such as `-np, --num-proc N` or `--[no-]autotune`."""
    names = [f"--[no-]{name[2:]}" if flag.no else name for name in flag.names]
    values = [flag.value.metavar] * flag.nargs if flag.value is not None else []
    return " ".join([", ".join(names), *values])


def flag_description(flag: Flag) -> str:
    """Return the flag's description with its choices, and with a note if horovodrun ignores the flag."""
    choices = ", ".join(flag.value.choices) if flag.value is not None else ""
    text = f"{flag.help}: {choices}" if choices else flag.help
    return f"{text} (no effect)" if flag.ignored else text


def _row(names: str, description: str, width: int, column: int) -> str:
    first = " " * _INDENT + names
    rest = " " * column
    wrapper = textwrap.TextWrapper(width, subsequent_indent=rest, break_on_hyphens=False)
    if len(first) + 2 > column:
        wrapper.initial_indent = rest
        return f"{first}\n{wrapper.fill(description)}"
    wrapper.initial_indent = first.ljust(column)
    return wrapper.fill(description)


def _examples() -> Iterator[str]:
    for command, meaning in EXAMPLES:
        yield f"{' ' * _INDENT}{command}"
        yield textwrap.indent(meaning, " " * (_INDENT + 4))
