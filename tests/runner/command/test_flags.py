"""The command line is stable: flags, variables of keys, defaults, and the text of --help."""

import pytest

from horovod.runner.command import cli, flags
from horovod.runner.command.flags import FLAGS, GROUPS

# Frozen: (names, metavar, number of values, variable without HOROVOD_, at most one of). Users have these
# flags in their scripts, which a changed line would break. Each new flag gets a line.
# fmt: off
FROZEN = [
    ('-v --version', '', 0, '', ''),
    ('--help-all', '', 0, '', ''),
    ('-cb --check-build', '', 0, '', ''),
    ('-np -n --num-proc', 'N', 1, '', ''),
    ('--auto', '', 0, '', ''),
    ('--benchmark', '', 0, '', ''),
    ('--completion', 'SHELL', 1, '', ''),
    ('--doctor', '', 0, '', ''),
    ('--explain', 'PID|DIR', 1, '', ''),
    ('--gloo', '', 0, '', 'controller'),
    ('--mpi', '', 0, '', 'controller'),
    ('--jsrun', '', 0, '', 'controller'),
    ('--start-timeout', 'F', 1, 'START_TIMEOUT', ''),
    ('--grace-seconds', 'F', 1, 'GRACE_SECONDS', ''),
    ('--config-file', 'FILE', 1, '', ''),
    ('-H --hosts', 'h:n,...', 1, '', 'hosts'),
    ('-hostfile --hostfile', 'FILE', 1, '', 'hosts'),
    ('--host-discovery-script', 'FILE', 1, '', 'hosts'),
    ('--network-interfaces', 'a,b', 1, '', 'interfaces'),
    ('--network-interface', 'a', 1, '', 'interfaces'),
    ('-p --ssh-port', 'N', 1, '', ''),
    ('-i --ssh-identity-file', 'FILE', 1, '', ''),
    ('--disable-cache', '', 0, '', ''),
    ('--remote-python', 'PATH', 1, 'REMOTE_PYTHON', ''),
    ('--env-allow', 'PATTERN,...', 1, 'ENV_ALLOW', ''),
    ('--env-deny', 'PATTERN,...', 1, 'ENV_DENY', ''),
    ('--torch-distributed-env', '', 0, 'TORCH_DISTRIBUTED_ENV', ''),
    ('--torch-distributed-port', 'N', 1, 'TORCH_DISTRIBUTED_PORT', ''),
    ('--output-filename', 'DIR', 1, '', ''),
    ('-prefix-timestamp --prefix-output-with-timestamp', '', 0, '', ''),
    ('--prefix-output-with-host', '', 0, '', ''),
    ('--collapse-output', '', 0, '', ''),
    ('--verbose', '', 0, '', ''),
    ('--debug-rank', 'N', 1, 'DEBUG_RANK', ''),
    ('--fusion-threshold-mb', 'N', 1, 'FUSION_THRESHOLD', ''),
    ('--cycle-time-ms', 'F', 1, 'CYCLE_TIME', ''),
    ('--cache-capacity', 'N', 1, 'CACHE_CAPACITY', ''),
    ('--hierarchical-allreduce', '', 0, 'HIERARCHICAL_ALLREDUCE', ''),
    ('--hierarchical-allgather', '', 0, 'HIERARCHICAL_ALLGATHER', ''),
    ('--torus-allreduce', '', 0, 'TORUS_ALLREDUCE', ''),
    ('--autotune', '', 0, 'AUTOTUNE', ''),
    ('--autotune-log-file', 'FILE', 1, 'AUTOTUNE_LOG', ''),
    ('--autotune-warmup-samples', 'N', 1, 'AUTOTUNE_WARMUP_SAMPLES', ''),
    ('--autotune-steps-per-sample', 'N', 1, 'AUTOTUNE_STEPS_PER_SAMPLE', ''),
    ('--autotune-bayes-opt-max-samples', 'N', 1, 'AUTOTUNE_BAYES_OPT_MAX_SAMPLES', ''),
    ('--autotune-gaussian-process-noise', 'F', 1, 'AUTOTUNE_GAUSSIAN_PROCESS_NOISE', ''),
    ('--autotune-reuse', '', 0, 'AUTOTUNE_REUSE', ''),
    ('--autotune-show', '', 0, '', ''),
    ('--timeline-filename', 'FILE', 1, 'TIMELINE', ''),
    ('--timeline-mark-cycles', '', 0, 'TIMELINE_MARK_CYCLES', ''),
    ('--profile', 'FILE', 1, 'PROFILE', ''),
    ('--stats-file', 'FILE', 1, 'STATS_FILE', ''),
    ('--metrics-port', 'N', 1, 'METRICS_PORT', ''),
    ('--metrics-address', 'ADDR', 1, 'METRICS_ADDRESS', ''),
    ('--dashboard', '', 0, 'DASHBOARD', ''),
    ('--dashboard-port', 'N', 1, 'DASHBOARD_PORT', ''),
    ('--timeline-merge', '', 0, 'TIMELINE_MERGE', ''),
    ('--timeline-steps', 'FIRST:END', 1, 'TIMELINE_STEPS', ''),
    ('--timeline-last', 'F', 1, 'TIMELINE_LAST', ''),
    ('--no-stall-check', '', 0, 'STALL_CHECK_DISABLE', 'stall'),
    ('--stall-check', '', 0, 'STALL_CHECK_DISABLE', 'stall'),
    ('--stall-check-warning-time-seconds', 'F', 1, 'STALL_CHECK_TIME_SECONDS', ''),
    ('--stall-check-shutdown-time-seconds', 'F', 1, 'STALL_SHUTDOWN_TIME_SECONDS', ''),
    ('--report-dir', 'DIR', 1, 'REPORT_DIR', ''),
    ('--min-np --min-num-proc', 'N', 1, '', ''),
    ('--max-np --max-num-proc', 'N', 1, '', ''),
    ('--slots-per-host', 'N', 1, '', ''),
    ('--elastic-timeout', 'F', 1, 'ELASTIC_TIMEOUT', ''),
    ('--reset-limit', 'N', 1, '', ''),
    ('--blacklist-cooldown-range', 'N', 2, '', ''),
    ('--resume', '', 0, 'RESUME', ''),
    ('--chaos', '"..."', 1, 'CHAOS', ''),
    ('--chaos-report', '', 0, '', ''),
    ('--gpus-per-worker', 'N', 1, 'GPUS_PER_WORKER', ''),
    ('--gpu-affinity', '', 0, 'GPU_AFFINITY', ''),
    ('--mpi-threads-disable', '', 0, 'MPI_THREADS_DISABLE', ''),
    ('--mpi-args', '"..."', 1, '', ''),
    ('--binding-args', '"..."', 1, '', ''),
    ('--tcp', '', 0, 'NCCL_IB_DISABLE', ''),
    ('--num-nccl-streams', 'N', 1, 'NUM_NCCL_STREAMS', ''),
    ('--thread-affinity', 'N[,N...]', 1, 'THREAD_AFFINITY', ''),
    ('--gloo-timeout-seconds', 'F', 1, 'GLOO_TIMEOUT_SECONDS', ''),
    ('--log-level', 'LEVEL', 1, 'LOG_LEVEL', ''),
    ('--log-with-timestamp', '', 0, 'LOG_HIDE_TIME', 'log time'),
    ('--log-without-timestamp', '', 0, 'LOG_HIDE_TIME', 'log time'),
    ('--no-log-hide-timestamp', '', 0, 'LOG_HIDE_TIME', 'log time'),
    ('--log-hide-timestamp', '', 0, 'LOG_HIDE_TIME', 'log time'),
    ('--lr-scale', 'HOW', 1, '', ''),
]
# fmt: on


NEW_FLAG = """
A flag that is added or changed needs, beside its row in src/horovod/runner/command/flags.py:
  - a line in FROZEN: {missing}
  - if it sets a variable that is new: a row in src/horovod/common/contract/settings.py, and
    python -m horovod.common.contract.settings > docs/settings.md
  - a sentence in docs/horovodrun.md and in CHANGELOG.md
  - an argument of horovod.run (src/horovod/runner/function) and of jobs on Kubernetes
    (src/horovod/runner/kubernetes/flags.py), if it makes sense there
Lines of FROZEN that fit no flag any more, which breaks users' scripts: {gone}
"""


def test_the_flags_are_frozen():
    rows = [
        (
            " ".join(flag.names),
            flag.value.metavar if flag.value else "",
            flag.nargs if flag.value else 0,
            (flag.variable or "").removeprefix("HOROVOD_"),
            flag.exclusive or "",
        )
        for flag in FLAGS
    ]
    missing, removed = [row for row in rows if row not in FROZEN], [row for row in FROZEN if row not in rows]
    assert not missing + removed, NEW_FLAG.format(missing=missing, gone=removed)


def test_flags_parsed_by_argparse():
    parser = cli.make_parser()
    actions = {name: action for action in parser._actions for name in action.option_strings}
    for names, metavar, count, _, _ in FROZEN:
        dest = max(names.split(), key=len).lstrip("-").replace("-", "_")
        for name in names.split():
            action = actions.pop(name)
            assert (action.dest, action.default, action.nargs) == (dest, None, {0: 0, 1: None}.get(count, count))
            assert (action.type is None) == (metavar == "")
    assert {"-h", "--help"} | {f"--no-{name[2:]}" for flag in FLAGS if flag.no for name in flag.names} <= set(actions)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"HOROVOD_CYCLE_TIME": "-1"}, "HOROVOD_CYCLE_TIME must be a number from 0 to 60000, got '-1'"),
        ({"HOROVOD_AUTOTUNE": "on"}, "HOROVOD_AUTOTUNE must be 0 or 1.*, got 'on'"),
        ({"HOROVOD_LOG_LEVEL": "LOUD"}, "HOROVOD_LOG_LEVEL must be trace, debug.*, got 'LOUD'"),
        ({"HOROVOD_THREAD_AFFINITY": "0,1"}, r"HOROVOD_THREAD_AFFINITY\) must be .*, got 2 \(0,1\) for 3 processes"),
        ({"HOROVOD_RING_BYTES": "5000"}, "HOROVOD_RING_BYTES must be a power of two, got 5000"),
    ],
)
def test_a_wrong_variable_is_named_before_anything_starts(environ, named):
    namespace, command = cli.parse(["-np", "3", "x"])
    with pytest.raises(ValueError, match=named):
        cli.settings(namespace, command, environ)


# --help


@pytest.mark.parametrize("width", [60, 80, 110, 300])
def test_help_fits_the_width_and_is_complete(width):
    text = flags.help_text(width, everything=True)
    longest = max(text.splitlines(), key=len)
    assert len(longest) <= min(width, 110) or longest.strip() in dict(flags.EXAMPLES), longest
    joined = " ".join(text.split())
    for flag in FLAGS:
        assert flags.flag_names(flag) in joined
        assert " ".join(flags.flag_description(flag).split()) in joined
    assert [line[:-1] for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        *GROUPS,
        "examples",
    ]


@pytest.mark.parametrize("command", [command for command, _ in flags.EXAMPLES if command.startswith("horovodrun")])
def test_the_examples_of_help_are_understood(command):
    namespace, rest = cli.parse(command.split()[1:])
    assert namespace.num_proc
    assert rest == (["python", "train.py"] if "train.py" in command else [])
