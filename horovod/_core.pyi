"""The native engine.

It knows no framework, host name, port, secret or environment variable: it gets descriptors and numbers.
"""

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
DEVICE_HIP: int

class Buffer:
    """Memory of the engine, an output of allgather or alltoall or from Engine.allocate(); supports the buffer protocol
    (bytes, writable)."""

    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Work:
    """One submitted operation."""

    @property
    def name(self) -> str: ...
    def done(self) -> bool:
        """Complete, successfully or not, on a device as well? Never blocks. Raises HorovodInternalError where it was
        launched on a device and has failed since."""

    def in_use(self) -> bool:
        """May a device still use the memory of a complete work, whether it has failed or not? Never blocks."""

    def wait(self, timeout: float = -1.0) -> bool:
        """Blocks (without the GIL) until complete; False when `timeout` seconds (negative: no limit) passed first.

        Raises ValueError or horovod.common.exceptions.HorovodInternalError when the operation failed.
        """

    def order(self, stream: int) -> None:
        """What comes later on this stream of the device waits for the result; the caller does not. Of a done work; does
        nothing for one on host memory. The tensors must live until the result is there (done()), or until what frees
        them comes behind it on the device."""

    def copy_output(self, to_ptr: int, stream: int) -> None:
        """allgather, alltoall on a device: copies the result to memory of the device, on this stream. Of a done
        work."""

    def submit_again(self, in_ptr: int, out_ptr: int) -> None:
        """Announces the same request anew, with other memory, and returns at once. From then on this object stands for
        the new operation; what the last one gave (sizes, output) is gone.

        Cheaper than Engine.submit(): what has been checked once is not checked again, and while a schedule runs
        nothing is compared or allocated. The memory must be as large as the first one and stay valid until done; there
        is no residual.

        Raises ValueError while it is not complete, or for what changed since: a name in flight under another Work, a
        removed process set; HorovodInternalError after shutdown, in a forked child or when a peer was lost.
        """

    def run_again(self, in_ptr: int, out_ptr: int) -> None:
        """submit_again() for a caller that waits at once, as Engine.run() is to Engine.submit()."""

    @property
    def sizes(self) -> list[int]:
        """allgather: first dimensions by set rank; alltoall: received splits; join: [last rank]; add_process_set: [id];
        remove_process_set: [1 or 0]. Valid once complete."""

    @property
    def output(self) -> Buffer | None:
        """allgather, alltoall: the result. Valid once complete."""

class EngineConfig:
    """What an Engine is made from. Descriptors become the engine's: it closes them."""

    def __init__(self) -> None: ...
    rank: int
    size: int
    node_of: list[int]  # by rank: the shared-memory node it lives on; nodes are numbered in order of first appearance
    labels: list[str]  # by rank: how to name it in messages, e.g. "rank 3 (host worker-1, pid 4711)"
    segment_fd: int  # the node's shared memory (segment_bytes() long, zero-filled), -1 when I am alone on my node
    event_fds: list[int]  # by local rank on my node, my own included: non-blocking eventfds
    parent_fd: int  # control link to my parent (-1 at rank 0): the node's first rank; for those, rank 0
    child_fds: dict[int, int]  # control links from my children, by rank
    data_fds: dict[int, int]  # data sockets to ranks on other nodes, by rank
    staging_bytes: int  # a rank's staging area in the segment; equal on all ranks of a node
    ring_bytes: int
    fusion_threshold: int  # bytes
    cycle_time_ms: float
    cache_capacity: int
    groups_apart: bool
    timeout: float  # seconds without progress inside a collective
    heartbeat: float  # seconds of silence after which another host counts as lost; 0: never
    stall_warning: float  # seconds; 0: off
    stall_shutdown: float  # seconds; 0: never
    cuda_ipc: bool  # ranks of one host may use each other's memory on GPUs
    cuda_library: str  # of the CUDA driver; empty: as the loader finds it
    nccl_kinds: list[int]  # KIND_*: what NCCL may carry out on tensors of GPUs
    nccl_by_hosts: bool  # allreduce by NCCL inside each host and by links between hosts, see core/engine/options.h
    shared_gpu: bool  # ranks are meant to share GPUs: no warning that they do
    nccl_library: str  # of NCCL; empty: one that is loaded already, then the candidates
    nccl_candidates: list[str]  # paths, or names for the loader to find
    mpi_ranks: list[int]  # in MPI_COMM_WORLD, by rank, after mpi_start; empty: MPI does not carry the job
    mpi_reduces: bool  # MPI reduces what it can in allreduces, in its own order
    algorithm: str  # override, e.g. "allreduce=ring"; empty: the table decides
    tuning: str  # sizes that differ from the defaults, e.g. "chunk_bytes=65536,direct_bytes=8192"
    spins: int  # rounds of busy waiting before yielding; 0 when ranks outnumber cores
    cpu: int  # core for the engine thread, -1: any
    log_level: int  # 0 trace .. 5 fatal
    recorder_entries: int  # of the flight recorder; 0: it is off
    report_dir: str  # where reports and dumps of this job go; empty: nowhere by themselves
    cipher_library: str  # path of the library that encrypts the links with keys; empty where there are none
    cipher: str  # one of ciphers(cipher_library)

    def encrypt(self, fd: int, send_key: bytes, receive_key: bytes) -> None:
        """Has the link over this descriptor encrypted. Keys have 32 bytes, one for each direction of one connection."""

TOPIC_WAITING: int
TOPIC_PYTHON: int
TOPIC_EXPLAIN: int
TOPIC_ANSWER: int
TOPIC_STACKS: int
TOPIC_UNNOTICED: int

def process_state(pid: int) -> str:
    """What the kernel says of a process of this host, as JSON (core/trace/process_state.h); empty: there is none."""

class Answerer:
    """Says what this process is doing when rank 0 asks on TOPIC_EXPLAIN, whether Python runs or not."""

    def begun(self, number: int) -> None:
        """It has been heard that it asked: Python runs, so the engine does not take its stacks from outside."""

    def give(self, number: int, stacks: str, json: str) -> None:
        """What it asked for on TOPIC_STACKS, with the number in the body: the stacks as faulthandler writes them, and
        JSON with whatever else Python knows."""

    def noticed(self) -> None:
        """Rank 0's Python has heard on TOPIC_WAITING who waits. Without that, the engine says after 5 s that Python
        does not run, and where it is."""

    def close(self) -> None:
        """Nothing is answered any more."""

class EndSignal:
    """Readable once the job of an engine is over on this rank, however that came."""

    def fileno(self) -> int: ...
    def failures(self) -> int:
        """``Engine.failures``, also when the engine is no more."""

class Mailbox:
    """Notes from other ranks, and on rank 0 who waits for whom, for a thread that may take its time."""

    def take(self, timeout: float = -1.0) -> tuple[int, int, bytes] | None:
        """(from rank, topic, body) of the next letter, waiting for it (without the GIL) for ``timeout`` seconds,
        negative: without a limit. None: none came, or the box is closed and empty.

        On TOPIC_WAITING, with each warning about a stall and when somebody asked, the body is the JSON
        {"asked": bool, "waiting": [{"name", "set", "age" (s), "ready": [ranks], "missing": [ranks]}, ...]}.
        On TOPIC_UNNOTICED, when this rank has waited for long and rank 0 says nothing of it: {"text": str, "silent":
        [ranks whose engines do not answer]}. On TOPIC_STACKS the body is the number of a question, in decimal.
        """

    def put(self, body: bytes) -> None:
        """A letter of this rank to itself, on TOPIC_PYTHON."""

    def close(self) -> None:
        """Nothing comes any more. The end of the job does it, too."""

    @property
    def closed(self) -> bool: ...

class Timeline:
    """A file that gets what happens to this rank's operations (docs/timeline.md); see Engine.start_timeline."""

    def step(self, number: int) -> None:
        """A step of the program begins. As long as nobody says so, one begins with each round of a schedule."""

    @property
    def lost(self) -> int:
        """Events that found no room because too much was waiting for the disk."""

    @property
    def error(self) -> str:
        """Why the file takes no more; empty while it does."""

class Engine:
    """One epoch of membership: made for (rank, size, links), used, shut down, thrown away."""

    def __init__(self, config: EngineConfig) -> None:
        """Starts the engine thread. Raises ValueError for an inconsistent configuration."""

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
        face: int = 0,
        device_kind: int = 0,
        device: int = 0,
        stream: int = 0,
    ) -> Work:
        """Announces one operation and returns at once. The memory must stay valid until the work is done.

        name: empty for an unnamed operation (matched by a counter per process set and kind). Full names such as
        "allreduce.x" are the caller's business. shape: of the input. out_ptr: allreduce, broadcast, reducescatter:
        output memory (may equal in_ptr); allgather, alltoall: ignored, the engine allocates (Work.output). op:
        hvd.Average .. hvd.Product. root: global rank. splits: alltoall, rows for each set rank; None cuts dim 0 into
        equal parts. group: name of the group or ""; the group's operations start together once group_size members are
        submitted on every rank. wire: allreduce of float32 with Average or Sum: what its values are while they travel
        (WIRE_*); residual: address of as many float32, zeros at first, or 0: what coding takes from this rank's
        contribution is left there and added to the next one. face: names, groups and unnamed operations of different
        faces never meet (horovod/common/faces.py). device_kind (DEVICE_*), device, stream: where the tensor is, and the
        stream (its handle as an integer) on which the caller has put it there; on a device the work is done when the
        result is launched, see Work.order().

        Raises ValueError for a name in flight, an unknown process set or one without this rank, a root outside the
        set, a bad dtype, op or splits; HorovodInternalError after shutdown or when a peer was lost.
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
        face: int = 0,
        device_kind: int = 0,
        device: int = 0,
        stream: int = 0,
    ) -> Work:
        """submit() for a caller that waits at once: it does the work itself instead of waking the engine's thread.

        Returns when the operation is done or after a fraction of a second, so Work.wait() has to follow; it tells of
        errors. Raises what submit() raises."""

    def join(self, face: int = 0) -> Work:
        """Until all ranks have joined, this one counts as zeros in the allreduces of the face, whose other operations
        fail."""

    def add_process_set(self, ranks: list[int]) -> Work:
        """All ranks must call it, with the same (sorted) ranks. Fails on all when they differ or the set exists."""

    def remove_process_set(self, process_set: int) -> Work: ...
    def allocate(self, nbytes: int) -> Buffer | None:
        """``nbytes`` zeroed bytes in this rank's arena in the memory that the node's ranks share, page aligned; None
        when there is no (more) room or no such memory: alone on the node, HOROVOD_ARENA_BYTES=0.

        An allreduce in place on tensors that live there on every rank of a process set on one node needs no copies:
        each rank reduces its slice straight from all the tensors and into all of them. While one runs, neighbours write
        into the memory; after one failed they may do so for a moment still. The memory lives as long as the Buffer,
        for later engines it is ordinary memory. A forked child shares it with its parent (no copy on write)."""

    def process_sets(self) -> dict[int, list[int]]: ...
    def name_group(self, kind: int, process_set: int, face: int = 0) -> str:
        """A name for a group that has none: groups of a kind are matched by the order in which the ranks of a set ask
        for it."""

    def ended(self) -> tuple[str, int] | None:
        """Why operations are refused; None while they are not, and after this process's own shutdown.

        ("lost", rank): the connection to that rank broke; ("left", rank): it has called shutdown; ("failed", -1): no
        rank is known to be the reason.
        """

    def failures(self) -> int:
        """How many operations the end of the job has made fail so far: those under way, and those refused since."""

    def give_up(self, why: str, rank: int = -1) -> None:
        """The job is over, as somebody outside knows, with ``rank`` (-1: none) as the reason: what is pending fails as
        when a peer is lost, here and where the peers can be told. Any thread; does not wait. No effect once the job has
        ended."""

    def shutdown(self, reason: str = "") -> None:
        """Tells the peers (naming this rank and `reason`), fails what is pending, stops the thread, closes every
        descriptor. Blocks at most a few seconds. May be called again."""

    def step(self, data_ns: int = 0) -> None:
        """A step of training ends here; the first call begins the first one. ``data_ns``: of its time, what the program
        waited for its data."""

    def find_steps(self) -> None:
        """As long as step() has not been called, a step ends with each operation that is the last one of the schedule:
        for programs that run compiled graphs."""

    def take_steps(self) -> list[tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]]:
        """The measured steps that have not been taken, oldest first, the last 4,096 of them at most. Each: its number
        (how many ended before it; that of the first one, whose beginning nobody saw, is 0), when it ended (ns of the
        monotonic clock), its length, its data_ns, how long a caller was blocked in Work.wait and Engine.run, the time
        within collectives, that of it while no caller was blocked (all in ns), bytes of this rank's tensors, bytes that
        had to cross this rank's links, operations carried out, tensors that they had, when a caller last began to wait
        or left an operation to others (ns of the monotonic clock, 0: never), and how many operations were submitted
        whose callers wait elsewhere, unseen."""

    def steps_made(self) -> int:
        """Return how many steps have ended so far, measured or not."""

    def wake_for_steps(self, mailbox: Mailbox, body: bytes) -> None:
        """``mailbox`` gets ``body``, on TOPIC_PYTHON, with the first step that ends after take_steps() had none."""

    def start_timeline(
        self,
        path: str,
        host: str = "",
        mark_cycles: bool = False,
        keep: float = 0.0,
        first_step: int = -1,
        end_step: int = -1,
    ) -> Timeline:
        """Writes what happens from now on to ``path``, which is emptied. ``keep``: 0, or seconds: one to two times as
        many are kept, the older ones in a file named .before. ``first_step``, ``end_step``: only what happens from one
        step on until the other begins (``Timeline.step``); -1: everything. Raises OSError when the file cannot be
        written, is no regular file, or another process writes it."""

    def stop_timeline(self, timeline: Timeline) -> None:
        """Brings what has been taken down to the file and closes it. May be repeated."""

    def mark_ranges(self, library: str) -> None:
        """From now on what is carried out is a range of NVTX, whose library that is. OSError when it cannot be used."""

    def mailbox(self, rank: int) -> Mailbox:
        """A new one, which gets what this rank hears from now on, until the job ends."""

    def leave_note(self, to: int, topic: int, body: bytes) -> bool:
        """A note for mailboxes of other ranks: of rank 0 to rank ``to``, or to all with -1, rank 0 among them; of
        others always to rank 0. False: it is longer than 1 MiB, or too many wait to be sent. After the job's end it is
        lost."""

    report_dir: str
    """The job's folder for reports and dumps; empty: there is none."""

    def end_signal(self) -> EndSignal:
        """For a thread that sleeps on descriptors. Raises OSError when there are none left."""

    def answerer(self, rank: int, mailbox: Mailbox, signal: int, stacks_fd: int) -> Answerer:
        """One that asks for Python's stacks through ``mailbox``, and takes them by faulthandler's handler for
        ``signal`` (0: there is none), which writes to the memfd ``stacks_fd``, when they do not come."""

    def watch_signal(self, signal: int, answerer: Answerer) -> bool:
        """Has ``dump`` done, and the stacks written beside it, whenever the signal comes, until shutdown. False: the
        program has a handler of its own for it, the recorder is off, or there is no folder."""

    def dump(self, directory: str = "", why: str = "the program asked for it") -> str:
        """Writes what the flight recorder has to a file in ``directory``, by default ``report_dir``; its path. Raises
        ValueError when the recorder is off or no folder is known, OSError naming the path."""

    def write_report(self, name: str, text: bytes) -> str:
        """Replaces the file of this name in ``report_dir``; its path. Raises OSError naming it."""

    def set_report(self, where: str) -> None:
        """An end of the job for waiting too long (stall_shutdown) tells from now on that this is where to read what
        ranks were doing. Empty: there is no report yet, but who hears on TOPIC_WAITING will write one, for which such
        an end waits some seconds."""

    def ask_who_waits(self) -> None:
        """Rank 0: mailboxes get a letter on TOPIC_WAITING, of all that waits now. No effect on others."""

    def listen(self, part: str, on: bool) -> None:
        """Lets an observer that is there by default hear no more, or again: "recorder", "steps", "hangs" or "mailbox".
        For measuring what they cost; no effect where it is not there. Raises ValueError for others."""

    def serve_faces(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        """From now on this engine and these places are what native libraries of other faces get through face_api()."""

    def abandon(self) -> None:
        """After fork in a child: forget everything without touching descriptors or threads."""

    def stats(self) -> dict[str, int | str | float]:
        """Counters since start: operations, bytes, negotiations, fused tensors, schedule hits and revocations,
        unstaged_bytes (reduced within the arenas), arena_bytes (allocated), wire_bytes (of data, handed to links, which
        compression makes fewer), scratch_bytes (held by collectives over links), control_seconds (CPU time of the
        engine beside collectives, in turns in which something happened: estimated from one in 16),
        control_messages_sent, control_bytes_sent, control_messages_received, control_bytes_received (of the control
        tree, between this rank and its neighbours there, what it relays among them), ..."""

def face_api() -> int:
    """Address of the table of C functions for native libraries of other faces (bindings/face/api.h)."""

def serve_face(face: int, in_job: bool) -> None:
    """Native libraries of this face get the engine from now on, or are told that it was shut down. At first they are
    told that it is not initialised."""

def serve_no_faces() -> None:
    """Those libraries are told that Horovod is not initialised, until the next Engine.serve_faces()."""

def segment_bytes(local_size: int, staging_bytes: int, ring_bytes: int, arena_bytes: int = 0) -> int:
    """Length of the node's shared memory. Its arenas are as large as the file is longer than it would be without."""

# Encryption between hosts (core/transport/crypto.h). library: path of OpenSSL's libcrypto, 1.1.1 or later, or of
# libsodium; all raise ValueError naming it when it cannot be loaded or is something else.

def ciphers(library: str) -> list[str]:
    """Of "aes-256-gcm" and "chacha20-poly1305" those that the library has and that give the right results for published
    examples, the faster one on this processor first. None at all when it fails with X25519."""

def public_key(library: str, secret: bytes) -> bytes:
    """The public key of 32 random bytes (X25519, RFC 7748)."""

def shared_key(library: str, secret: bytes, theirs: bytes) -> bytes:
    """What both sides get of one's own secret and the other's public key. Raises ValueError for public keys that no
    honest side sends."""

# The core's pure part (core/plan). collective: allreduce, broadcast, allgather, alltoall, reducescatter or barrier.
# node_of: by rank, as in EngineConfig. All raise ValueError naming what they do not know and what is accepted.

def algorithms(collective: str) -> list[str]:
    """Names of the algorithms that exist for a collective, those of the table first."""

def runs_in(collective: str, algorithm: str, node_of: list[int]) -> bool:
    """Can the algorithm run in this world? Those over links cannot where all ranks share memory."""

def choose_algorithm(
    collective: str, dtype: int, bytes: int, node_of: list[int], override: str = "", tuning: str = ""
) -> str:
    """What the table, or ``override`` ("allreduce=ring"), takes for an operation of ``bytes`` bytes on each rank.
    ``tuning`` as in EngineConfig."""

def tuning(text: str = "") -> dict[str, int]:
    """The sizes at which collectives change their ways, in bytes, with those in ``text`` ("chunk_bytes=65536") in place
    of the defaults. ValueError naming a part that is not accepted."""

def addition_order(collective: str, algorithm: str) -> str:
    """In which order ranks are added. "fixed": in the project's one order; "by host": it depends on who shares a host;
    "by slice": also on where in the data a number lies; "": this collective adds nothing."""

def cost_formula(collective: str, algorithm: str) -> str:
    """In P ranks, H hosts, N bytes, a, b, g (alpha, beta, gamma) and a', b' (the same inside a host)."""

def cost_model() -> dict[str, float]:
    """Defaults of alpha, local_alpha (seconds a message), beta, local_beta, gamma (seconds a byte)."""

def predict(collective: str, algorithm: str, bytes: int, node_of: list[int], model: dict[str, float] = ...) -> float:
    """Seconds by the formula; parameters that ``model`` lacks have their defaults. 0 for one rank."""

def isa() -> str: ...
def set_log_sink(sink: object) -> None:
    """sink(level: int, message: str), called from the engine thread with the GIL held; None removes it."""

class MpiInfo:
    """MPI in this process."""

    @property
    def rank(self) -> int:
        """In MPI_COMM_WORLD."""
    @property
    def size(self) -> int: ...
    @property
    def level(self) -> str:
        """The thread level that the library has granted, as in MPI_THREAD_MULTIPLE."""
    @property
    def multiple(self) -> bool:
        """Is it that?"""
    @property
    def version(self) -> str:
        """As in Open MPI 5.0.11."""
    @property
    def path(self) -> str:
        """Of the library's file."""
    @property
    def abi(self) -> str:
        """Whose numbers and handles it has: Open MPI, MPICH, or the standard ABI of MPI."""
    @property
    def ours(self) -> bool:
        """Was it begun by mpi_start, and not by the program?"""

def mpi_start(library: str, launcher: str, one_thread: bool, patience: float) -> MpiInfo:
    """Loads the library at this path and begins MPI, or joins what the program has begun; later calls give what there
    is. `launcher`: whose has started the process, "Open MPI", "MPICH" or "". Waits for the other processes for
    `patience` seconds.

    Raises ValueError where MPI cannot be used, naming the reason.
    """

def mpi_finish(seconds: float) -> bool:
    """Ends MPI where mpi_start has begun it and every operation has ended. False: MPI_Finalize has not returned within
    so many seconds; another call goes on waiting."""
