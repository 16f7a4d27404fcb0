"""Successful jobs: output, input, environment, files."""

import collections
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import horovod
from horovod.runner import launch
from tests.runner.launching import MARK, launcher, marked_environment, processes_with, python, run_job, running


def by_rank(text, stream="stdout"):
    lines = collections.defaultdict(list)
    for line in text.splitlines():
        match = re.fullmatch(rf"\[(\d+)\]<{stream}>:(.*)", line)
        assert match, line
        lines[int(match[1])].append(match[2])
    return dict(lines)


def test_environment_of_a_rank(tmp_path):
    """Its identity, the launcher's directory and environment, and flags; two host names are two hosts."""
    environment = {
        "ODD": "a=b\nc",
        "EMPTY": "",
        "CUDA_VISIBLE_DEVICES": "3",
        "BASH_FUNC_f%%": "() {  true; }",
        "_HOROVOD_SECRET_KEY": "no",
        "HOROVOD_RANK": "77",
        "NOT_UTF8": os.fsdecode(b"\xff"),
        "MY_TOKEN": "hush-hush",
        "OMP_NUM_THREADS": None,
    }
    flags = [
        "-np",
        "3",
        "-H",
        "localhost:2,127.0.0.1:2",
        "--fusion-threshold-mb",
        "2",
        "--log-level",
        "info",
        "--verbose",
    ]
    code = "import os; print(os.getcwd()); print(repr(dict(os.environ)))"
    done = run_job([*flags, *python(code)], environment=environment, cwd=tmp_path)
    assert done.code == 0, done.err
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"]
    places = {}
    for rank, (directory, shown) in by_rank(done.out).items():
        got = eval(shown)
        places[rank] = " ".join(got[f"HOROVOD_{name}"] for name in names)
        assert directory == str(tmp_path)
        assert {name: got[name] for name in ("ODD", "EMPTY", "NOT_UTF8", "MY_TOKEN")}.items() <= environment.items()
        assert not {"CUDA_VISIBLE_DEVICES", "BASH_FUNC_f%%", "_HOROVOD_SECRET_KEY"} & set(got)
        assert (got["HOROVOD_GLOO_IFACE"], got["NCCL_SOCKET_IFNAME"], got["PYTHONUNBUFFERED"]) == ("lo", "lo", "1")
        assert (got["HOROVOD_FUSION_THRESHOLD"], got["HOROVOD_LOG_LEVEL"]) == ("2097152", "info")
        share = max(1, len(os.sched_getaffinity(0)) // (2 if rank < 2 else 1))
        assert got["OMP_NUM_THREADS"] == str(share)
    assert places == {0: "0 3 0 2 0 2 localhost", 1: "1 3 1 2 0 1 localhost", 2: "2 3 0 1 1 2 127.0.0.1"}
    # --verbose prints names of variables without values.
    assert "command: " in done.err
    assert "MY_TOKEN" in done.err
    assert "hush-hush" not in done.err
    assert re.search(r"rank 0 pid \d+, rank 1 pid \d+", done.err)


def test_lines_of_many_ranks_never_mix_and_nothing_is_lost_or_slow():
    code = (
        "import os, sys\n"
        "r = os.environ['HOROVOD_RANK']\n"
        "for i in range(2000):\n"
        "    for f in (sys.stdout, sys.stderr): f.write(f'{r}:{i}:' + r * (i * 37 % 1500) + '\\n')\n"
        "sys.stdout.write(r * 300000 + '\\n' + 'end')\n"
    )
    start = time.monotonic()
    done = run_job(["-np", "4", *python(code)])
    elapsed = time.monotonic() - start
    assert done.code == 0
    for text, stream, more in ((done.out, "stdout", True), (done.err, "stderr", False)):
        lines = by_rank(text, stream)
        assert set(lines) == set(range(4))
        for rank, got in lines.items():
            expected = [f"{rank}:{i}:" + str(rank) * (i * 37 % 1500) for i in range(2000)]
            assert got == expected + ([str(rank) * 300000, "end"] if more else [])
    assert elapsed < 40, f"13 MB took {elapsed:.1f} s"


def test_output_arrives_in_time():
    with running(["-np", "1", *python("import time; print('here'); time.sleep(60)")]) as job:
        assert job.process.stdout.readline() == b"[0]<stdout>:here\n"  # although the worker continues


def test_output_files_are_whole_though_equal_lines_are_collapsed(tmp_path):
    code = "import os, sys; print('same'); print('mine', os.environ['HOROVOD_RANK']); sys.stderr.write('end')"
    done = run_job(["-np", "3", "--collapse-output", "--output-filename", str(tmp_path), *python(code)])
    assert done.code == 0
    lines = done.out.splitlines()
    own = [f"[{rank}]<stdout>:mine {rank}" for rank in range(3)]
    assert sorted(line for line in lines if "mine" in line) == own
    # On a busy machine ranks may be further apart than the delay for merging lines; then one is shown up to
    # three times.
    same = [line for line in lines if line not in own]
    assert same == ["[0-2]<stdout>:same"] or (
        1 < len(same) < 4 and all(line.endswith("<stdout>:same") for line in same)
    )
    for rank in range(3):
        assert (tmp_path / f"rank.{rank}/stdout").read_text() == f"same\nmine {rank}\n"
        assert (tmp_path / f"rank.{rank}/stderr").read_text() == "end"


def test_an_unwritable_file_ends_the_job_and_is_named(tmp_path):
    """A full disk, for example; simulated by this process's file size limit."""
    code = "import os, time; print('x' * 5000 * int(os.environ['HOROVOD_RANK'])); time.sleep(600)"
    command = launcher(["-np", "2", "--output-filename", str(tmp_path), *python(code)])
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *command]
    environment = marked_environment()
    done = subprocess.run(limited, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert processes_with(environment[MARK]) == []
    assert done.returncode != 0
    assert f"horovodrun: rank file {tmp_path}/rank.1/stdout: File too large\n" in done.stderr.decode()


def test_stdin_reaches_rank_0_only():
    data = os.urandom(700_000)
    code = "import sys, hashlib; d = sys.stdin.buffer.read(); print(len(d), hashlib.sha256(d).hexdigest())"
    done = run_job(["-np", "2", *python(code)], stdin=data)
    empty = hashlib.sha256(b"").hexdigest()
    assert by_rank(done.out) == {0: [f"700000 {hashlib.sha256(data).hexdigest()}"], 1: [f"0 {empty}"]}


def test_stdin_may_be_a_file_or_closed(tmp_path):
    file = tmp_path / "in"
    file.write_text("from a file\n")
    with open(file) as stdin:
        assert run_job(["-np", "1", "cat"], stdin=stdin.fileno()).out == "[0]<stdout>:from a file\n"
    shell = f"exec {sys.executable} -m horovod.runner -np 2 cat <&-"
    done = subprocess.run(["bash", "-c", shell], env=marked_environment(), capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.heavy
def test_a_slow_reader_blocks_the_job_without_growing_memory():
    with running(["-np", "1", "yes", "x" * 1000]) as job:
        time.sleep(1.5)
        pages = int(Path(f"/proc/{job.process.pid}/statm").read_text().split()[1])
        assert pages * os.sysconf("SC_PAGE_SIZE") < 120 << 20
        assert job.process.stdout.readline().startswith(b"[0]<stdout>:xxx")
        job.process.terminate()  # a launcher that cannot write must still react
        assert job.process.wait(60) == 143


def test_version_help_and_check_build_need_no_number_of_processes(capsys):
    assert launch.main(["-v"]) == 0
    assert capsys.readouterr().out == horovod.__version__ + "\n"
    assert launch.main(["-cb"]) == 0
    assert capsys.readouterr().out.count("Available ") == 3
    command = [sys.executable, "-m", "horovod.runner.launch", "--help"]
    done = subprocess.run(command, env=marked_environment(), capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"--fusion-threshold-mb" in done.stdout


def test_the_launcher_needs_neither_framework_nor_engine():
    code = (
        "import sys, pkgutil, importlib, horovod.runner\n"
        "for found in pkgutil.iter_modules(horovod.runner.__path__):\n"
        "    if found.name != '__main__': importlib.import_module('horovod.runner.' + found.name)\n"
        "unwanted = {'torch', 'numpy', 'horovod._core', 'horovod.torch', 'horovod.common.basics'}\n"
        "print(sorted(unwanted & set(sys.modules)))\n"
    )
    done = subprocess.run(python(code), env=marked_environment(), capture_output=True, timeout=60, check=True)
    assert done.stdout == b"[]\n"
