"""Jobs that MPI carries (Open MPI, MPICH, the standard ABI) compute what those over our own links do."""

import shutil
import subprocess
import sys

import pytest

from tests.launchers import programs
from tests.launchers.programs import ROOT
from tests.launchers.sites import APART, CARRIED, need_mpi4py, site_of, staying


@pytest.fixture(params=["Open MPI", "MPICH", "standard ABI"])
def site(request, tmp_path):
    return site_of(request, request.param, tmp_path)


@pytest.fixture(params=["Open MPI", pytest.param("MPICH", marks=pytest.mark.heavy)])
def family(request, tmp_path):
    """One library for each launcher. What differs most between them is shown with ``site`` too."""
    return site_of(request, request.param, tmp_path)


def same(ours: list[dict], theirs: list[dict]) -> None:
    for rank, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine.pop("modes") == [True, True]
        assert other.pop("modes") == [True, False]
        assert list(mine) == list(other)
        different = [name for name in mine if mine[name] != other[name]]
        assert not different, f"rank {rank}: {different}"


def test_the_bits_of_our_own_links(site):
    same(site.told(2, "short", operations="gloo", **APART), site.told(2, "short", **APART))


@pytest.mark.heavy
@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_bits_of_our_own_links_in_all_sizes(site, size):
    same(site.told(size, operations="gloo", **APART), site.told(size, **APART))


@pytest.mark.heavy
def test_process_sets(site):
    what = "short", "sets"
    same(site.told(4, *what, operations="gloo", **APART), site.told(4, *what, **APART))


@pytest.mark.heavy  # five jobs one after another
def test_init_after_shutdown_and_a_part_of_the_processes(family):
    what = "short", "sets", "again"
    same(family.told(3, *what, operations="gloo", **APART), family.told(3, *what, **APART))


@pytest.mark.heavy
def test_a_job_of_some_of_the_processes(family):
    what = "short", "half"
    same(family.told(3, *what, operations="gloo", **APART), family.told(3, *what, **APART))


def test_ranks_of_one_host_keep_their_shared_memory(family):
    same(family.told(2, "short", operations="gloo"), family.told(2, "short"))


@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.heavy)])
def test_hosts_of_several_ranks(family, size):
    family.not_open_mpi_4("as a wheel has no PMIx library")
    what = "short", "hosts:2", "sets"
    same(family.told(size, *what, operations="gloo"), family.told(size, *what))


@pytest.mark.parametrize(
    ("what", "variables", "algorithm"),
    [("short", APART, "mpi"), pytest.param("hosts:2", {}, "mpi_hierarchical", marks=pytest.mark.heavy)],
)
def test_the_timeline_names_mpi(request, tmp_path, what, variables, algorithm):
    path = tmp_path / "timeline.json"
    site_of(request, "MPICH", tmp_path).told(3, what, HOROVOD_TIMELINE=str(path), **variables)
    text = path.read_text()
    assert f'"algorithm":"{algorithm}"' in text
    assert "MPI_ALLREDUCE" in text
    assert "MPI_BCAST" in text


@pytest.mark.parametrize("name", ["Open MPI", pytest.param("MPICH", marks=pytest.mark.heavy)])
def test_hosts_over_ssh(request, cluster, tmp_path, name):
    site = site_of(request, name, tmp_path)
    site.not_open_mpi_4("as a wheel has no PMIx library")
    prefix = ["--prefix", str(site.launcher.parent.parent), "--mca", "plm_rsh_agent", "ssh"]
    names = ["HOROVOD_CPU_OPERATIONS", "HOROVOD_MPI_LIBRARY", "PYTHONPATH"]
    digests = []
    for operations in ("gloo", "mpi"):
        env = {"TMPDIR": "/var/tmp", "HOROVOD_CPU_OPERATIONS": operations}
        env["HOROVOD_MPI_LIBRARY"] = str(ROOT / site.folder / "lib" / site.library)
        if "intel" in site.folder:
            env["LD_LIBRARY_PATH"] = str(ROOT / site.folder / "lib")  # its launcher sets that on its own host only
        more = ["-hosts", "host1:2,host2:1"]
        if name == "Open MPI":
            more = [*prefix, "-H", "host1:2,host2:1", *(word for each in names for word in ("-x", each))]
        command = [*site.command(3, *more), sys.executable, CARRIED, "none", "short,print"]
        done = cluster.launcher.run(command, env=env, timeout=programs.DEADLINE)
        assert done.returncode == 0, done.stdout + done.stderr
        digests.append(sorted(line for line in done.stdout.splitlines() if line.startswith("DIGEST ")))
    assert len(digests[0]) == 3
    assert digests[0] == digests[1]


def test_one_thread_alone_calls_mpi(family):
    done = family.run(2, "short", HOROVOD_MPI_THREADS_DISABLE="1", **APART)
    assert done.code == 0, done.text
    if not family.open_mpi:  # Open MPI may grant more than it is asked for
        assert "MPI_THREAD_FUNNELED" in done.text
        assert "THREADS False" in done.text


def test_a_killed_rank_is_named(family):
    done = family.run(2, "kill:1", before=staying(family), **APART)
    assert done.code != 0
    assert "rank 0 was told: rank 1 (host " in done.text, done.text
    assert "was lost" in done.text


def test_a_rank_that_dies_after_shutdown_does_not_keep_the_others_in_mpi_finalize(family):
    """It ends, which is what counts here: Open MPI and MPICH 4 tell the library, mpiexec of MPICH 5 may end the other
    process before that has given up by itself. What is said then: tests/common/wiring/test_mpi_end.py."""
    done = family.run(2, "short", "after:1", before=staying(family), **APART)
    if not family.open_mpi and "MPICH 4" not in done.text:
        assert done.code != 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
def test_a_rank_that_dies_while_a_communicator_is_made(family):
    # A library in front of the site's: on rank 1 the first communicator is made, and the second one never.
    source, shim = family.tmp / "shim.c", family.tmp / "libmpi.so"
    source.write_text(
        "#include <dlfcn.h>\n#include <signal.h>\n#include <stdlib.h>\n#include <string.h>\n"
        "typedef long make(long, long, int, void*);\n"
        "int MPI_Comm_create_group(long comm, long group, int tag, void* made) {\n"
        "  static int calls = 0;\n"
        '  const char* rank = getenv("PMI_RANK") ? getenv("PMI_RANK") : getenv("OMPI_COMM_WORLD_RANK");\n'
        '  if (++calls == 2 && strcmp(rank, "1") == 0) raise(SIGKILL);\n'
        '  return ((make*)dlsym(RTLD_NEXT, "MPI_Comm_create_group"))(comm, group, tag, made);\n'
        "}\n"
    )
    real = ROOT / family.folder / "lib" / family.library
    flags = ["-D_GNU_SOURCE", "-shared", "-fPIC", "-Wl,--no-as-needed", f"-Wl,-rpath,{real.parent}"]
    subprocess.run(["cc", *flags, "-o", str(shim), str(source), str(real)], check=True, timeout=60)
    script = family.tmp / "pair.py"
    script.write_text(
        "import os\n"
        "import numpy as np\n"
        "import horovod.numpy as hvd\n"
        f"os.chdir({str(family.tmp)!r})\n"
        "hvd.init(process_sets='dynamic')\n"
        "hvd.allreduce(np.ones(9000), name='all')\n"
        "pair = hvd.add_process_set([0, 1])\n"
        "if pair.included():\n"
        "    try:\n"
        "        hvd.allreduce(np.ones(9000), name='pair', process_set=pair)\n"
        "    except hvd.HorovodInternalError as error:\n"
        "        with open(f'told.{hvd.rank()}', 'w') as file:\n"  # what it prints last mpiexec may lose
        "            print(f'rank {hvd.rank()} was told: {error}', file=file)\n"
        "        raise\n"
        "hvd.barrier()\n"
    )
    command = [*family.command(3, *staying(family)), sys.executable, str(script)]
    done = programs.run(command, family.environment(HOROVOD_MPI_LIBRARY=str(shim), **APART))
    assert done.code != 0
    told = family.tmp / "told.0"
    assert told.exists(), done.text
    assert "rank 0 was told: rank 1 (host " in told.read_text()


def test_mpi_adds_where_that_is_wanted(family):
    script = family.tmp / "sums.py"
    script.write_text(
        "import numpy as np\n"
        "import horovod.numpy as hvd\n"
        "hvd.init()\n"
        "for dtype in ('int32', 'uint8', 'float32', 'float64', 'float16'):\n"
        "    for count in (1, 5000, 700_001):\n"
        "        every = [np.random.default_rng(rank).integers(0, 40, count).astype(dtype) / 2 for rank in range(3)]\n"
        "        every = [each.astype(dtype) for each in every]\n"
        "        for op, reference in ((hvd.Sum, sum(every)), (hvd.Max, np.max(every, 0))):\n"
        "            got = hvd.allreduce(every[hvd.rank()], op=op, name=f'{dtype} {count} {op}')\n"
        "            assert (got == reference).all(), (dtype, count)\n"  # halves are exact in any order
        "print('RIGHT', flush=True)\n"
    )
    command = [*family.command(3), sys.executable, str(script)]
    done = programs.run(command, family.environment(HOROVOD_MPI_REDUCTION="mpi", **APART))
    assert done.code == 0, done.text
    assert done.text.count("RIGHT") == 3


@pytest.mark.heavy
def test_a_rank_that_is_stopped_in_a_collective(family):
    # It may have been stopped between two, of which the stall check tells.
    done = family.run(2, "stop:1", HOROVOD_GLOO_TIMEOUT_SECONDS="2", **programs.LIMITS, **APART)
    assert done.code != 0
    assert "rank 0 was told: " in done.text, done.text


def test_shutdown_with_operations_under_way(family):
    assert len(family.told(2, "short", "leave", **APART)) == 2


@pytest.mark.heavy
def test_spawned_processes_make_no_job(family, tmp_path):
    need_mpi4py(family)
    if "intel" in family.folder:
        pytest.skip("Intel MPI's wheel has no MPI_Comm_spawn that works")
    script = tmp_path / "spawn.py"
    script.write_text(
        "import sys\n"
        "from mpi4py import MPI\n"
        "if len(sys.argv) == 1:\n"
        "    MPI.COMM_WORLD.Spawn(sys.executable, args=[__file__, 'child'], maxprocs=2).Disconnect()\n"
        "else:\n"
        "    import horovod.numpy as hvd\n"
        "    try:\n"
        "        hvd.init()\n"
        "    except ValueError as error:\n"
        "        print('CHILD', error, flush=True)\n"
        "    MPI.Comm.Get_parent().Disconnect()\n"
    )
    done = programs.run([*family.command(1), sys.executable, str(script)], family.environment(**APART))
    assert "CHILD HOROVOD_CPU_OPERATIONS is 'mpi': this process was started by MPI_Comm_spawn" in done.text, done.text


def test_a_rank_that_fails_ends_the_job(family):
    done = family.run(2, "raise:1", **APART)
    assert done.code != 0
    assert "ValueError: no more data" in done.text


def test_a_program_uses_mpi_too(family):
    need_mpi4py(family)  # whose wheels know no standard ABI
    assert len(family.told(2, "short", "mpi4py", "again", **APART)) == 2


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_program_ends_mpi_itself(site, when):
    assert len(site.told(2, "short", when, **APART)) == 2


@pytest.mark.parametrize("level", ["funneled", pytest.param("single", marks=pytest.mark.heavy)])
def test_a_thread_level_of_the_programs_that_is_too_low(family, level):
    need_mpi4py(family)
    done = family.run(2, "mpi4py", f"level:{level}", **APART)
    if f"MPI_THREAD_{level.upper()}" not in done.text and done.code == 0:
        return  # the library grants more than it was asked for
    assert done.code != 0
    assert f"the program has begun MPI with MPI_THREAD_{level.upper()}" in done.text
    assert "mpi4py.rc.thread_level" in done.text


def test_a_rank_that_never_comes(family, tmp_path):
    script = tmp_path / "absent.py"
    script.write_text(
        "import os, time\n"
        "rank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK']\n"
        "if rank == '1': time.sleep(600)\n"
        "import horovod.numpy as hvd\n"
        "hvd.init()\n"
    )
    command = [*family.command(2), sys.executable, str(script)]
    done = programs.run(command, family.environment(HOROVOD_START_TIMEOUT="3", **APART))
    assert done.code != 0
    assert "within 3 s" in done.text or "waited 3 s for rank 1 (of 2) to call hvd.init()" in done.text, done.text


def test_a_library_that_is_not_there(family):
    done = family.run(2, "short", HOROVOD_MPI_LIBRARY="/nowhere/libmpi.so.40")
    assert done.code != 0
    assert "HOROVOD_MPI_LIBRARY is '/nowhere/libmpi.so.40', and there is no such file" in done.text


def test_a_library_that_is_something_else(family):
    done = family.run(2, "short", HOROVOD_MPI_LIBRARY="libm.so.6")
    assert done.code != 0
    assert "has no MPI_Get_library_version, so it is no MPI" in done.text


def test_the_library_beside_the_launcher_is_found(family):
    done = family.run(2, "short", HOROVOD_MPI_LIBRARY="", **APART)
    assert done.code == 0, done.text
    assert "beside the launcher" in done.text


@pytest.mark.parametrize("names", [("Open MPI", "MPICH"), ("MPICH", "Open MPI"), ("Open MPI", "standard ABI")])
def test_a_library_of_another_mpi_than_the_launchers(request, tmp_path, names):
    ours, other = (site_of(request, name, tmp_path) for name in names)
    done = ours.run(2, "short", HOROVOD_MPI_LIBRARY=str(ROOT / other.folder / "lib" / other.library))
    assert done.code != 0
    assert "the launcher is of another MPI than the library" in done.text
    assert other.says in done.text


def test_two_libraries_in_a_process(request, tmp_path):
    ours = site_of(request, "Open MPI", tmp_path)
    other = ROOT / programs.MPICH / "lib/libmpi.so.12"
    if not other.exists():
        pytest.skip(f"{programs.MPICH} has no libmpi.so.12 (scripts/install-launchers.sh)")
    script = tmp_path / "two.py"
    script.write_text(f"import ctypes\nctypes.CDLL({str(other)!r})\nimport horovod.numpy as hvd\nhvd.init()\n")
    done = programs.run([*ours.command(2), sys.executable, str(script)], ours.environment())
    assert done.code != 0
    assert "but this process has loaded another MPI already" in done.text
    assert str(other.resolve()) in done.text


def test_encrypted_data_do_not_go_through_mpi(family):
    done = family.run(2, "short", HOROVOD_ENCRYPT_DATA="1", **APART)
    assert done.code != 0
    assert "MPI does not encrypt" in done.text


def test_horovodrun_passes_the_wish_on(family):
    folder = family.tmp / "bin"
    folder.mkdir()
    (folder / "mpirun").write_text(f'#!/bin/sh\nexec "{family.launcher}" "$@"\n')
    (folder / "mpirun").chmod(0o755)
    env = family.environment(**APART)
    env["PATH"] = f"{folder}:{env['PATH']}"
    more = ["--mpi-args=--oversubscribe"] if family.open_mpi else []
    words = ["-np", "2", *more, sys.executable, CARRIED, str(family.tmp / "told"), "short"]
    done = programs.run([sys.executable, "-m", "horovod.runner", "--mpi", *words], env)
    assert done.code == 0, done.text
    assert f"MPI carries the job: {family.says}" in done.text


def test_under_the_built_in_launcher_there_is_no_mpi():
    command = [sys.executable, "-m", "horovod.runner", "-np", "2", *programs.WORKER]
    done = programs.run(command, programs.environment(HOROVOD_CPU_OPERATIONS="MPI"))
    assert done.code == 0, done.text
    assert "HOROVOD_CPU_OPERATIONS is 'MPI', but that takes a job started by MPI" in done.text
