"""Table of all settings, and how a process reads their values.

Environment variables, launcher flags, YAML keys, the engine's fields and docs/settings.md are derived from TABLE. A
worker reads the environment with ``Settings.from_environ``. A launcher translates flags and YAML keys to environment
variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from horovod.common.contract.setting import Setting, Value

_MIB: Final = 1 << 20
_JOIN: Final = "Start and connections"
_LAUNCH: Final = "Launcher"
_WATCH: Final = "Logs and diagnosis"
_TUNE: Final = "Autotune"
_GPU: Final = "GPU and MPI"

_GPU_WAYS: Final = ("nccl", "gloo", "mpi", "ddl", "ccl")

_IGNORED: Final = "Accepted, but ignored"
_NOT_NEEDED: Final = "this has no effect and is not needed: "
_NOT_YET: Final = "what it controls is not part of this version yet"

# fmt: off
IGNORED: Final = (
    Setting("HOROVOD_HIERARCHICAL_ALLGATHER", "bool", False, "work inside each host first in allgather",
            ignored=_NOT_NEEDED + "ranks of a host hand over what they gather in shared memory anyway",
            flag="--hierarchical-allgather", yaml="params.hierarchical_allgather", section=_IGNORED),
    Setting("HOROVOD_NUM_NCCL_STREAMS", "int", 1, "streams on which NCCL works", low=1, high=64,
            ignored=_NOT_NEEDED + "what NCCL does is launched on one stream, in one order on all ranks",
            flag="--num-nccl-streams", yaml="library_options.num_nccl_streams", section=_IGNORED),
    Setting("HOROVOD_BATCH_D2D_MEMCOPIES", "bool", True, "one kernel packs a fusion buffer",
            ignored=_NOT_NEEDED + "many small tensors are packed by one kernel anyway", section=_IGNORED),
    Setting("HOROVOD_ENABLE_XLA_OPS", "bool", False, "XLA kernel for HorovodAllreduce",
            ignored=_NOT_YET, section=_IGNORED),
    Setting("HOROVOD_ADASUM_MPI_CHUNK_SIZE", "int", 1 << 30, "bytes of a message in Adasum over MPI", low=1,
            ignored=_NOT_YET, section=_IGNORED),
)
"""Settings that are accepted and checked but have no effect."""

TABLE: Final = (
    Setting("HOROVOD_FUSION_THRESHOLD", "int", 128 * _MIB,
            "maximum bytes of tensors that are reduced together; 0: no fusion", low=0,
            high=1 << 40, engine="fusion_threshold", agreed=True, flag="--fusion-threshold-mb",
            yaml="params.fusion_threshold_mb"),
    Setting("HOROVOD_CYCLE_TIME", "float", 1.0,
            "maximum time, in ms, for which operations are held to batch them",
            low=0, high=60000, engine="cycle_time_ms", agreed=True, flag="--cycle-time-ms",
            yaml="params.cycle_time_ms"),
    Setting("HOROVOD_CACHE_CAPACITY", "int", 1024,
            "maximum operations of a step that ranks can schedule, so that repeated steps need no negotiation; 0: "
            "ranks always negotiate", low=0, high=1 << 20,
            engine="cache_capacity", agreed=True, flag="--cache-capacity", yaml="params.cache_capacity"),
    Setting("HOROVOD_DISABLE_GROUP_FUSION", "bool", False, "grouped tensors are not fused with others",
            engine="groups_apart", agreed=True),
    Setting("HOROVOD_HIERARCHICAL_ALLREDUCE", "bool", False,
            "reduce GPU tensors with NCCL inside each host, and with the engine's links between hosts; on the CPU, "
            "allreduce always works inside each host first", agreed=True,
            flag="--hierarchical-allreduce", yaml="params.hierarchical_allreduce"),
    Setting("HOROVOD_TORUS_ALLREDUCE", "bool", False, "the same as HOROVOD_HIERARCHICAL_ALLREDUCE",
            agreed=True, flag="--torus-allreduce", yaml="params.torus_allreduce"),
    Setting("HOROVOD_ALGORITHM", "text", "",
            "override the table of algorithms, for tests and experts, as in allreduce=ring", engine="algorithm",
            agreed=True),
    Setting("HOROVOD_TUNING", "text", "",
            "sizes at which collectives switch algorithms, as in chunk_bytes=65536 (core/plan/tuning.h); unset: "
            "calibrated values, else the defaults", engine="tuning", agreed=True),
    Setting("HOROVOD_CALIBRATE", "bool", True,
            "use the sizes that `horovodrun --benchmark -- --calibrate` measured on this host for a job of this shape"),
    Setting("HOROVOD_STAGING_BYTES", "int", 8 * _MIB,
            "size of a rank's staging area in the host's shared memory; a multiple of 4096", low=65536, high=1 << 32,
            engine="staging_bytes", agreed=True),
    Setting("HOROVOD_ARENA_BYTES", "int", -1,
            "address space of a rank for tensors in the host's shared memory; only used pages take memory; 0: none; "
            "-1: the host's memory divided by its ranks, or none if a limit (ulimit -f) forbids that",
            low=-1, high=1 << 46),
    Setting("HOROVOD_RING_BYTES", "int", 65536,
            "capacity of the byte channel between two ranks of a host; a power of two", low=4096, high=1 << 26,
            engine="ring_bytes", agreed=True),
    Setting("HOROVOD_SPIN", "int", 2000,
            "rounds of busy waiting before a wait yields the core; 0 if ranks outnumber cores", low=0, high=10000000,
            engine="spins"),
    Setting("HOROVOD_THREAD_AFFINITY", "ints", None,
            "core on which the engine's thread runs: one, or one for each local rank",
            engine="cpu", flag="--thread-affinity", yaml="library_options.thread_affinity"),
    Setting("HOROVOD_DYNAMIC_PROCESS_SETS", "bool", False,
            "allow adding and removing process sets after init"),
    Setting("HOROVOD_ELASTIC", "bool", False,
            "set by horovodrun in elastic jobs; also enables gradient hooks at size 1"),
    Setting("HOROVOD_GLOO_TIMEOUT_SECONDS", "float", 30.0,
            "seconds without progress after which connecting or a running collective fails", low=0.1, high=86400,
            engine="timeout", agreed=True, flag="--gloo-timeout-seconds", yaml="library_options.gloo_timeout_seconds",
            section=_JOIN),
    Setting("HOROVOD_START_TIMEOUT", "float", 30.0, "seconds to wait for all ranks to call init", low=0.1, high=86400,
            flag="--start-timeout", section=_JOIN),
    Setting("HOROVOD_GLOO_IFACE", "text", "",
            "network interfaces, separated by commas, on which to listen for ranks of other hosts; default: all that "
            "are up; interfaces on a network of both hosts are tried first",
            flag="--network-interfaces", section=_JOIN),
    Setting("HOROVOD_PORT_RANGE", "text", "",
            "ports on which to listen for ranks of other hosts, such as 40000-40063, so that a firewall can allow "
            "them; at least one for each rank of a host; default: any free port", section=_JOIN),
    Setting("HOROVOD_HEARTBEAT_TIMEOUT", "float", 10.0,
            "seconds without a heartbeat after which a host counts as lost", low=4, high=86400, engine="heartbeat",
            agreed=True, section=_JOIN),
    Setting("HOROVOD_TRANSPORT", "choice", "auto",
            "auto: shared memory inside a host, TCP between hosts; tcp: TCP between all ranks, to test it on one "
            "machine", choices=("auto", "tcp"), section=_JOIN),
    Setting("HOROVOD_ENCRYPT_DATA", "bool", False,
            "also encrypt tensors between hosts; applies to all ranks if one rank sets it; control messages between "
            "hosts are always encrypted", anyone=True, section=_JOIN),
    Setting("HOROVOD_CIPHER", "choice", "auto",
            "cipher for connections between hosts; auto: the fastest on rank 0's processor that all ranks support",
            choices=("auto", "aes-256-gcm", "chacha20-poly1305"), agreed=True, section=_JOIN),
    Setting("HOROVOD_TCP_CONGESTION", "text", "auto",
            "congestion control of connections between hosts, a name known to the system; auto: the system's default, "
            "but reno if the default is bbr and the other host is less than 1 ms away; system: always the default",
            section=_JOIN),
    Setting("HOROVOD_ELASTIC_TIMEOUT", "float", 600.0,
            "elastic job: seconds to wait for enough processes at the start and after a failure", low=0.1, high=1e7,
            flag="--elastic-timeout", section=_JOIN),
    Setting("HOROVOD_ELASTIC_CODE", "choice", "same",
            "same: refuse a new worker whose main file differs from the job's; any: accept it with a warning",
            choices=("same", "any"), section=_JOIN),
    Setting("HOROVOD_CHAOS", "text", "",
            "faults to inject, as in `kill rank=2 step=50; stop rank=1 after=8s for=3s` or `seed=7 mtbf=30s`",
            flag="--chaos", section=_WATCH),
    Setting("HOROVOD_RESUME", "bool", False,
            "programs that call hvd.elastic.Checkpoint.resume continue from their last checkpoint",
            flag="--resume", section=_LAUNCH),
    Setting("HOROVOD_CHECKPOINT_OWNERS", "choice", "own",
            "own: refuse checkpoints that belong to other users or that every user can write to, because loading one "
            "can run any code; any: load them", choices=("own", "any"), section=_LAUNCH),
    Setting("HOROVOD_CHECKPOINT_KEY_FILE", "text", "",
            "file of mode 0600 with 32 bytes or 64 hexadecimal digits; checkpoints are sealed with this key and "
            "others are refused; for directories and buckets that others can write to", section=_LAUNCH),
    Setting("HOROVOD_STOP_SIGNALS", "text", "SIGTERM,SIGUSR1",
            "signals after which hvd.should_stop() returns True on all ranks, for programs that call it",
            section=_JOIN),
    Setting("HOROVOD_SPARK_START_TIMEOUT", "float", 600.0, "seconds to wait for Spark's tasks", low=0.1, section=_JOIN),
    Setting("HOROVOD_SPARK_PYTHONPATH", "text", "",
            "directories that ranks on Spark search for modules first; an executor's value (spark.executorEnv) has "
            "priority over the driver's", section=_JOIN),
    Setting("HOROVOD_SPARK_WORK_DIR", "text", "",
            "working directory of ranks on Spark instead of their executor's",
            section=_JOIN),
    Setting("HOROVOD_CPU_OPERATIONS", "choice", "gloo",
            "backend for tensors in host memory; gloo: the engine's own links; mpi: between hosts the MPI that "
            "started the job (docs/mpi.md), inside a host shared memory; ccl is not available and means gloo",
            choices=("gloo", "mpi", "ccl"), agreed=True, section=_GPU),
    Setting("HOROVOD_MPI_LIBRARY", "text", "",
            "file of the MPI library for HOROVOD_CPU_OPERATIONS=mpi; default: a loaded one, else the one beside the "
            "launcher, else the system's", section=_GPU),
    Setting("HOROVOD_MPI_REDUCTION", "choice", "horovod",
            "library that adds between hosts in allreduces of HOROVOD_CPU_OPERATIONS=mpi; horovod: the same bits with "
            "every MPI and without; mpi: integers, float32 and float64 are added by the MPI (docs/mpi.md)",
            choices=("horovod", "mpi"), agreed=True, section=_GPU),
    Setting("HOROVOD_MPI_THREADS_DISABLE", "bool", False,
            "ask MPI for MPI_THREAD_FUNNELED instead of MULTIPLE, and call it from one thread",
            flag="--mpi-threads-disable", yaml="library_options.mpi_threads_disable", section=_GPU),
    Setting("HOROVOD_ENV_ALLOW", "patterns", "",
            "only variables that match these pass from the launcher's environment to the workers, with HOROVOD_* and "
            "what every program needs (PATH, HOME, LANG, ...)",
            flag="--env-allow", yaml="environment.allow", section=_LAUNCH),
    Setting("HOROVOD_ENV_DENY", "patterns", "",
            "variables that match these do not pass from the launcher's environment to the workers",
            flag="--env-deny", yaml="environment.deny", section=_LAUNCH),
    Setting("HOROVOD_GRACE_SECONDS", "float", 30.0,
            "seconds that ranks get to end by themselves after Ctrl-C (SIGINT) or SIGTERM to the launcher, until what "
            "is left of them gets SIGTERM and, 5 s later, SIGKILL", low=0, high=86400, flag="--grace-seconds",
            section=_LAUNCH),
    Setting("HOROVOD_REMOTE_PYTHON", "text", "",
            "Python on other hosts; unset: the path of the launcher's own", flag="--remote-python", section=_LAUNCH),
    Setting("HOROVOD_SSH_FANOUT", "int", 32,
            "hosts that the launcher reaches by itself; with more, the agents there start the others; in an elastic "
            "job it reaches all", low=1, high=100000, section=_LAUNCH),
    Setting("HOROVOD_STALL_CHECK_DISABLE", "bool", False,
            "no warnings about tensors that only some ranks submitted",
            flag="--no-stall-check", yaml="stall_check.enabled", yaml_inverted=True, section=_WATCH),
    Setting("HOROVOD_STALL_CHECK_TIME_SECONDS", "float", 60.0, "seconds until such a warning", low=0,
            engine="stall_warning", flag="--stall-check-warning-time-seconds", yaml="stall_check.warning_time_seconds",
            section=_WATCH),
    Setting("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "float", 0.0,
            "seconds until such a tensor fails the job; 0: never; ignored below the warning time", low=0,
            engine="stall_shutdown", flag="--stall-check-shutdown-time-seconds",
            yaml="stall_check.shutdown_time_seconds", section=_WATCH),
    Setting("HOROVOD_DEBUG_RANK", "int", -1,
            "rank to run under a debugger: timeouts are disabled, and horovodrun gives this rank the terminal "
            "(docs/debugging.md); -1: none", low=-1, high=1 << 20, flag="--debug-rank", section=_WATCH),
    Setting("HOROVOD_CHECK_IN_SYNC_STEPS", "int", 0,
            "steps after which ranks compare parameters and optimizer state bit for bit, and raise an error if they "
            "differ, in PyTorch and Keras (docs/troubleshooting.md); 0: never", low=0, high=1 << 40, agreed=True,
            section=_WATCH),
    Setting("HOROVOD_TRAINING_CHECKS", "bool", True,
            "rank 0 warns of likely mistakes: ranks whose parameters differ, that train on the same samples, that are "
            "in different epochs, or that average no gradient; training without hvd.init() is an error "
            "(docs/troubleshooting.md)",
            section=_WATCH),
    Setting("HOROVOD_RECORDER_ENTRIES", "int", 1000,
            "entries of the flight recorder, which keeps the latest events of this rank's engine; 0: off", low=0,
            high=1 << 20, engine="recorder_entries", section=_WATCH),
    Setting("HOROVOD_REPORT_DIR", "text", "",
            "folder for reports about hangs and for files of flight recorders, in which a job creates a folder when "
            "there is something to write (docs/hangs.md); default: horovod-UID in TMPDIR, or /tmp",
            engine="report_dir", agreed=True, flag="--report-dir", section=_WATCH),
    Setting("HOROVOD_STATS_SUMMARY", "bool", True,
            "at the end of a job of 50 steps or more, rank 0 prints a line about where the time of its steps went",
            section=_WATCH),
    Setting("HOROVOD_STATS_FILE", "text", "",
            "file to which rank 0 appends a line of JSON about each second or so of steps", flag="--stats-file",
            section=_WATCH),
    Setting("HOROVOD_METRICS_PORT", "int", 0,
            "port on rank 0's host at which Prometheus can scrape step metrics; 0: none", low=0, high=65535,
            flag="--metrics-port", section=_WATCH),
    Setting("HOROVOD_METRICS_ADDRESS", "text", "127.0.0.1",
            "address of that port; all who can reach it can read the metrics, so change it only if that is acceptable",
            flag="--metrics-address", section=_WATCH),
    Setting("HOROVOD_DASHBOARD", "bool", False,
            "horovodrun serves a page about the running job on loopback and prints its address (docs/dashboard.md)",
            flag="--dashboard", section=_WATCH),
    Setting("HOROVOD_DASHBOARD_PORT", "int", 0,
            "port of that page; 0: a free port", low=0, high=65535,
            flag="--dashboard-port", section=_WATCH),
    Setting("HOROVOD_LOG_LEVEL", "choice", "warning",
            "minimum severity of messages that are logged on stderr",
            choices=("trace", "debug", "info", "warning", "error", "fatal"), engine="log_level", flag="--log-level",
            yaml="logging.level", section=_WATCH),
    Setting("HOROVOD_LOG_HIDE_TIME", "bool", False, "log lines without time", flag="--log-without-timestamp",
            yaml="logging.with_timestamp", yaml_inverted=True, section=_WATCH),
    Setting("HOROVOD_TIMELINE", "text", "",
            "file of rank 0's timeline, from which the names of the other ranks' files are derived "
            "(docs/timeline.md); DYNAMIC: none until the program starts one", flag="--timeline-filename",
            yaml="timeline.filename", section=_WATCH),
    Setting("HOROVOD_TIMELINE_MARK_CYCLES", "bool", False,
            "mark in the timeline when the engine receives work",
            flag="--timeline-mark-cycles", yaml="timeline.mark_cycles", section=_WATCH),
    Setting("HOROVOD_TIMELINE_MERGE", "bool", False,
            "at the end of the job, rank 0 merges all ranks' files that it finds into one trace beside its own, with "
            ".all in the name", flag="--timeline-merge", yaml="timeline.merge",
            section=_WATCH),
    Setting("HOROVOD_TIMELINE_STEPS", "steps", "",
            "record only these steps in the timeline",
            flag="--timeline-steps", yaml="timeline.steps", section=_WATCH),
    Setting("HOROVOD_TIMELINE_LAST", "float", 0.0,
            "seconds of which the timeline keeps at least the last ones, and at most twice as many, the older ones in "
            "a file named .before; 0: everything", low=0, high=1e6,
            flag="--timeline-last", yaml="timeline.last", section=_WATCH),
    Setting("HOROVOD_PROFILE", "text", "",
            "file to which rank 0 writes a profile of 20 steps for the planner (docs/planner.md); PyTorch only",
            flag="--profile", section=_WATCH),
    Setting("HOROVOD_AUTOTUNE", "bool", False, "search for faster settings while training (docs/autotune.md)",
            flag="--autotune", yaml="autotune.enabled", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_LOG", "text", "",
            "CSV file to which rank 0 writes each measurement of the search; its last row is the best",
            flag="--autotune-log-file",
            yaml="autotune.log_file", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "int", 3,
            "number of first samples to discard", low=0,
            flag="--autotune-warmup-samples", yaml="autotune.warmup_samples", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "int", 10,
            "steps per sample", low=1,
            flag="--autotune-steps-per-sample", yaml="autotune.steps_per_sample", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "int", 20,
            "maximum number of candidates that are measured", low=1,
            flag="--autotune-bayes-opt-max-samples", yaml="autotune.bayes_opt_max_samples", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_REUSE", "bool", False,
            "use the settings that an earlier job with this model, these hosts and settings has found; without them, "
            "HOROVOD_AUTOTUNE=1 searches",
            flag="--autotune-reuse", yaml="autotune.reuse", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "float", 0.8, "noise assumed by the search", low=0, high=1,
            ignored=_NOT_NEEDED + "the noise is measured",
            flag="--autotune-gaussian-process-noise", yaml="autotune.gaussian_process_noise",
            section=_TUNE),
    Setting("HOROVOD_TORCH_DISTRIBUTED_ENV", "bool", True,
            "workers get the variables of torch.distributed: RANK, WORLD_SIZE, MASTER_ADDR and so on "
            "(docs/pytorch/torch-distributed.md)", flag="--torch-distributed-env",
            yaml="params.torch_distributed_env"),
    Setting("HOROVOD_TORCH_DISTRIBUTED_PORT", "int", 0,
            "MASTER_PORT of torch.distributed, on rank 0's host; 0: a free one", low=0, high=65535,
            flag="--torch-distributed-port", yaml="params.torch_distributed_port"),
    Setting("HOROVOD_GPUS_PER_WORKER", "int", 0,
            "number of GPUs that each worker of a host gets for itself, by CUDA_VISIBLE_DEVICES; 0: all workers see "
            "all GPUs, and a program uses the one of its local rank (docs/gpu.md)",
            low=0, high=1024, flag="--gpus-per-worker",
            yaml="params.gpus_per_worker", section=_GPU),
    Setting("HOROVOD_GPU_AFFINITY", "bool", False,
            "bind each worker to the CPUs near its GPUs: those of HOROVOD_GPUS_PER_WORKER, else the one of its local "
            "rank",
            flag="--gpu-affinity", yaml="params.gpu_affinity", section=_GPU),
    Setting("HOROVOD_GPU_OPERATIONS", "choice", "nccl",
            "backend for tensors on GPUs; nccl: NCCL if it can be used, else the engine's own algorithms; gloo: "
            "always the engine's own; mpi, ddl and ccl are not available and mean gloo", choices=_GPU_WAYS,
            agreed=True, section=_GPU),
    *(
        Setting(f"HOROVOD_GPU_{operation}", "choice", "", f"the same for {operation.lower()} alone; unset: as "
                "HOROVOD_GPU_OPERATIONS says", choices=_GPU_WAYS, agreed=True, section=_GPU)
        for operation in ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER")
    ),
    Setting("HOROVOD_NCCL_LIBRARY", "text", "",
            "file of the NCCL library; default: a loaded one, else the one of Python packages, else the system's",
            section=_GPU),
    Setting("HOROVOD_CUDA_LIBRARY", "text", "",
            "file of the CUDA driver; default: libcuda.so.1 as found by the loader",
            engine="cuda_library", section=_GPU),
    Setting("HOROVOD_CUDA_IPC", "bool", True,
            "ranks of one host that do not use NCCL (several on one GPU) reduce in each other's GPU memory; 0: "
            "through host memory", engine="cuda_ipc", agreed=True, section=_GPU),
    Setting("HOROVOD_SHARED_GPU", "bool", False,
            "do not warn that ranks share GPUs", engine="shared_gpu", section=_GPU),
    Setting("HOROVOD_ENABLE_ASYNC_COMPLETION", "bool", True,
            "waiting for an operation on a GPU makes the stream wait for the result, not the program; 0: the program "
            "waits too", section=_GPU),
    Setting("HOROVOD_DISABLE_NVTX_RANGES", "bool", False,
            "no NVTX ranges around operations in a program started by an NVIDIA profiler",
            section=_GPU),
    *IGNORED,
)
# fmt: on

BY_NAME: Final = {setting.name: setting for setting in TABLE}
LOG_LEVELS: Final = BY_NAME["HOROVOD_LOG_LEVEL"].choices


@dataclass(frozen=True)
class Settings:
    """Values of all settings in one process."""

    values: dict[str, Value] = field(default_factory=lambda: {s.name: s.default for s in TABLE})

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from ``environ``, by default this process's environment.

        Raises:
            ValueError: If a value is invalid. The message names the variable, its value and the accepted values.
        """
        env = os.environ if environ is None else environ
        made = cls({setting.name: setting.parse(env.get(setting.name, "")) for setting in TABLE})
        made._check_forms()
        return made

    def _check_forms(self) -> None:
        staging, ring = self.integer("HOROVOD_STAGING_BYTES"), self.integer("HOROVOD_RING_BYTES")
        if staging % 4096:
            raise ValueError(f"HOROVOD_STAGING_BYTES must be a multiple of 4096, got {staging}")
        if ring & (ring - 1):
            raise ValueError(f"HOROVOD_RING_BYTES must be a power of two, got {ring}")

    def flag(self, name: str) -> bool:
        """Return the value of a boolean setting."""
        return bool(self.values[name])

    def integer(self, name: str) -> int:
        """Return the value of an int setting."""
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """Return the value of an int or float setting as a float."""
        value = self.values[name]
        assert isinstance(value, (int, float))
        return value

    def text(self, name: str) -> str:
        """Return the value of a text or choice setting. Choices are in lower case."""
        value = self.values[name]
        assert isinstance(value, str)
        return value

    def integers(self, name: str) -> list[int] | None:
        """Return the value of a setting that is a list of ints, or None if it is unset."""
        value = self.values[name]
        assert value is None or isinstance(value, list)
        return value

    def shared(self) -> dict[str, Value]:
        """Return the values that this rank sends to the other ranks for ``agree``."""
        return {setting.name: self.values[setting.name] for setting in TABLE if setting.agreed or setting.anyone}

    def with_values(self, values: Mapping[str, Value]) -> Settings:
        """Return a copy of the settings with some values replaced."""
        return Settings({**self.values, **values})


def agree(shared: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Combine the values sent by each rank, in rank order, into the values used by all ranks."""
    switches = {setting.name for setting in TABLE if setting.anyone}
    return {
        name: any(values[name] for values in shared) if name in switches else value for name, value in shared[0].items()
    }


def for_debugging(settings: Settings) -> Settings:
    """If a rank runs under a debugger, return settings with day-long timeouts and without the stall check."""
    if settings.integer("HOROVOD_DEBUG_RANK") < 0:
        return settings
    longest = {name: BY_NAME[name].high for name in ("HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS")}
    return settings.with_values(
        {**longest, "HOROVOD_STALL_CHECK_DISABLE": True, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": 0.0}
    )


def generate_docs() -> str:
    """Generate docs/settings.md from the table of settings."""
    lines = [
        "# Settings",
        "",
        "Generated by `python -m horovod.common.contract.settings > docs/settings.md`; edit",
        "`src/horovod/common/contract/settings.py`.",
        "",
        "A flag has priority over the key of the YAML file (`--config-file`), and the key over the\n"
        "environment variable. An unset or empty variable means the default. An invalid value is an error\n"
        "that names the variable, the value and the accepted values. Settings marked † are checked but have\n"
        "no effect; `horovodrun` or rank 0 warns about them. Settings marked ● take rank 0's value on all\nranks.",
    ]
    for section in dict.fromkeys(setting.section for setting in TABLE):
        lines += ["", f"## {section}", ""]
        lines += ["| Variable | Default | Accepted | Meaning | Flag · YAML key |", "|---|---|---|---|---|"]
        lines += [_row(setting) for setting in TABLE if setting.section == section]
    return "\n".join(lines) + "\n"


def _row(setting: Setting) -> str:
    default = setting.default
    shown = "unset" if default in (None, "") else str(int(default) if isinstance(default, bool) else default)
    if isinstance(default, int) and default >= _MIB:
        shown += f" ({default // _MIB} MiB)"
    marks = (" ●" if setting.agreed else "") + (" †" if setting.ignored else "")
    meaning = f"{setting.help}; {setting.ignored}" if setting.ignored else setting.help
    ways = " · ".join(f"`{way}`" for way in (setting.flag, setting.yaml) if way)
    return f"| `{setting.name}`{marks} | {shown} | {setting.accepted()} | {meaning} | {ways} |"


if __name__ == "__main__":
    print(generate_docs(), end="")
