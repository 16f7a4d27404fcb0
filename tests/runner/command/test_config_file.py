"""--config-file: every key, precedence, and errors for invalid files."""

import warnings

import pytest

from horovod.runner.command import cli, config_file
from tests.runner.launching import ROOT

# Frozen, because users have these keys in their files. Changing this table breaks their jobs.
KEYS = {
    "params.fusion_threshold_mb": ("32", {"HOROVOD_FUSION_THRESHOLD": "33554432"}),
    "params.cycle_time_ms": ("2.5", {"HOROVOD_CYCLE_TIME": "2.5"}),
    "params.cache_capacity": ("2048", {"HOROVOD_CACHE_CAPACITY": "2048"}),
    "params.hierarchical_allreduce": ("true", {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}),
    "params.hierarchical_allgather": ("false", {"HOROVOD_HIERARCHICAL_ALLGATHER": "0"}),
    "params.torus_allreduce": ("yes", {"HOROVOD_TORUS_ALLREDUCE": "1"}),
    "params.torch_distributed_env": ("no", {"HOROVOD_TORCH_DISTRIBUTED_ENV": "0"}),
    "params.torch_distributed_port": ("29500", {"HOROVOD_TORCH_DISTRIBUTED_PORT": "29500"}),
    "params.gpus_per_worker": ("2", {"HOROVOD_GPUS_PER_WORKER": "2"}),
    "params.gpu_affinity": ("yes", {"HOROVOD_GPU_AFFINITY": "1"}),
    "autotune.enabled": ("true", {"HOROVOD_AUTOTUNE": "1"}),
    "autotune.log_file": ("tune.csv", {"HOROVOD_AUTOTUNE_LOG": "tune.csv"}),
    "autotune.warmup_samples": ("4", {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "4"}),
    "autotune.steps_per_sample": ("5", {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "5"}),
    "autotune.bayes_opt_max_samples": ("6", {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6"}),
    "autotune.reuse": ("true", {"HOROVOD_AUTOTUNE_REUSE": "1"}),
    "autotune.gaussian_process_noise": ("0.5", {"HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.5"}),
    "timeline.filename": ("t.json", {"HOROVOD_TIMELINE": "t.json"}),
    "timeline.mark_cycles": ("true", {"HOROVOD_TIMELINE_MARK_CYCLES": "1"}),
    "timeline.merge": ("true", {"HOROVOD_TIMELINE_MERGE": "1"}),
    "timeline.steps": ("100:200", {"HOROVOD_TIMELINE_STEPS": "100:200"}),
    "timeline.last": ("10", {"HOROVOD_TIMELINE_LAST": "10"}),
    "stall_check.enabled": ("false", {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
    "stall_check.warning_time_seconds": ("5", {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}),
    "stall_check.shutdown_time_seconds": ("9", {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9"}),
    "library_options.mpi_threads_disable": ("true", {"HOROVOD_MPI_THREADS_DISABLE": "1"}),
    "library_options.num_nccl_streams": ("2", {"HOROVOD_NUM_NCCL_STREAMS": "2"}),
    "library_options.thread_affinity": ("[0, 1]", {"HOROVOD_THREAD_AFFINITY": "0,1"}),
    "library_options.gloo_timeout_seconds": ("7", {"HOROVOD_GLOO_TIMEOUT_SECONDS": "7"}),
    "logging.level": ("DEBUG", {"HOROVOD_LOG_LEVEL": "DEBUG"}),
    "logging.with_timestamp": ("false", {"HOROVOD_LOG_HIDE_TIME": "1"}),
    "environment.allow": ("[AWS_*, WANDB_*]", {"HOROVOD_ENV_ALLOW": "AWS_*,WANDB_*"}),
    "environment.deny": ("TOKEN", {"HOROVOD_ENV_DENY": "TOKEN"}),
}

pytestmark = pytest.mark.filterwarnings("ignore:.*(not part of this version yet|has no effect)")


def text_of(values):
    """Return the text of a file with these keys and values, by section."""
    sections = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, []).append(f"  {name}: {value}\n")
    return "".join(f"{section}:\n{''.join(lines)}" for section, lines in sections.items())


@pytest.fixture
def read(tmp_path):
    def call(text, *arguments, environ=None, before=()):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        argv = [*before, "-np", "2", "--config-file", str(path), *arguments, "python"]
        namespace, command = cli.parse(argv)
        return cli.settings(namespace, command, environ or {})

    return call


def test_the_keys_are_frozen():
    assert set(config_file.KEYS) == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_becomes_its_variable(key):
    value, variables = KEYS[key]
    assert config_file.parse(text_of({key: value}), "f").variables == variables


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("params:\n  # cycle_time_ms: 3\n", {}),
        ("params: {fusion_threshold_mb: 0}\n", {"HOROVOD_FUSION_THRESHOLD": "0"}),
        ("params: {cycle_time_ms: '3'}\n", {"HOROVOD_CYCLE_TIME": "3"}),
        ("params: {cycle_time_ms: 1e1}\n", {"HOROVOD_CYCLE_TIME": "1e1"}),
        ("stall_check: {enabled: true}\n", {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        ("stall_check: {enabled: 1}\n", {"HOROVOD_STALL_CHECK_DISABLE": "0"}),
        ("logging: {with_timestamp: on}\n", {"HOROVOD_LOG_HIDE_TIME": "0"}),
        ("library_options: {thread_affinity: 3}\n", {"HOROVOD_THREAD_AFFINITY": "3"}),
        ("library_options:\n  thread_affinity: 0,1\n", {"HOROVOD_THREAD_AFFINITY": "0,1"}),
        ("params: &p\n  cycle_time_ms: 3\n", {"HOROVOD_CYCLE_TIME": "3"}),
    ],
)
def test_forms(text, variables):
    assert config_file.parse(text, "f").variables == variables


def test_the_example_of_the_documentation():
    page = (ROOT / "docs" / "horovodrun.md").read_text()
    config = config_file.parse(page.split("```yaml\n")[1].split("```")[0], "docs")
    assert config.controller == "gloo"
    assert config.variables["HOROVOD_FUSION_THRESHOLD"] == str(64 << 20)
    assert config.variables["HOROVOD_ENV_DENY"] == "AWS_*,*_TOKEN"
    assert len(config.variables) == 10


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (
            "params:\n  cycle_time_ms: -1\n",
            ["line 2", "got -1", "params.cycle_time_ms must be a number from 0 to 60000"],
        ),
        (
            "params: {fusion_threshold_mb: 1.5}\n",
            ["got 1.5", "params.fusion_threshold_mb must be an integer from 0 to 1048576"],
        ),
        ("params: {cache_capacity: true}\n", ["got true", "params.cache_capacity must be an integer"]),
        ("params: {cache_capacity: [1]}\n", ["got [1]", "params.cache_capacity must be an integer"]),
        (
            "library_options: {thread_affinity: [0, true]}\n",
            ["thread_affinity must be ", "got [0, True]", "integers of 0 or more"],
        ),
        ("params: {cache_capacity:}\n", ["params.cache_capacity must be an integer", "got no value"]),
        ("params: {torus_allreduce: 2}\n", ["got 2", "params.torus_allreduce must be true or false"]),
        ("logging: {level: LOUD}\n", ["got 'LOUD'", "logging.level must be trace, debug"]),
        ("timeline: {filename: 2024-01-01}\n", ["timeline.filename must be any text"]),
        (
            "params: {fusion_treshold_mb: 1}\n",
            ["'params.fusion_treshold_mb'", "did you mean params.fusion_threshold_mb"],
        ),
        ("param: {cycle_time_ms: 1}\n", ["unknown section 'param'", "did you mean params"]),
        ("cycle_time_ms: 1\n", ["unknown section 'cycle_time_ms'", "did you mean params.cycle_time_ms"]),
        ("timeline: {level: debug}\n", ["'timeline.level'", "did you mean logging.level"]),
        ("params: {xyzzy: 1}\n", ["'params.xyzzy'", "must be one of params.fusion_threshold_mb, params.cycle_time_ms"]),
        ("xyzzy: {}\n", ["unknown section 'xyzzy'", "controller, params"]),
        ("params: 3\n", ["section params must be ", "got 3", "a mapping"]),
        ("- a\n", ["the file must be ", "got ['a']", "a mapping"]),
        ("params: {cycle_time_ms: 1, cycle_time_ms: 2}\n", ["section params has 'cycle_time_ms' twice"]),
        ("params: {cycle_time_ms: 1}\nparams: {}\n", ["line 2", "'params' twice"]),
        ("controller: nccl\n", ["got 'nccl'", "controller must be gloo or mpi"]),
        ("params: {a: [}\n", ["not valid YAML", "line 1"]),
        ("params: !!python/object/apply:os.getpid []\n", ["not valid YAML"]),
        ("timeline: {filename: 2024-13-45}\n", ["line 1", "month"]),
        ("params: {torus_allreduce: !!bool maybe}\n", ["line 1", "maybe"]),
        ("params: &a {cycle_time_ms: *a}\n", ["not valid YAML"]),
        ("params: {cycle_time_ms: " + 600 * "[" + "\n", ["nested too deeply"]),
    ],
)
def test_wrong_settings_are_named(text, named):
    with pytest.raises(ValueError, match=r"^--config-file jobs/my\.yaml") as caught:
        config_file.parse(text, "jobs/my.yaml")
    for part in named:
        assert part in str(caught.value)


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\xff\xfe", "decode")])
def test_unreadable_file(tmp_path, content, why):
    path = tmp_path / "c.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"--config-file {path}: cannot be read: .*{why}"):
        config_file.read(str(path))


def test_flag_then_file_then_variable_then_default(read):
    text = text_of({"params.cycle_time_ms": 2, "logging.with_timestamp": "true", "params.fusion_threshold_mb": 1})
    environ = {"HOROVOD_CYCLE_TIME": "4", "HOROVOD_CACHE_CAPACITY": "7"}
    # Values missing from `variables` come from the environment passed to the workers, or from their defaults
    assert read(text, environ=environ).variables == {
        "HOROVOD_CYCLE_TIME": "2",
        "HOROVOD_LOG_HIDE_TIME": "0",
        "HOROVOD_FUSION_THRESHOLD": "1048576",
    }
    flags = ["--cycle-time-ms", "3", "--log-hide-timestamp", "--fusion-threshold-mb=0"]
    expected = {"HOROVOD_CYCLE_TIME": "3", "HOROVOD_LOG_HIDE_TIME": "1", "HOROVOD_FUSION_THRESHOLD": "0"}
    assert read(text, *flags).variables == expected
    assert read(text, before=flags).variables == expected


@pytest.mark.parametrize("form", ["mpi", "MPI", "{mpi: true}"])
def test_controller(form):
    assert config_file.parse(f"controller: {form}\n", "f").controller == "mpi"


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ({"autotune.log_file": "f"}, "autotune.log_file has no effect without autotune.enabled"),
        ({"timeline.mark_cycles": "true"}, "timeline.mark_cycles has no effect without timeline.filename"),
        ({"autotune.enabled": "false", "autotune.log_file": "f", "autotune.warmup_samples": 3}, None),
        ({"timeline.mark_cycles": "false"}, None),
    ],
)
def test_keys_without_their_required_key(read, values, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = read(text_of(values))
    assert [str(warning.message) for warning in caught] == ([warned] if warned else [])
    assert set(settings.variables) <= {"HOROVOD_AUTOTUNE"}
