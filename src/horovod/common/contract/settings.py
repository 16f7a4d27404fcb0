"""Table of all settings, and their parsing.

Environment variables, launcher flags, YAML keys, the engine's fields and docs/settings.md are derived from TABLE. A
worker reads its environment with ``Settings.from_environ``. A launcher translates flags and YAML keys to the same
variables.
"""

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

# fmt: off
TABLE: Final = (
    Setting("HOROVOD_FUSION_THRESHOLD", "int", 128 * _MIB, "bytes of tensors reduced together; 0: each alone", low=0,
            high=1 << 40, engine="fusion_threshold", agreed=True, flag="--fusion-threshold-mb",
            yaml="params.fusion_threshold_mb"),
    Setting("HOROVOD_CYCLE_TIME", "float", 1.0, "upper bound, in ms, of the time operations are held to batch them",
            low=0, high=60000, engine="cycle_time_ms", agreed=True, flag="--cycle-time-ms",
            yaml="params.cycle_time_ms"),
    Setting("HOROVOD_CACHE_CAPACITY", "int", 1024,
            "operations of a step that ranks remember and then carry out without negotiation, of which more than a "
            "step has gain nothing; 0: ranks always negotiate", low=0, high=1 << 20,
            engine="cache_capacity", agreed=True, flag="--cache-capacity", yaml="params.cache_capacity"),
    Setting("HOROVOD_DISABLE_GROUP_FUSION", "bool", False, "grouped tensors are not fused with others",
            engine="groups_apart", agreed=True),
    Setting("HOROVOD_HIERARCHICAL_ALLREDUCE", "bool", False,
            "tensors on GPUs are reduced by NCCL inside each host and by the engine's links between hosts, also where "
            "NCCL could connect the hosts; on the CPU allreduce works inside each host first anyway", agreed=True,
            flag="--hierarchical-allreduce", yaml="params.hierarchical_allreduce"),
    Setting("HOROVOD_HIERARCHICAL_ALLGATHER", "bool", False, "the same for allgather",
            needless="ranks of a host hand over what they gather in shared memory anyway",
            flag="--hierarchical-allgather", yaml="params.hierarchical_allgather"),
    Setting("HOROVOD_TORUS_ALLREDUCE", "bool", False, "the same as HOROVOD_HIERARCHICAL_ALLREDUCE",
            agreed=True, flag="--torus-allreduce", yaml="params.torus_allreduce"),
    Setting("HOROVOD_ALGORITHM", "text", "",
            "overrides the table of algorithms, for tests and experts, as in allreduce=ring", engine="algorithm",
            agreed=True),
    Setting("HOROVOD_TUNING", "text", "",
            "sizes at which collectives change their ways, as in chunk_bytes=65536 (core/plan/tuning.h); unset: as "
            "calibrated, else the defaults", engine="tuning", agreed=True),
    Setting("HOROVOD_CALIBRATE", "bool", True,
            "use sizes that `horovodrun --benchmark -- --calibrate` has measured on this host for a job of this shape"),
    Setting("HOROVOD_STAGING_BYTES", "int", 8 * _MIB,
            "a rank's area in the memory shared on its host; a multiple of 4096", low=65536, high=1 << 32,
            engine="staging_bytes", agreed=True),
    Setting("HOROVOD_ARENA_BYTES", "int", -1,
            "address space of a rank for tensors in the memory shared on its host, of which only what is used takes "
            "memory; 0 for none, -1 for the host's memory divided by its ranks, or none where a limit (ulimit -f) "
            "forbids that", low=-1, high=1 << 46),
    Setting("HOROVOD_RING_BYTES", "int", 65536,
            "capacity of the byte channel between two ranks of a host; a power of two", low=4096, high=1 << 26,
            engine="ring_bytes", agreed=True),
    Setting("HOROVOD_SPIN", "int", 2000,
            "rounds of busy waiting before a wait yields the core; 0 where ranks outnumber cores", low=0, high=10000000,
            engine="spins"),
    Setting("HOROVOD_THREAD_AFFINITY", "ints", None, "core of the engine's thread: one, or one for each local rank",
            engine="cpu", flag="--thread-affinity", yaml="library_options.thread_affinity"),
    Setting("HOROVOD_DYNAMIC_PROCESS_SETS", "bool", False, "process sets may be added and removed after init"),
    Setting("HOROVOD_ELASTIC", "bool", False, "elastic job, as horovodrun tells workers; gradient hooks at size 1 too"),
    Setting("HOROVOD_GLOO_TIMEOUT_SECONDS", "float", 30.0,
            "seconds without progress after which connecting or a running collective fails", low=0.1, high=86400,
            engine="timeout", agreed=True, flag="--gloo-timeout-seconds", yaml="library_options.gloo_timeout_seconds",
            section=_JOIN),
    Setting("HOROVOD_START_TIMEOUT", "float", 30.0, "seconds to wait for all ranks to call init", low=0.1, high=86400,
            flag="--start-timeout", section=_JOIN),
    Setting("HOROVOD_GLOO_IFACE", "text", "",
            "network interfaces to listen on for ranks on other hosts, separated by commas; default: all that are up, "
            "of which those on a network of both hosts are tried first",
            flag="--network-interfaces", section=_JOIN),
    Setting("HOROVOD_PORT_RANGE", "text", "",
            "ports to listen on for ranks on other hosts, as in 40000-40063, at least one for each rank of a host, so "
            "that a firewall can let them pass; default: any free port", section=_JOIN),
    Setting("HOROVOD_HEARTBEAT_TIMEOUT", "float", 10.0,
            "seconds without a sign of life after which a host counts as lost", low=4, high=86400, engine="heartbeat",
            agreed=True, section=_JOIN),
    Setting("HOROVOD_TRANSPORT", "choice", "auto",
            "auto: shared memory inside a host, TCP between hosts; tcp: TCP between all ranks, so that it can be "
            "tested on one machine", choices=("auto", "tcp"), section=_JOIN),
    Setting("HOROVOD_ENCRYPT_DATA", "bool", False,
            "encrypt tensors too on their way between hosts, on all ranks as soon as one asks for it; what ranks agree "
            "on is always encrypted there", anyone=True, section=_JOIN),
    Setting("HOROVOD_CIPHER", "choice", "auto",
            "what encrypts connections between hosts; auto: the fastest on rank 0's processor that all ranks have",
            choices=("auto", "aes-256-gcm", "chacha20-poly1305"), agreed=True, section=_JOIN),
    Setting("HOROVOD_TCP_CONGESTION", "text", "auto",
            "congestion control of connections between hosts, a name that the system knows; auto: the system's, but "
            "where that is bbr and the other host is less than 1 ms away, reno; system: always the system's",
            section=_JOIN),
    Setting("HOROVOD_ELASTIC_TIMEOUT", "float", 600.0,
            "elastic job: seconds to wait for enough processes, at the start and after a failure", low=0.1, high=1e7,
            flag="--elastic-timeout", section=_JOIN),
    Setting("HOROVOD_ELASTIC_CODE", "choice", "same",
            "same: a new worker whose main file is another than the job's is refused; any: it is let in, after a "
            "warning", choices=("same", "any"), section=_JOIN),
    Setting("HOROVOD_CHAOS", "text", "",
            "faults that are to happen, as in `kill rank=2 step=50; stop rank=1 after=8s for=3s` or `seed=7 mtbf=30s`",
            flag="--chaos", section=_WATCH),
    Setting("HOROVOD_RESUME", "bool", False,
            "programs go on from their last checkpoint, where they call hvd.elastic.Checkpoint.resume",
            flag="--resume", section=_LAUNCH),
    Setting("HOROVOD_CHECKPOINT_OWNERS", "choice", "own",
            "own: checkpoints of other users, and those that every user can write to, are refused, as reading one can "
            "run anything; any: they are read", choices=("own", "any"), section=_LAUNCH),
    Setting("HOROVOD_CHECKPOINT_KEY_FILE", "text", "",
            "file of mode 0600 with 32 bytes, or 64 hexadecimal digits: checkpoints are sealed with this key, and "
            "others are refused; for directories and buckets that others can write to", section=_LAUNCH),
    Setting("HOROVOD_STOP_SIGNALS", "text", "SIGTERM,SIGUSR1",
            "signals that hvd.should_stop() turns into the same answer on all ranks, once a program calls it",
            section=_JOIN),
    Setting("HOROVOD_SPARK_START_TIMEOUT", "float", 600.0, "seconds to wait for Spark's tasks", low=0.1, section=_JOIN),
    Setting("HOROVOD_SPARK_PYTHONPATH", "text", "", "where ranks on Spark look for modules first; of the driver, or of "
            "an executor (spark.executorEnv), which counts more", section=_JOIN),
    Setting("HOROVOD_SPARK_WORK_DIR", "text", "", "working directory of ranks on Spark in place of their executor's",
            section=_JOIN),
    Setting("HOROVOD_CPU_OPERATIONS", "choice", "gloo",
            "what carries tensors in the host's memory; gloo: the engine's own links; mpi: between hosts the MPI that "
            "has started the job (docs/mpi.md), inside a host shared memory; ccl is not there, and means gloo",
            choices=("gloo", "mpi", "ccl"), agreed=True, section=_GPU),
    Setting("HOROVOD_MPI_LIBRARY", "text", "",
            "file of the MPI library for HOROVOD_CPU_OPERATIONS=mpi; default: one that is loaded already, else that "
            "beside the launcher, else the system's", section=_GPU),
    Setting("HOROVOD_MPI_REDUCTION", "choice", "horovod",
            "who adds in allreduces of HOROVOD_CPU_OPERATIONS=mpi between hosts; horovod: this library, in its own "
            "order, so that bits are the same with every MPI and without; mpi: for integers, float32 and float64 the "
            "MPI, which a network may help, in whatever order it chooses (docs/mpi.md)",
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
    Setting("HOROVOD_STALL_CHECK_DISABLE", "bool", False, "no warnings about tensors that only some ranks submitted",
            flag="--no-stall-check", yaml="stall_check.enabled", yaml_inverted=True, section=_WATCH),
    Setting("HOROVOD_STALL_CHECK_TIME_SECONDS", "float", 60.0, "seconds until such a warning", low=0,
            engine="stall_warning", flag="--stall-check-warning-time-seconds", yaml="stall_check.warning_time_seconds",
            section=_WATCH),
    Setting("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "float", 0.0,
            "seconds until such a tensor fails the job; 0: never; ignored below the warning time", low=0,
            engine="stall_shutdown", flag="--stall-check-shutdown-time-seconds",
            yaml="stall_check.shutdown_time_seconds", section=_WATCH),
    Setting("HOROVOD_DEBUG_RANK", "int", -1,
            "rank that somebody looks at with a debugger: no rank's patience ends, and horovodrun gives this one the "
            "terminal (docs/debugging.md); -1: none", low=-1, high=1 << 20, flag="--debug-rank", section=_WATCH),
    Setting("HOROVOD_CHECK_IN_SYNC_STEPS", "int", 0,
            "after every so many steps all ranks compare parameters and optimizer state, bit for bit, and a difference "
            "is an error: in `step` of PyTorch's DistributedOptimizer, and in Keras' BroadcastGlobalVariablesCallback, "
            "there at the end of each epoch, too; 0: never", low=0, high=1 << 40, agreed=True, section=_WATCH),
    Setting("HOROVOD_TRAINING_CHECKS", "bool", True,
            "rank 0 warns of training that is likely to be a mistake: ranks whose parameters differ after the first "
            "steps, that train on the same samples, that are in different epochs, or that average no gradient "
            "(docs/troubleshooting.md)", section=_WATCH),
    Setting("HOROVOD_RECORDER_ENTRIES", "int", 1000,
            "entries of the flight recorder, which keeps what this rank's engine has done last; 0: off", low=0,
            high=1 << 20, engine="recorder_entries", section=_WATCH),
    Setting("HOROVOD_REPORT_DIR", "text", "",
            "folder for reports about hangs and what flight recorders have, in which a job makes one of its own when "
            "there is something to write (docs/hangs.md); default: horovod-UID in TMPDIR, or /tmp",
            engine="report_dir", agreed=True, flag="--report-dir", section=_WATCH),
    Setting("HOROVOD_STATS_SUMMARY", "bool", True,
            "a job of 50 steps or more ends with a line on rank 0's stderr about where its steps went", section=_WATCH),
    Setting("HOROVOD_STATS_FILE", "text", "",
            "file to which rank 0 adds a line of JSON about each second or so of steps", flag="--stats-file",
            section=_WATCH),
    Setting("HOROVOD_METRICS_PORT", "int", 0,
            "port on rank 0's host where Prometheus and the like find figures about steps; 0: none", low=0, high=65535,
            flag="--metrics-port", section=_WATCH),
    Setting("HOROVOD_METRICS_ADDRESS", "text", "127.0.0.1",
            "address of that port; anybody who reaches it may read, so tell it another one where that is right",
            flag="--metrics-address", section=_WATCH),
    Setting("HOROVOD_DASHBOARD", "bool", False,
            "horovodrun serves a page that shows the job while it runs, on loopback, and prints its address "
            "(docs/dashboard.md)", flag="--dashboard", section=_WATCH),
    Setting("HOROVOD_DASHBOARD_PORT", "int", 0, "port of that page; 0: one that is free", low=0, high=65535,
            flag="--dashboard-port", section=_WATCH),
    Setting("HOROVOD_LOG_LEVEL", "choice", "warning", "least severity that is logged, on stderr",
            choices=("trace", "debug", "info", "warning", "error", "fatal"), engine="log_level", flag="--log-level",
            yaml="logging.level", section=_WATCH),
    Setting("HOROVOD_LOG_HIDE_TIME", "bool", False, "log lines without time", flag="--log-without-timestamp",
            yaml="logging.with_timestamp", yaml_inverted=True, section=_WATCH),
    Setting("HOROVOD_TIMELINE", "text", "", "file of rank 0's timeline, from which the others' names are made "
            "(docs/timeline.md); DYNAMIC: none until the program starts one", flag="--timeline-filename",
            yaml="timeline.filename", section=_WATCH),
    Setting("HOROVOD_TIMELINE_MARK_CYCLES", "bool", False, "marks in the timeline where the engine gets something to "
            "do", flag="--timeline-mark-cycles", yaml="timeline.mark_cycles", section=_WATCH),
    Setting("HOROVOD_TIMELINE_MERGE", "bool", False, "when the job is over, rank 0 makes one trace of all ranks' files "
            "that it finds, beside its own with .all in the name", flag="--timeline-merge", yaml="timeline.merge",
            section=_WATCH),
    Setting("HOROVOD_TIMELINE_STEPS", "steps", "", "only these steps are in the timeline",
            flag="--timeline-steps", yaml="timeline.steps", section=_WATCH),
    Setting("HOROVOD_TIMELINE_LAST", "float", 0.0, "seconds of which the timeline keeps the last ones: one to two "
            "times as many, the older ones in a file named .before; 0: everything", low=0, high=1e6,
            flag="--timeline-last", yaml="timeline.last", section=_WATCH),
    Setting("HOROVOD_AUTOTUNE", "bool", False, "search for the best settings while training", later=True,
            flag="--autotune", yaml="autotune.enabled", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_LOG", "text", "", "file for the search's steps", later=True, flag="--autotune-log-file",
            yaml="autotune.log_file", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "int", 3, "samples thrown away first", low=0, later=True,
            flag="--autotune-warmup-samples", yaml="autotune.warmup_samples", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "int", 10, "steps of one sample", low=1, later=True,
            flag="--autotune-steps-per-sample", yaml="autotune.steps_per_sample", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "int", 20, "samples at most", low=1, later=True,
            flag="--autotune-bayes-opt-max-samples", yaml="autotune.bayes_opt_max_samples", section=_TUNE),
    Setting("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "float", 0.8, "noise assumed by the search", low=0, high=1,
            later=True, flag="--autotune-gaussian-process-noise", yaml="autotune.gaussian_process_noise",
            section=_TUNE),
    Setting("HOROVOD_GPUS_PER_WORKER", "int", 0,
            "GPUs that each worker of a host gets for itself, by CUDA_VISIBLE_DEVICES; 0: all workers see all GPUs, "
            "and a program takes that of its local rank (docs/gpu.md)", low=0, high=1024, flag="--gpus-per-worker",
            yaml="params.gpus_per_worker", section=_GPU),
    Setting("HOROVOD_GPU_AFFINITY", "bool", False,
            "each worker runs on the CPUs near its GPUs: those of HOROVOD_GPUS_PER_WORKER, else that of its local rank",
            flag="--gpu-affinity", yaml="params.gpu_affinity", section=_GPU),
    Setting("HOROVOD_GPU_OPERATIONS", "choice", "nccl",
            "what carries tensors that are on GPUs; nccl: NCCL where it can be used, else the engine's own ways; gloo: "
            "always the engine's own ways; mpi, ddl and ccl are not there, and mean gloo", choices=_GPU_WAYS,
            agreed=True, section=_GPU),
    *(
        Setting(f"HOROVOD_GPU_{operation}", "choice", "", f"the same for {operation.lower()} alone; unset: as "
                "HOROVOD_GPU_OPERATIONS says", choices=_GPU_WAYS, agreed=True, section=_GPU)
        for operation in ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER")
    ),
    Setting("HOROVOD_NCCL_LIBRARY", "text", "",
            "NCCL's library; default: one that is loaded already, else that of Python's packages, else the system's",
            section=_GPU),
    Setting("HOROVOD_CUDA_LIBRARY", "text", "", "CUDA's driver; default: libcuda.so.1, where the loader finds it",
            engine="cuda_library", section=_GPU),
    Setting("HOROVOD_CUDA_IPC", "bool", True,
            "ranks of one host that do not use NCCL (several on one GPU) reduce in each other's memory on the GPU; 0: "
            "by way of the host's memory", engine="cuda_ipc", agreed=True, section=_GPU),
    Setting("HOROVOD_SHARED_GPU", "bool", False,
            "ranks are meant to share GPUs: no warning that they do", engine="shared_gpu", section=_GPU),
    Setting("HOROVOD_NUM_NCCL_STREAMS", "int", 1,
            "streams on which NCCL works", low=1, high=64,
            needless="what NCCL does is launched on one stream, in one order on all ranks",
            flag="--num-nccl-streams", yaml="library_options.num_nccl_streams", section=_GPU),
    Setting("HOROVOD_BATCH_D2D_MEMCOPIES", "bool", True, "one kernel packs a fusion buffer",
            needless="many small tensors are packed by one kernel anyway", section=_GPU),
    Setting("HOROVOD_ENABLE_ASYNC_COMPLETION", "bool", True,
            "waiting for an operation on a GPU has the stream wait for the result, not the program; 0: the program "
            "waits as well", section=_GPU),
    Setting("HOROVOD_DISABLE_NVTX_RANGES", "bool", False,
            "no ranges of NVTX around operations where a profiler of NVIDIA's has started the program",
            section=_GPU),
    Setting("HOROVOD_ENABLE_XLA_OPS", "bool", False, "XLA kernel for HorovodAllreduce", later=True, section=_GPU),
    Setting("HOROVOD_ADASUM_MPI_CHUNK_SIZE", "int", 1 << 30, "bytes of a message in Adasum over MPI", low=1, later=True,
            section=_GPU),
)
# fmt: on

BY_NAME: Final = {setting.name: setting for setting in TABLE}
LOG_LEVELS: Final = BY_NAME["HOROVOD_LOG_LEVEL"].choices


@dataclass(frozen=True)
class Settings:
    """Values of all settings of one process."""

    values: dict[str, Value] = field(default_factory=lambda: {s.name: s.default for s in TABLE})

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Return the settings of an environment (default: this process's).

        Raises:
            ValueError: If a value is invalid; names variable, value and what is accepted.
        """
        env = os.environ if environ is None else environ
        made = cls({setting.name: setting.parse(env.get(setting.name, "")) for setting in TABLE})
        made._check_forms()
        return made

    def _check_forms(self) -> None:
        staging, ring = self.integer("HOROVOD_STAGING_BYTES"), self.integer("HOROVOD_RING_BYTES")
        if staging % 4096:
            raise ValueError(f"HOROVOD_STAGING_BYTES is {staging}, accepted is a multiple of 4096")
        if ring & (ring - 1):
            raise ValueError(f"HOROVOD_RING_BYTES is {ring}, accepted is a power of two")

    def flag(self, name: str) -> bool:
        """Return the value of a bool setting."""
        return bool(self.values[name])

    def integer(self, name: str) -> int:
        """Return the value of an int setting."""
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float:
        """Return the value of an int or float setting."""
        value = self.values[name]
        assert isinstance(value, (int, float))
        return value

    def text(self, name: str) -> str:
        """Return the value of a text or choice setting (choices in lower case)."""
        value = self.values[name]
        assert isinstance(value, str)
        return value

    def integers(self, name: str) -> list[int] | None:
        """Return the value of an ints setting; None if unset."""
        value = self.values[name]
        assert value is None or isinstance(value, list)
        return value

    def shared(self) -> dict[str, Value]:
        """Return the values that ranks exchange, for ``agree``."""
        return {setting.name: self.values[setting.name] for setting in TABLE if setting.agreed or setting.anyone}

    def with_values(self, values: Mapping[str, Value]) -> "Settings":
        """Return a copy with some values replaced."""
        return Settings({**self.values, **values})


def agree(shared: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Return the values that all ranks take, from the values that each rank shared (by rank)."""
    switches = {setting.name for setting in TABLE if setting.anyone}
    return {
        name: any(values[name] for values in shared) if name in switches else value for name, value in shared[0].items()
    }


def generate_docs() -> str:
    """Return the text of docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "Generated by `python -m horovod.common.contract.settings > docs/settings.md`; edit "
        "`src/horovod/common/contract/settings.py`.",
        "",
        "A flag beats the key of the YAML file (`--config-file`), which beats the environment variable. "
        "An unset or empty variable means the "
        "default. A "
        "value that is not accepted is an error that names variable, value and what is accepted. Settings marked † are "
        "checked, but what they control is not part of this build yet; those marked ‡ are not needed and have no "
        "effect. Whoever sets one of either is told so, by `horovodrun` or else by rank 0. Those marked ● take rank "
        "0's value on all ranks.",
    ]
    for section in dict.fromkeys(setting.section for setting in TABLE):
        lines += ["", f"## {section}", ""]
        lines += ["| Variable | Default | Accepted | Meaning | Flag · YAML key |", "|---|---|---|---|---|"]
        lines += [_row(setting) for setting in TABLE if setting.section == section]
    return "\n".join(lines) + "\n"


def _row(setting: Setting) -> str:
    default = setting.default
    shown = "unset" if default in (None, "") else str(int(default) if isinstance(default, bool) else default)
    marks = (" ●" if setting.agreed else "") + (" †" if setting.later else "") + (" ‡" if setting.needless else "")
    meaning = f"{setting.help}; not needed: {setting.needless}" if setting.needless else setting.help
    ways = " · ".join(f"`{way}`" for way in (setting.flag, setting.yaml) if way)
    return f"| `{setting.name}`{marks} | {shown} | {setting.accepted()} | {meaning} | {ways} |"


if __name__ == "__main__":
    print(generate_docs(), end="")
