"""Worker program of test_mpi_carrier.py: collectives on all dtypes, with digests that two jobs can compare.

`python carried.py FILE [WHAT]`: rank r writes its digests to FILE.r as JSON. WHAT is a comma-separated list of:

    print       rank r prints one digest of all, instead of FILE.r
    hosts:N     ranks act as if they were on hosts of N ranks each
    short       one size of tensors only
    again       repeat everything after shutdown and init
    mpi4py      use MPI through mpi4py before, between and after; `level:NAME` with this thread level
    early       call MPI_Finalize before shutdown
    late        call it after shutdown; init must then refuse
    kill:R      rank R dies by SIGKILL while the others are in a collective with it
    raise:R     rank R raises ValueError while the others wait for it
    after:R     rank R dies by SIGKILL after shutdown, when the others wait for it in MPI_Finalize
    leave       shutdown while operations are in flight, and init, several times
    sets        process sets, one of them removed and another one added
"""

import contextlib
import ctypes
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import horovod.numpy as hvd
from horovod.common.bootstrap import mpi

DTYPES = ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64", "bool", "bfloat16"]
SIZES = [1, 1000, 300_001]
FLOATS = {"float16", "float32", "float64", "bfloat16"}


def values(name, count, seed):
    """Return the values of a rank, the same in every run."""
    random = np.random.default_rng(seed)
    if name == "bool":
        return random.integers(0, 2, count).astype(bool)
    if name in FLOATS:
        dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
        return random.standard_normal(count).astype(dtype)
    return random.integers(np.iinfo(name).min // 4, np.iinfo(name).max // 4, count).astype(name)


def digest(array):
    array = np.ascontiguousarray(array)
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"


class Results:
    def __init__(self):
        self.digests = {}

    def add(self, name, result):
        assert name not in self.digests, name
        self.digests[name] = digest(result)


def collectives(out, prefix, sizes, process_set=hvd.global_process_set):
    ops = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}
    n, me = process_set.size(), process_set.rank()
    for dtype in DTYPES:
        for size in sizes:
            own = values(dtype, size, 100 * hvd.rank() + size % 97)
            at = f"{prefix}{dtype} {size}"
            for op in ops if size < 10_000 else ["sum"]:
                out.add(
                    f"allreduce {op} {at}", hvd.allreduce(own, op=ops[op], name=f"r{op}{at}", process_set=process_set)
                )
            if dtype != "bool":
                out.add(f"average {at}", hvd.allreduce(own, op=hvd.Average, name=f"a{at}", process_set=process_set))
            # Ranks have different numbers of rows, some none.
            rows = values(dtype, 3 * (size * me), 7 + me).reshape(-1, 3)
            out.add(f"allgather {at}", hvd.allgather(rows, name=f"g{at}", process_set=process_set))
            root = process_set.ranks[-1]
            out.add(f"broadcast {at}", hvd.broadcast(own, root, name=f"b{at}", process_set=process_set))
            splits = [(me + i) % 3 * (size // 3 + 1) for i in range(n)]
            sent = values(dtype, sum(splits), 11 + me)
            received, got = hvd.alltoall(sent, splits, name=f"t{at}", process_set=process_set)
            out.add(f"alltoall {at}", received)
            out.add(f"splits {at}", got)
            if dtype == "bool":
                continue
            many = values(dtype, 2 * size, 13 * me + 1).reshape(-1, 2)
            out.add(f"reducescatter {at}", hvd.reducescatter(many, op=hvd.Sum, name=f"s{at}", process_set=process_set))
    grouped = [values("float32", count, hvd.rank() + count) for count in (5, 70_000, 1)]
    for i, result in enumerate(
        hvd.grouped_allreduce(grouped, op=hvd.Average, name=f"{prefix}group", process_set=process_set)
    ):
        out.add(f"{prefix}grouped {i}", result)
    hvd.barrier(process_set=process_set)


def steps(out):
    """Repeat the same operations until they become a schedule."""
    for step in range(12):
        own = [values(dtype, 77, 31 * hvd.rank() + step) for dtype in ("float32", "int32", "bfloat16")]
        handles = [hvd.allreduce_async(each, op=hvd.Sum, name=f"step {i}") for i, each in enumerate(own)]
        for i, handle in enumerate(handles):
            out.add(f"step {step} {i}", hvd.synchronize(handle))


def process_sets(out, sizes):
    even = hvd.add_process_set(range(0, hvd.size(), 2))
    if even.included():
        collectives(out, "even ", sizes, even)
    hvd.remove_process_set(even)
    for round_ in range(2):
        pair = hvd.add_process_set([0, hvd.size() - 1])
        if pair.included():
            collectives(out, f"pair {round_} ", sizes[:1], pair)
        hvd.remove_process_set(pair)


def leave():
    for _ in range(3):
        handles = [hvd.allreduce_async(np.ones(1_000_000, np.float32), name=f"large {i}") for i in range(3)]
        hvd.allreduce(np.ones(4, np.float32), name="small")
        hvd.shutdown()
        for handle in handles:
            with contextlib.suppress(hvd.HorovodInternalError):
                hvd.synchronize(handle)
        hvd.init()
    assert hvd.allreduce(np.ones(4, np.float32), op=hvd.Sum)[0] == hvd.size()


def record_failure(error):
    """Also written to a file: a launcher that exits quickly may lose the ranks' last output."""
    text = f"rank {hvd.rank()} was told: {error}"
    print(text, flush=True)
    Path(f"{sys.argv[1]}.{hvd.rank()}.error").write_text(text)


def die(parts):
    action, _, rank = parts.partition(":")
    if hvd.rank() == int(rank):
        time.sleep(0.3)
        if action == "raise":
            raise ValueError("no more data")
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:  # makes it likely that most ranks are within one
            hvd.allreduce(np.ones(200_000, np.float32), op=hvd.Sum, name="large")
            if action == "raise":
                time.sleep(0.05)
    except hvd.HorovodInternalError as error:
        record_failure(error)
        raise


def main():
    path, parts = sys.argv[1], sys.argv[2].split(",") if len(sys.argv) > 2 else []
    for each in parts:
        if each.startswith("hosts:"):
            simulate_hosts(int(each[6:]))
    sizes = SIZES[1:2] if "short" in parts else SIZES
    level = next((each[6:] for each in parts if each.startswith("level:")), "multiple")
    if "mpi4py" in parts:
        import mpi4py

        mpi4py.rc.thread_level = level
        from mpi4py import MPI

        assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size
    out = Results()
    hvd.init(process_sets="dynamic" if "sets" in parts else None)
    rank = hvd.rank()
    out.digests["modes"] = [hvd.mpi_enabled(), hvd.gloo_enabled()]
    if hvd.mpi_enabled() and not hvd.gloo_enabled():
        sys.stdout.write(f"THREADS {hvd.mpi_threads_supported()}\n")
        sys.stdout.flush()
    for each in parts:
        if each.startswith(("kill", "raise")):
            die(each)
    collectives(out, "", sizes)
    steps(out)
    if "mpi4py" in parts:
        assert MPI.COMM_WORLD.allreduce(rank) == sum(range(hvd.size()))
    if "leave" in parts:
        leave()
    if "sets" in parts:
        process_sets(out, sizes)
    if "again" in parts:
        hvd.shutdown()
        hvd.init()
        collectives(out, "again ", sizes[:1])
    if "early" in parts:
        hvd.barrier()
        finalize()
        with pytest.raises(hvd.HorovodInternalError, match="the program has called MPI_Finalize"):
            hvd.allreduce(np.ones(3, np.float32), name="too late")
    hvd.shutdown()
    if f"after:{rank}" in parts:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if any(each.startswith("after") for each in parts):
        mpi.GRACE = 1.0
    if "late" in parts:
        finalize()
        with pytest.raises(ValueError, match="MPI_Finalize"):
            hvd.init()
    if "print" in parts:
        del out.digests["modes"]
        every = hashlib.sha256(json.dumps(out.digests).encode()).hexdigest()
        sys.stdout.write(f"DIGEST {rank} {len(out.digests)} {every}\n")
        return
    with open(f"{path}.{rank}", "w") as file:
        json.dump(out.digests, file)


def finalize():
    """Call MPI_Finalize through whichever library the program has."""
    assert ctypes.CDLL(os.environ["HOROVOD_MPI_LIBRARY"]).MPI_Finalize() == 0


def simulate_hosts(ranks):
    """Set variables as APART in test_mpi.py does, for several ranks on a host."""
    size, rank = told_size, int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"])
    local = min(ranks, size - rank // ranks * ranks)
    os.environ.update(
        HOROVOD_HOSTNAME=f"host{rank // ranks}",
        OMPI_COMM_WORLD_LOCAL_SIZE=str(local),
        OMPI_COMM_WORLD_LOCAL_RANK=str(rank % ranks),
        MPI_LOCALNRANKS=str(local),
        MPI_LOCALRANKID=str(rank % ranks),
    )


told_size = int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("PMI_SIZE") or 1)
main()
