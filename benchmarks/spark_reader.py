"""Measure how fast ranks read an estimator's files, compared with a plain pyarrow loop, and how much memory they use.

    python benchmarks/spark_reader.py [--megabytes 1024] [--ranks 2] [--repeats 5]

It writes rows of 1,000 floats and a label to this host's disk, once as usual Parquet lists, and once like the
estimators' tasks. Then ranks (processes) repeatedly read their part of an epoch in one of four ways:

    pyarrow   iter_batches over every n-th row group of the lists, as NumPy arrays, without shuffling or prefetching
    lists     like an estimator's rank in fit_on_parquet: sharded, shuffled, with prefetching
    group     like lists, from a file of lists with a single row group
    reader    like an estimator's rank in fit: from the estimator's own files

Throughput is the bytes of all arrays divided by the time of the slowest rank. Memory is the largest peak of resident
memory of a rank, including Python, NumPy and pyarrow. Files are in the page cache, so the disk is not measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

WIDTH = 1000
BATCH = 256
WAYS = ("pyarrow", "lists", "group", "reader")


def write(folder: str, megabytes: int) -> int:
    """Write Parquet files with `megabytes` MB of arrays, in the layout that a Spark task writes.

    Returns:
        The number of rows.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    from horovod.spark.common.columns import Column
    from horovod.spark.common.parquet_parts import write_part
    from horovod.spark.common.store import LocalStore

    rows = megabytes * 1_000_000 // (4 * WIDTH)
    columns = [Column("features", "list", "float32", 1, (WIDTH,)), Column("label", "number", "int64", 0, ())]
    random = np.random.default_rng(0)

    def batches(count: int) -> Iterator[Any]:
        while count:
            size = min(count, 5000)
            values = pa.array(random.standard_normal(size * WIDTH, np.float32))
            lists = pa.ListArray.from_arrays(np.arange(0, size * WIDTH + 1, WIDTH, dtype=np.int32), values)
            labels = pa.array(random.integers(0, 10, size))
            yield pa.RecordBatch.from_arrays([lists, labels], ["features", "label"])
            count -= size

    store, files = LocalStore(folder), 8
    os.mkdir(f"{folder}/lists")
    for part in range(files):
        results = list(batches(rows // files))
        list(write_part(iter(results), store, [f"{folder}/reader"], columns, part))
        table = pa.Table.from_batches(results)
        parquet.write_table(table, f"{folder}/lists/{part}.parquet", row_group_size=1000, use_dictionary=["label"])
    one_row_group(f"{folder}/lists", f"{folder}/group")
    return rows // files * files


def one_row_group(source: str, target: str) -> None:
    """Copy the rows of all files in a folder to a single file with one row group, in a new folder."""
    from pyarrow import parquet

    os.mkdir(target)
    rows = parquet.read_table(source)
    parquet.write_table(rows, f"{target}/0.parquet", row_group_size=rows.num_rows, use_dictionary=["label"])


def plain(folder: str, rank: int, ranks: int) -> Iterator[Any]:
    import glob

    from pyarrow import parquet

    number = 0
    for path in sorted(glob.glob(f"{folder}/lists/*.parquet")):
        with parquet.ParquetFile(path) as file:
            groups = [group for group in range(file.num_row_groups) if (number + group) % ranks == rank]
            number += file.num_row_groups
            for batch in file.iter_batches(BATCH, row_groups=groups):
                values = batch.column("features").flatten().to_numpy().reshape(-1, WIDTH)
                yield {"features": values, "label": batch.column("label").to_numpy()}


def horovod_batches(folder: str, rank: int, ranks: int) -> Iterator[Any]:
    from horovod.spark.common.datamodule import ParquetDataModule
    from horovod.spark.common.reader import open_existing
    from horovod.spark.common.store import LocalStore

    table = open_existing(LocalStore(folder), folder, {}, False)
    module = ParquetDataModule(
        train_dir=folder, val_dir="", train_batch_size=BATCH, cur_shard=rank,
        shard_count=ranks, train_table=table,
    )  # fmt: skip
    with module:
        yield from islice(module.train_batches(), table.steps(ranks, BATCH))


def rank_reads(kind: str, folder: str, rank: int, ranks: int, barrier: Any, results: Any) -> None:
    batches = plain(folder, rank, ranks) if kind == "pyarrow" else horovod_batches(f"{folder}/{kind}", rank, ranks)
    total = 0.0
    size = 0
    # Warm up by importing modules and reading the files' footers.
    first = next(batches)
    barrier.wait(120)
    begin, computed = time.perf_counter(), time.process_time()
    for batch in batches:
        size += batch["features"].nbytes
        # Use the values, so that the measured time includes reading them from memory.
        total += float(batch["features"][:, 0].sum())
    seconds = time.perf_counter() - begin
    del first
    results.put((seconds, time.process_time() - computed, size, peak_megabytes()))


def peak_megabytes() -> float:
    """Return the peak resident memory of this process in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def measure(kind: str, folder: str, ranks: int) -> tuple[float, float, float]:
    """Return the total throughput in MB/s, the CPU seconds per GB, and the largest peak memory of any rank in MB."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(ranks), context.Queue()
    workers = [
        context.Process(target=rank_reads, args=(kind, folder, rank, ranks, barrier, results)) for rank in range(ranks)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join(60)
    size = sum(own for _, _, own, _ in found)
    speed = size / 1e6 / max(seconds for seconds, *_ in found)
    return speed, sum(cpu for _, cpu, _, _ in found) / (size / 1e9), max(memory for *_, memory in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024, help="of the arrays (1024)")
    parser.add_argument("--ranks", type=int, default=2, help="processes that read (2)")
    parser.add_argument("--repeats", type=int, default=5, help="of each way, in turn (5)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="horovod-reader-") as folder:
        rows = write(folder, args.megabytes)
        print(f"{rows} rows, {rows * WIDTH * 4 / 1e6:.0f} MB of arrays, {args.ranks} ranks, batches of {BATCH} rows")
        found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in WAYS}
        for _ in range(args.repeats):
            for kind in WAYS:
                found[kind].append(measure(kind, folder, args.ranks))
    base = statistics.median(speed for speed, *_ in found["pyarrow"])
    print(f"{'':10}{'MB/s, median':>14}{'least':>8}{'most':>8}{'of pyarrow':>12}{'CPU s/GB':>10}{'memory, MB':>12}")
    for kind, all_ in found.items():
        speeds, cpu, memory = zip(*all_, strict=True)
        middle = statistics.median(speeds)
        print(
            f"{kind:10}{middle:14.0f}{min(speeds):8.0f}{max(speeds):8.0f}{middle / base:12.0%}"
            f"{statistics.median(cpu):10.2f}{max(memory):12.0f}"
        )


if __name__ == "__main__":
    main()
