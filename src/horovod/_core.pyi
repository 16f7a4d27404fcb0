"""Native engine.

The engine does not depend on frameworks, host names, ports or environment variables. Its configuration consists of
descriptors and numbers.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

KIND_ALLREDUCE: int
KIND_ALLGATHER: int
KIND_BROADCAST: int
KIND_ALLTOALL: int
KIND_REDUCESCATTER: int
KIND_BARRIER: int
WIRE_NONE: int
WIRE_FP16: int
WIRE_BF16: int
WIRE_INT8: int
DEVICE_HOST: int
DEVICE_CUDA: int

class Buffer:
    """Memory of the engine: the output of an allgather or alltoall, or a result of Engine.allocate().

    The memory supports the buffer protocol, as writable bytes.
    """

    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def address_of(buffer: object) -> int:
    """Return the address of the memory of an object with the buffer protocol.

    Raises:
        BufferError: If the object has no contiguous buffer.
    """

class Work:
    """Operation that has been submitted to the engine."""

    @property
    def name(self) -> str: ...
    def done(self) -> bool:
        """Return True if the operation has completed or failed, also on a device. Never blocks.

        Raises:
            HorovodInternalError: If it was launched on a device and has failed there.
        """

    def in_use(self) -> bool:
        """Return True if a device can still use the memory of a completed or failed operation. Never blocks."""

    def wait(self, timeout: float = -1.0) -> bool:
        """Block, without the GIL, until the operation is complete.

        Args:
            timeout: Seconds to wait; negative means no limit.

        Returns:
            False if the timeout expired first.

        Raises:
            ValueError, HorovodInternalError: If the operation failed.
        """

    def order(self, stream: int) -> None:
        """Make later work on a stream of the device wait for the result, without blocking the caller.

        The operation must be done. Tensors in host memory need no ordering. The tensors must stay valid until done()
        returns True, or until a later operation on the device frees them.
        """

    def copy_output(self, to_ptr: int, stream: int) -> None:
        """Copy the result of an allgather or alltoall to other memory of the device, on a stream.

        The operation must be done.
        """

    def submit_again(self, in_ptr: int, out_ptr: int) -> None:
        """Submit the same operation with other memory, without waiting.

        This object then represents the new operation. Sizes and output of the last operation are lost. The call is
        cheaper than Engine.submit(): it repeats no checks, and during a schedule it compares and allocates nothing.

        Args:
            in_ptr: Address of the input, as large as the first one. It must stay valid until the operation is done.
            out_ptr: Address of the output, which must be as large and as long-lived. There is no residual.

        Raises:
            ValueError: If the last operation is not complete, the name is in flight under another Work, or the process
                set was removed.
            HorovodInternalError: If called after shutdown or in a forked child, or if a peer was lost.
        """

    def run_again(self, in_ptr: int, out_ptr: int) -> None:
        """Submit the operation again like submit_again(), and wait until it is done.

        Raises:
            ValueError, HorovodInternalError: If submit_again() or wait() would raise it. The memory is no longer in use
                then.
            BaseException: If a signal handler raises it, such as KeyboardInterrupt. The engine can still use the memory
                then.
        """

    @property
    def sizes(self) -> list[int]:
        """Sizes of the result, which are valid once the operation is complete.

        For allgather, these are the first dimensions by rank of the process set. For alltoall, they are the received
        splits, for join [last rank], for add_process_set [id], and for remove_process_set [1 or 0].
        """

    @property
    def output(self) -> Buffer | None:
        """Result of an allgather or alltoall, which is valid once the operation is complete."""

class Repeat:
    """Operation that can be submitted again, with the arguments of its first submission.

    Attributes:
        source: Tensor that the operation reads, or None while it is not in flight.
        result: Tensor that it writes, or None while it is not in flight.
    """

    source: Any
    result: Any
    @property
    def work(self) -> Work: ...
    @property
    def engine(self) -> Any:
        """Engine of the operation, or another object if the operation is on a device."""

class Repeats:
    """Operations that repeat in every step; see horovod/torch/ops/repeats.py. All methods but run() hold the GIL."""

    def __init__(
        self,
        frontend: Any,
        idle: dict[Any, Repeat],
        handles: dict[int, Any],
        numbers: Iterator[int],
        tensor: type,
        parameter: type,
        empty_like: Callable[[Any], Any],
        global_set: Any,
        limit: int,
        hold: Callable[[Any], None],
        before_wait: list[Any],
        profiler: Any,
    ) -> None:
        """Store operations in ``idle``, keyed by name, and those in flight in ``handles``.

        Args:
            frontend: Object whose attribute ``engine`` is the current engine.
            idle: Stored operations, including those in flight. Without an entry, an operation is dropped.
            handles: Operations in flight, keyed by handle.
            numbers: Source of new handles.
            tensor: The type torch.Tensor or numpy.ndarray.
            parameter: The type torch.nn.Parameter, or the same as ``tensor``.
            empty_like: Function that returns a new tensor like its argument.
            global_set: Process set whose id never changes during a job.
            limit: Maximum number of names.
            hold: Function that keeps the tensors of an interrupted operation alive.
            before_wait: If it is not empty, nothing is done that waits.
            profiler: Object whose attribute ``_is_profiler_enabled`` is True while a profiler runs, or None.
        """

    def create(
        self,
        work: Work,
        name: Any,
        source: Any,
        op: int | None,
        prescale: float,
        postscale: float,
        process_set: Any,
    ) -> Repeat:
        """Return a Repeat for a Work that has been submitted with these arguments. ``source`` is its first tensor."""

    def take(
        self, name: Any, source: Any, op: int | None, prescale: float, postscale: float, process_set: Any
    ) -> Repeat | None:
        """Take the stored operation of this name.

        Returns:
            The operation, or None if there is none or an argument has changed. The checks of a first submission then
            report invalid arguments.
        """

    def submit(
        self,
        name: Any,
        source: Any,
        target: Any,
        op: int | None,
        prescale: float,
        postscale: float,
        process_set: Any,
        waits: bool = False,
    ) -> Repeat | None:
        """Take the stored operation and submit it again, from ``source`` into ``target`` or, if None, a new tensor.

        If ``waits`` is True, the caller must wait for an operation next, because the engine's thread stays asleep.

        Returns:
            The operation, or None, as for take().

        Raises:
            ValueError, HorovodInternalError: If Work.submit_again() would raise it.
        """

    def run(
        self, name: Any, source: Any, target: Any, op: int | None, prescale: float, postscale: float, process_set: Any
    ) -> Any:
        """Submit an operation again like submit(), wait for it, and put it back.

        Returns:
            The result. None, without any effect, if none fits or a wait must be recorded by a profiler.

        Raises:
            ValueError, HorovodInternalError: As Work.run_again().
        """

    def run_first(self, function: _F) -> _F:
        """Return the function ``allreduce_`` as a native callable that tries run() first."""

    def start_first(self, function: _F) -> _F:
        """Return the function ``allreduce_async_`` as a native callable that tries submit() first."""

    def finish_first(self, function: _F) -> _F:
        """Return the function ``synchronize`` as a native callable for handles of start_first() that have succeeded."""

    def settle(self, repeat: Repeat) -> bool:
        """Put an operation back if it has succeeded. Return False if it is in flight or has failed."""

    def put_back(self, repeat: Repeat) -> None:
        """Make an operation available for reuse after it has succeeded."""

class EngineConfig:
    """Configuration of an Engine, which takes ownership of the descriptors and closes them.

    Attributes:
        node_of: Number of each rank's shared-memory node. Nodes are numbered in the order in which they first appear.
        labels: Name of each rank in messages, such as "rank 3 (host worker-1, pid 4711)".
        segment_fd: Shared memory of the node, which has segment_bytes() zero bytes. -1 if the rank is alone on its
            node.
        event_fds: Non-blocking eventfds of the node's ranks, including this one, by local rank.
        parent_fd: Control link to the parent: the node's first rank, or for first ranks rank 0. -1 on rank 0.
        child_fds: Control links from the children, by rank.
        data_fds: Data sockets to ranks on other nodes, by rank.
        staging_bytes: Size of a rank's staging area in the segment. It is equal on all ranks of a node.
        fusion_threshold: Maximum bytes of a fused operation.
        timeout: Maximum seconds without progress within a collective.
        heartbeat: Seconds of silence after which another host counts as lost. 0 means never.
        stall_warning: Seconds until a stall is reported. 0 disables the warnings.
        stall_shutdown: Seconds until a stall ends the job. 0 means never.
        cuda_ipc: True if ranks of one host can access each other's GPU memory.
        cuda_library: Library of the CUDA driver. Empty for the loader's default.
        nccl_kinds: Kinds (KIND_*) of operations on GPU tensors that NCCL can execute.
        nccl_by_hosts: True to allreduce with NCCL within each host and with links between hosts; see
            core/engine/options.h.
        shared_gpu: True if ranks share GPUs intentionally, which disables a warning.
        nccl_library: NCCL's library. Empty to use a library that is already loaded, or else the candidates.
        nccl_candidates: Paths of NCCL's library, or names that the loader searches for.
        mpi_ranks: Number of each rank in MPI_COMM_WORLD, after mpi_start. Empty if the job does not use MPI.
        mpi_reduces: True if MPI computes the allreduces that it supports, in its own order of reduction.
        algorithm: Override of the algorithm table, such as "allreduce=ring". Empty for no override.
        tuning: Sizes that differ from the defaults, such as "chunk_bytes=65536,direct_bytes=8192".
        spins: Rounds of busy waiting before yielding. 0 if there are more ranks than cores.
        cpu: Core for the engine's thread. -1 for any core.
        log_level: Log level from 0 (trace) to 5 (fatal).
        recorder_entries: Number of entries in the flight recorder. 0 disables it.
        report_dir: Folder for reports and dumps of the job. Empty if none are written automatically.
        cipher_library: Path of the encryption library. Empty if no links are encrypted.
        cipher: Cipher, one of the results of ciphers(cipher_library).
    """

    def __init__(self) -> None: ...
    rank: int
    size: int
    node_of: list[int]
    labels: list[str]
    segment_fd: int
    event_fds: list[int]
    parent_fd: int
    child_fds: dict[int, int]
    data_fds: dict[int, int]
    staging_bytes: int
    ring_bytes: int
    fusion_threshold: int
    cycle_time_ms: float
    cache_capacity: int
    groups_apart: bool
    timeout: float
    heartbeat: float
    stall_warning: float
    stall_shutdown: float
    cuda_ipc: bool
    cuda_library: str
    nccl_kinds: list[int]
    nccl_by_hosts: bool
    shared_gpu: bool
    nccl_library: str
    nccl_candidates: list[str]
    mpi_ranks: list[int]
    mpi_reduces: bool
    algorithm: str
    tuning: str
    spins: int
    cpu: int
    log_level: int
    recorder_entries: int
    report_dir: str
    cipher_library: str
    cipher: str

    def encrypt(self, fd: int, send_key: bytes, receive_key: bytes) -> None:
        """Encrypt the link over this descriptor. Each direction of a connection has its own key of 32 bytes."""

TOPIC_WAITING: int
TOPIC_PYTHON: int
TOPIC_EXPLAIN: int
TOPIC_ANSWER: int
TOPIC_STACKS: int
TOPIC_UNNOTICED: int

def process_state(pid: int) -> str:
    """Return the kernel's data on a process of this host as JSON (core/trace/process_state.h), or an empty string."""

class Answerer:
    """Thread that reports this process's activity when rank 0 asks on TOPIC_EXPLAIN, even if Python is blocked."""

    def begun(self, number: int) -> None:
        """Confirm that Python has received question `number`, so that the engine does not take the stacks itself."""

    def give(self, number: int, stacks: str, json: str) -> None:
        """Answer a question of TOPIC_STACKS.

        Args:
            number: Number of the question, from the message's body.
            stacks: Stacks in faulthandler's format.
            json: Further information from Python, as JSON.
        """

    def noticed(self) -> None:
        """Confirm that rank 0's Python received a message of TOPIC_WAITING.

        Without this call, the engine reports after 5 s where Python is blocked.
        """

    def close(self) -> None:
        """Stop answering."""

class EndSignal:
    """Descriptor that becomes readable when the engine's job ends on this rank, for any reason."""

    def fileno(self) -> int: ...
    def failures(self) -> int:
        """Return ``Engine.failures()``, also after the engine was deleted."""

class Mailbox:
    """Queue of messages from other ranks, and on rank 0 of stall reports, for a separate thread."""

    def take(self, timeout: float = -1.0) -> tuple[int, int, bytes] | None:
        """Wait, without the GIL, for the next message.

        The body depends on the topic. TOPIC_WAITING (with each stall warning, and on request): JSON
        {"asked": bool, "waiting": [{"name", "set", "age" (s), "ready": [ranks], "missing": [ranks]}, ...]}.
        TOPIC_UNNOTICED (if this rank has waited for long without a report from rank 0): JSON {"text": str, "silent":
        [ranks whose engines do not answer]}. TOPIC_STACKS: the number of a question, in decimal.

        Args:
            timeout: Seconds to wait; negative means no limit.

        Returns:
            (from rank, topic, body), or None after the timeout, or if the mailbox is closed and empty.
        """

    def put(self, body: bytes) -> None:
        """Send a message to this rank itself, on TOPIC_PYTHON."""

    def close(self) -> None:
        """Stop receiving messages. The end of the job does this too."""

    @property
    def closed(self) -> bool: ...

class Timeline:
    """File that records events of this rank's operations (docs/timeline.md); see Engine.start_timeline."""

    def step(self, number: int) -> None:
        """Mark the beginning of a step. By default, a step begins with each round of a schedule."""

    @property
    def lost(self) -> int:
        """Number of events that were dropped because the disk was too slow."""

    @property
    def error(self) -> str:
        """Reason why writing the file has failed, or an empty string."""

class Engine:
    """Engine of one epoch: one membership of the job with fixed rank, size and links."""

    def __init__(self, config: EngineConfig) -> None:
        """Start the engine's thread. Raises ValueError for an inconsistent configuration."""

    def submit(
        self,
        kind: int,
        name: str,
        in_ptr: int,
        out_ptr: int,
        shape: tuple[int, ...],
        dtype: int,
        op: int,
        root: int,
        prescale: float,
        postscale: float,
        process_set: int,
        splits: list[int] | None,
        group: str,
        group_size: int,
        wire: int = 0,
        residual: int = 0,
        frontend: int = 0,
        device_kind: int = 0,
        device: int = 0,
        stream: int = 0,
    ) -> Work:
        """Submit an operation without waiting. The memory must stay valid until the operation is done.

        Args:
            kind: KIND_*.
            name: Full name, such as "allreduce.x". Unnamed operations (empty) are matched by a counter per process set
                and kind.
            in_ptr: Address of the input.
            out_ptr: Address of the output for allreduce, broadcast and reducescatter, which can be in_ptr. Ignored for
                allgather and alltoall, for which the engine allocates memory (Work.output).
            shape: Shape of the input.
            dtype: Number of the dtype.
            op: Number of the reduction, hvd.Average to hvd.Product.
            root: Global rank of the root.
            prescale: Factor applied before the reduction.
            postscale: Factor applied after the reduction.
            process_set: Id of the process set.
            splits: Rows for each rank of the set, for alltoall. None divides dimension 0 equally.
            group: Name of the group, or "". The group's operations start together when group_size members are submitted
                on every rank.
            group_size: Number of operations in the group.
            wire: Format in which values are sent (WIRE_*), for an allreduce of float32 with Average or Sum.
            residual: Address of as many float32 values, initially zeros, or 0. The compression error of this rank's
                contribution is stored there, and added to the next contribution.
            frontend: Number of the frontend. Operations of different frontends are never matched
                (src/horovod/common/frontends.py).
            device_kind: DEVICE_*, where the tensor is.
            device: Number of the device.
            stream: Handle of the stream on which the tensor was produced. On a device, the operation is done when the
                result is launched; see Work.order().

        Raises:
            ValueError: If the name is in flight, the process set is unknown or lacks this rank, the root is not in the
                set, or dtype, op or splits are invalid.
            HorovodInternalError: If called after shutdown, or if a peer was lost.
        """

    def run(
        self,
        kind: int,
        name: str,
        in_ptr: int,
        out_ptr: int,
        shape: tuple[int, ...],
        dtype: int,
        op: int,
        root: int,
        prescale: float,
        postscale: float,
        process_set: int,
        splits: list[int] | None,
        group: str,
        group_size: int,
        wire: int = 0,
        residual: int = 0,
        frontend: int = 0,
        device_kind: int = 0,
        device: int = 0,
        stream: int = 0,
    ) -> Work:
        """Submit an operation and execute it in this thread, instead of waking the engine's thread.

        The call returns when the operation is done, or after a fraction of a second. Then call Work.wait(), which
        raises the operation's errors. Arguments and exceptions are those of submit().
        """

    def join(self, frontend: int = 0) -> Work:
        """Contribute zeros to the frontend's allreduces until all ranks have joined.

        Other operations of the frontend fail until then.
        """

    def add_process_set(self, ranks: list[int], name: str = "") -> Work:
        """Add a process set on all ranks.

        All ranks must call this with the same sorted ranks. If the set has a name, only its members call this, with
        the same name, and the other ranks get the set too. The operation fails on all callers if their arguments
        differ, or if the set exists.
        """

    def remove_process_set(self, process_set: int) -> Work: ...
    def allocate(self, nbytes: int) -> Buffer | None:
        """Allocate zeroed, page-aligned memory in this rank's arena, which is shared by the node's ranks.

        An in-place allreduce needs no copies if the tensors of all ranks of a process set on one node are in such
        memory: each rank reduces its slice directly from all tensors and into all of them. Other ranks write to the
        memory during the operation, and for a moment after it has failed. The memory lives as long as the Buffer. Later
        engines treat it as ordinary memory. A forked child shares it with its parent, without copy-on-write.

        Returns:
            The memory, or None if the arena is full or there is none: if the rank is alone on its node, or with
            HOROVOD_ARENA_BYTES=0.
        """

    def process_sets(self) -> dict[int, list[int]]: ...
    def name_group(self, kind: int, process_set: int, frontend: int = 0) -> str:
        """Return a name for an unnamed group. All ranks of the process set must make these calls in the same order."""

    def ended(self) -> tuple[str, int] | None:
        """Return why the engine rejects operations, or None if it does not or this process has shut it down.

        Returns:
            ("lost", rank) if the connection to that rank broke, ("left", rank) if that rank called shutdown, or
            ("failed", -1) if no rank is known as the reason.
        """

    def failures(self) -> int:
        """Return the number of pending and rejected operations that failed because the job ended."""

    def give_up(self, why: str, rank: int = -1) -> None:
        """End the job because of information from outside, such as the launcher.

        Pending operations fail as after a lost peer, on this rank and on all that it can notify. The call does
        not block, works in any thread, and has no effect if the job has ended.

        Args:
            why: The reason, for messages.
            rank: The rank that is the reason; -1 for none.
        """

    def shutdown(self, reason: str = "") -> None:
        """Notify the peers, fail pending operations, stop the thread and close all descriptors. Idempotent.

        The call blocks for a few seconds at most. ``reason`` is part of the peers' messages.
        """

    def step(self, data_ns: int = 0) -> None:
        """Mark the end of a training step. The first call begins the first step.

        Args:
            data_ns: Time within the step that the program waited for data, in ns.
        """

    def find_steps(self) -> None:
        """Find steps automatically, for programs that run compiled graphs.

        Until step() is called, a step ends with each operation that is the last one of the schedule.
        """

    def take_steps(self) -> list[tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]]:
        """Return and remove the measured steps, oldest first. At most the last 4,096 steps are kept.

        Each is a tuple of:

        - number of steps that ended before it (0 for the first one, which has no recorded beginning)
        - time of its end, in ns of the monotonic clock
        - duration, in ns
        - data_ns, as given to step()
        - time that callers were blocked in Work.wait and Engine.run, in ns
        - time within collectives, in ns
        - part of it while no caller was blocked, in ns
        - bytes of this rank's tensors
        - bytes sent and received over this rank's links
        - number of operations executed
        - number of their tensors
        - time when a caller last began to wait, or left an operation to other threads, in ns of the monotonic clock; 0
          if this did not happen
        - number of submitted operations whose callers wait outside of the engine
        """

    def steps_made(self) -> int:
        """Return the number of steps that have ended so far, measured or not."""

    def wake_for_steps(self, mailbox: Mailbox, body: bytes) -> None:
        """Send ``body`` to ``mailbox`` on TOPIC_PYTHON when the next step ends after take_steps() returned none."""

    def start_timeline(
        self,
        path: str,
        host: str = "",
        mark_cycles: bool = False,
        keep: float = 0.0,
        first_step: int = -1,
        end_step: int = -1,
    ) -> Timeline:
        """Write a timeline of events from now on to a file.

        Args:
            path: Path of the file, which is overwritten.
            host: Name of this host, for the file.
            mark_cycles: True to mark the engine's cycles.
            keep: Seconds of which at least this much, and at most twice as much, is kept. Older events are in a second
                file with the suffix .before. 0 keeps everything.
            first_step: Step (``Timeline.step``) with which writing begins; -1 for the beginning.
            end_step: Step before which writing ends; -1 for no end.

        Raises:
            OSError: If the file cannot be written, is not a regular file, or another process writes it.
        """

    def stop_timeline(self, timeline: Timeline) -> None:
        """Write all recorded events to the file and close it. Idempotent."""

    def mark_ranges(self, library: str) -> None:
        """Mark executed operations as NVTX ranges, with this NVTX library. Raises OSError if it cannot be used."""

    def mailbox(self, rank: int) -> Mailbox:
        """Return a new mailbox that receives this rank's messages from now on until the job ends."""

    def leave_note(self, to: int, topic: int, body: bytes) -> bool:
        """Send a message to the mailboxes of another rank. After the end of the job, messages are discarded.

        Args:
            to: Receiving rank, if this is rank 0; -1 means all ranks, including rank 0. Other ranks always send to rank
                0.
            topic: TOPIC_*.
            body: Content, up to 1 MiB.

        Returns:
            False if the message is too long, or too many messages are waiting.
        """

    report_dir: str
    """The job's folder for reports and dumps; empty if there is none."""

    def end_signal(self) -> EndSignal:
        """Return the signal of the job's end, for a thread that polls descriptors. Raises OSError if none are left."""

    def answerer(self, rank: int, mailbox: Mailbox, signal: int, stacks_fd: int) -> Answerer:
        """Start an Answerer.

        Args:
            rank: This rank.
            mailbox: Mailbox through which the Answerer asks Python for its stacks.
            signal: Signal of faulthandler, used if Python does not answer; 0 for none.
            stacks_fd: Memfd to which faulthandler writes.
        """

    def watch_signal(self, signal: int, answerer: Answerer) -> bool:
        """Write a dump and the Python stacks each time the signal arrives, until shutdown.

        Returns:
            False if the program has its own handler for the signal, the recorder is off, or there is no folder.
        """

    def dump(self, directory: str = "", why: str = "the program asked for it") -> str:
        """Write the flight recorder to a file.

        Args:
            directory: Folder of the file. Default: ``report_dir``.
            why: The reason, which is part of the file.

        Returns:
            The path of the file.

        Raises:
            ValueError: If the recorder is off, or there is no folder.
            OSError: If the file cannot be written. The message names it.
        """

    def write_report(self, name: str, text: bytes) -> str:
        """Write or replace a file in ``report_dir`` and return its path. Raises OSError naming it."""

    def set_report(self, where: str) -> None:
        """Set the path of the report on waiting ranks that the message names if a stall ends the job (stall_shutdown).

        An empty path means that a receiver of TOPIC_WAITING will write a report. The end of the job then waits a few
        seconds for the report.
        """

    def ask_who_waits(self) -> None:
        """Send all waiting operations to rank 0's mailboxes on TOPIC_WAITING. Only rank 0 can do this."""

    def listen(self, part: str, on: bool) -> None:
        """Enable or disable a default observer, to measure its cost. Missing observers are ignored.

        Args:
            part: "recorder", "steps", "hangs" or "mailbox". Others raise ValueError.
            on: True to enable the observer, False to disable it.
        """

    def serve_frontends(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        """Provide this engine and these ranks and sizes to the frontends' native libraries, through frontend_api()."""

    tuning: str
    """Size thresholds at the start of the engine, as text."""

    def retune(self, fusion_threshold: int, tuning: str) -> None:
        """Change the fusion threshold and the size thresholds of all ranks, without waiting. Only rank 0 can do this.

        All ranks leave a running schedule at the same position, and switch with the next schedule. The results of
        reductions do not change.

        Args:
            fusion_threshold: Maximum bytes of a fused operation; 0 disables fusion.
            tuning: Size thresholds as in EngineConfig. All others get their defaults.

        Raises:
            ValueError: If called on another rank than 0, or if ``tuning`` is invalid.
        """

    def abandon(self) -> None:
        """Release the engine in a forked child without touching descriptors or threads."""

    def stats(self) -> dict[str, int | str | float]:
        """Return counters since the start.

        Among them: operations, bytes, negotiations, fused tensors, schedule hits and revocations; period_bytes and
        period_hash (bytes and a hash of the tensors in the last schedule); unstaged_bytes
        (reduced within arenas); arena_bytes (allocated); wire_bytes (data passed to links, after compression);
        scratch_bytes (memory of collectives over links); control_seconds (CPU time of the engine outside of
        collectives, in active turns, estimated from one in 16); control_messages_sent, control_bytes_sent,
        control_messages_received, control_bytes_received (between this rank and its neighbours in the control tree,
        including relayed messages).
        """

def frontend_api() -> int:
    """Return the address of the table of C functions for the frontends' native libraries (bindings/frontend/api.h)."""

def serve_frontend(frontend: int, in_job: bool) -> None:
    """Provide the engine to a frontend's native libraries, or report it as shut down if `in_job` is False.

    Before the first call, the libraries report Horovod as not initialized.
    """

def serve_no_frontends() -> None:
    """Report Horovod as not initialized to native libraries, until the next Engine.serve_frontends()."""

class Arrivals:
    """Base class of a bucket: its gradients that have arrived, and their version counters at that time.

    ``streams`` is None, or an object whose method ``note()`` is called for each gradient.
    """

    arrived: list[Any]
    versions: list[int]
    streams: Any
    waiting_for: int

class HookState:
    """State of a reducer's current or last backward pass, whose number is ``number``.

    In the thread with the id ``thread``, hooks record gradients. They call ``on_bucket(bucket)`` when a bucket's last
    gradient has arrived, and ``on_gradient(hook)`` for a gradient that they cannot just record.
    """

    thread: int
    number: int
    on_gradient: Callable[[Any], None]
    on_bucket: Callable[[Any], None]

class GradientHook:
    """Base class of the state of one parameter, which is also its gradient hook. ``state`` must be set first.

    Attributes:
        place: Index of the gradient within its bucket.
        last_pass: Number of the last backward pass that produced the gradient.
        deferred: True if the gradient must not be submitted before the end of backward. Also True until the ranks have
            agreed to submit it early.
        copy_on_arrival: True if the gradient should be copied to the bucket as soon as it arrives.
    """

    state: HookState
    bucket: Any
    place: int
    last_pass: int
    deferred: bool
    copy_on_arrival: bool
    def record(self, parameter: Any) -> None:
        """Record that the parameter's gradient has arrived in the bucket."""

def take_gradients(
    exchange: object,
    parameters: list[object],
    arrived: list[object],
    versions: list[int],
    views: list[object],
    addresses: list[int],
) -> bool:
    """Copy PyTorch's gradients on the CPU to a bucket, and make each ``parameter.grad`` its view of the bucket.

    Args:
        exchange: DLPack's table of C functions, ``torch.Tensor.__dlpack_c_exchange_api__``.
        parameters: Parameters.
        arrived: Gradient of each parameter when backward had produced it.
        versions: Version counter of each gradient at that time.
        views: View of the bucket for each gradient. Its version counter stays the same.
        addresses: Address of each view, if it is still in place.

    Returns:
        False, with nothing changed, if a gradient was modified or replaced since it arrived, a view is not in place, or
        a gradient is not a plain tensor like its view: dense, contiguous, not negated, without autograd history.

    Raises:
        ValueError: If the lists differ in length, or ``exchange`` is not such a table.
    """

def segment_bytes(local_size: int, staging_bytes: int, ring_bytes: int, arena_bytes: int = 0) -> int:
    """Return the size of the node's shared memory. The length of the file determines the size of the arenas."""

# Encryption between hosts (core/transport/crypto.h). The argument library is the path of OpenSSL's libcrypto (1.1.1 or
# later) or of libsodium. All functions raise ValueError if the library cannot be loaded or is a different one.

def ciphers(library: str) -> list[str]:
    """Return the usable ciphers among "aes-256-gcm" and "chacha20-poly1305", the fastest on this processor first.

    Ciphers are usable if the library has them and passes published test vectors. The list is empty if X25519 fails.
    """

def public_key(library: str, secret: bytes) -> bytes:
    """Return the public key for a secret of 32 random bytes (X25519, RFC 7748)."""

def shared_key(library: str, secret: bytes, theirs: bytes) -> bytes:
    """Return the shared key of this side's secret and the other side's public key.

    Raises:
        ValueError: If the public key is one that only an attacker would send.
    """

# Pure part of the core (core/plan). The argument collective is allreduce, broadcast, allgather, alltoall, reducescatter
# or barrier, and node_of is as in EngineConfig. All functions raise ValueError for unknown values, with the accepted
# values.

def algorithms(collective: str) -> list[str]:
    """Return the names of the algorithms for a collective, beginning with those in the algorithm table."""

def runs_in(collective: str, algorithm: str, node_of: list[int]) -> bool:
    """Return True if the algorithm can run on these nodes. Algorithms over links need at least two nodes."""

def choose_algorithm(
    collective: str, dtype: int, bytes: int, node_of: list[int], override: str = "", tuning: str = ""
) -> str:
    """Return the algorithm for an operation of ``bytes`` bytes per rank, from the table or the override.

    ``override`` (such as "allreduce=ring") and ``tuning`` are as in EngineConfig.
    """

def tuning(text: str = "") -> dict[str, int]:
    """Return the size thresholds and chunk sizes of collectives in bytes.

    Values in ``text``, such as "chunk_bytes=65536", override the defaults. Invalid values raise ValueError.
    """

def addition_order(collective: str, algorithm: str) -> str:
    """Return the order in which ranks are added.

    Returns:
        "fixed" for the fixed order, "by host" if the order depends on which ranks share a host, "by slice" if it also
        depends on the position in the data, or "" if the collective does not add.
    """

def cost_formula(collective: str, algorithm: str) -> str:
    """Return the cost as a formula of P ranks, H hosts, N bytes, a, b, g (alpha, beta, gamma).

    a' and b' are alpha and beta within a host.
    """

def cost_model() -> dict[str, float]:
    """Return the defaults of alpha, local_alpha (s per message), beta, local_beta and gamma (s per byte)."""

def predict(collective: str, algorithm: str, bytes: int, node_of: list[int], model: dict[str, float] = ...) -> float:
    """Return the time in seconds by the cost formula; 0 for one rank. ``model`` overrides defaults."""

def fuse(bytes: list[int], dtypes: list[int], threshold: int) -> list[list[int]]:
    """Return which allreduces of these sizes, ready at the same time, share an operation: lists of their indices.

    ``threshold``: maximum bytes of an operation; 0: no fusion.
    """

def isa() -> str: ...
def set_log_sink(sink: object) -> None:
    """Set the function sink(level: int, message: str) for log messages; None removes it.

    The engine's thread calls it with the GIL held.
    """

class MpiInfo:
    """State of MPI in this process."""

    @property
    def rank(self) -> int:
        """Rank in MPI_COMM_WORLD."""
    @property
    def size(self) -> int: ...
    @property
    def level(self) -> str:
        """Thread level that the library provides, such as MPI_THREAD_MULTIPLE."""
    @property
    def multiple(self) -> bool:
        """True if the thread level is MPI_THREAD_MULTIPLE."""
    @property
    def version(self) -> str:
        """Name and version of the library, such as Open MPI 5.0.11."""
    @property
    def path(self) -> str:
        """Path of the library's file."""
    @property
    def abi(self) -> str:
        """ABI of the library: that of Open MPI, of MPICH, or the MPI standard's."""
    @property
    def ours(self) -> bool:
        """True if mpi_start initialized MPI, and not the program."""

def mpi_start(library: str, launcher: str, one_thread: bool, patience: float) -> MpiInfo:
    """Load an MPI library and initialize MPI, unless the program has done so. Later calls return the existing state.

    Args:
        library: Path of the library.
        launcher: Launcher that started the process: "Open MPI", "MPICH" or "".
        one_thread: Whether to request MPI_THREAD_FUNNELED instead of MPI_THREAD_MULTIPLE.
        patience: Seconds to wait for the other processes.

    Raises:
        ValueError: If MPI cannot be used. The message contains the reason.
    """

def mpi_finish(seconds: float) -> bool:
    """Finalize MPI if mpi_start initialized it and all operations have ended.

    Returns:
        False if MPI_Finalize has not returned within this time; another call continues to wait.
    """
