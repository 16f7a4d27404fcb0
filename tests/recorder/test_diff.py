"""The first divergence between files of flight recorders."""

import json
import os
import subprocess
import sys

import pytest

from horovod.recorder.__main__ import main


class Ranks:
    """Writes the records of each rank."""

    def __init__(self, folder, size=2):
        self.folder, self.size, self.entries = folder, size, {rank: [] for rank in range(size)}

    def add(self, rank, state, name, position=0, **more):
        number = len(self.entries[rank])
        base = {
            "number": number, "what": state, "begin": number, "end": number, "name": name, "kind": "allreduce",
            "dtype": "float32", "op": "sum", "set": 0, "face": 0, "shape": [4], "dimensions": 1, "count": 1,
            "bytes": 16, "schedule": "0", "position": position, "guarded": False,
        }  # fmt: skip
        self.entries[rank].append({**base, **more})

    def done(self, names, **more):
        for position, name in enumerate(names):
            for rank in self.entries:
                self.add(rank, "announced", name, **more)
                self.add(rank, "carried out", name, position, **more)

    def write(self, *, without=()):
        for rank, entries in self.entries.items():
            if rank in without:
                continue
            head = {
                "horovod": "recorder", "version": 1, "rank": rank, "size": self.size, "label": f"rank {rank} (host a)",
                "pid": 1, "why": "rank 1 was lost\nmore", "monotonic_ns": 10**10, "unix_ns": 0,
            }  # fmt: skip
            lines = [json.dumps(line) for line in [head, *entries]]
            (self.folder / f"recorder.rank{rank}.jsonl").write_text("\n".join(lines) + "\n")


def output(folder, capsys, code=1):
    assert main(["diff", str(folder)]) == code
    return capsys.readouterr().out.splitlines()


def test_no_divergence(tmp_path, capsys):
    ranks = Ranks(tmp_path)
    ranks.done(["a", "b", "a"])
    ranks.write()
    lines = output(tmp_path, capsys, 0)
    assert lines[0].startswith("rank 0 (host a): 6 entries, written because: rank 1 was lost; the last operation ended")
    assert lines[-1].startswith("no divergence")


def test_the_order_of_requests(tmp_path, capsys):
    ranks = Ranks(tmp_path, 3)
    ranks.done(["x"])
    for rank, names in enumerate(["ab", "ba", "ab"]):
        for name in names:
            ranks.add(rank, "announced", name)
    ranks.write()
    assert output(tmp_path, capsys)[-3:] == [
        "first divergence: after operation 0, the last that all carried out, ranks announce different operations",
        "  ranks 0, 2: allreduce 'a' (float32[4], sum)",
        "  rank 1: allreduce 'b' (float32[4], sum)",
    ]


def test_a_rank_without_requests(tmp_path, capsys):
    ranks = Ranks(tmp_path)
    ranks.done(["x"])
    ranks.add(0, "announced", "y")
    ranks.write()
    lines = output(tmp_path, capsys)
    assert lines[-2:] == ["  rank 0: allreduce 'y' (float32[4], sum)", "  rank 1: nothing"]


def test_shapes_that_differ(tmp_path, capsys):
    ranks = Ranks(tmp_path)
    ranks.done(["y", "y"])
    for rank, shape in enumerate([[4], [5]]):
        ranks.add(rank, "announced", "y", shape=shape)
        ranks.add(rank, "failed", "y")
        ranks.add(rank, "announced", "y")  # and again, after that
    ranks.write()
    assert output(tmp_path, capsys)[-3:] == [
        "first divergence: 'y' was announced differently, and failed on all ranks",
        "  rank 0: allreduce 'y' (float32[4], sum)",
        "  rank 1: allreduce 'y' (float32[5], sum)",
    ]


def test_rings_of_different_lengths_and_ranks_without_a_file(tmp_path, capsys):
    ranks = Ranks(tmp_path, 3)
    for position in range(9):
        for rank in range(3):
            if position >= 3 * rank:
                ranks.add(rank, "carried out", f"x{position % 2}", position)
    ranks.write(without=[2])
    lines = output(tmp_path, capsys, 0)
    assert "not there: rank 2" in lines


@pytest.mark.parametrize("text", ["", "{}\n", "no json\n", '{"horovod":"recorder"}\n', "[1]\n"])
def test_invalid_dumps(tmp_path, capsys, text):
    (tmp_path / "recorder.rank0.jsonl").write_text(text)
    assert main(["diff", str(tmp_path)]) == 2
    assert "recorder.rank0.jsonl must be a file of a flight recorder" in capsys.readouterr().err


def test_truncated_lines_are_skipped_and_empty_folders_reported(tmp_path, capsys):
    assert main(["diff", str(tmp_path)]) == 2
    assert "has no files of flight recorders" in capsys.readouterr().err
    ranks = Ranks(tmp_path)
    ranks.done(["a"])
    ranks.write()
    with (tmp_path / "recorder.rank1.jsonl").open("a") as file:
        file.write('{"number": 3, "wh')
    done = subprocess.run(
        [sys.executable, "-m", "horovod.recorder", "diff", str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


HEAD = {
    "horovod": "recorder", "version": 1, "rank": 0, "size": 2, "label": "rank 0", "pid": 1, "why": "w",
    "monotonic_ns": 1, "unix_ns": 0,
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        json.dumps({**HEAD, "size": 10**12}),
        json.dumps({**HEAD, "rank": 2}),
        json.dumps({**HEAD, "rank": -1}),
        json.dumps({**HEAD, "rank": "0"}),
        json.dumps({**HEAD, "unix_ns": None}),
        json.dumps({**HEAD, "why": ["x"]}),
        json.dumps(HEAD)[:-1] + ', "unix_ns": 1e999}',
        json.dumps(HEAD) + '\n{"what": "carried out", "set": {}}',
        json.dumps(HEAD) + '\n{"what": ["carried out"]}',
        json.dumps(HEAD) + "\n" + '{"a":' * 100000 + "}",
        "[" * 100000,
        "\x00",
        "",
        None,
    ],
)
def test_malicious_files(tmp_path, capsys, text):
    path = tmp_path / "recorder.rank0.jsonl"
    if text is None:
        os.mkfifo(path)
    else:
        path.write_text(text + "\n")
    assert main(["diff", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"horovod.recorder: {path} must be a file of a flight recorder\n"


def test_terminal_control_sequences_are_escaped(tmp_path, capsys):
    ranks = Ranks(tmp_path)
    more = {"kind": "\x1b[3Jkind", "dtype": "\x1b[4Jtype"}
    ranks.add(0, "announced", "\x1b[2Jone", **more)
    ranks.add(1, "announced", "\x1b[2Jother", **more)
    ranks.write()
    out = "\n".join(output(tmp_path, capsys))
    assert "\x1b" not in out
    assert "\\x1b[2Jone" in out
