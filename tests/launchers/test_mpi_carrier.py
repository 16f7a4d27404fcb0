"""Jobs over MPI (Open MPI, MPICH, the standard ABI) compute the same results as jobs over Horovod's own links."""

import sys

import pytest

from tests.launchers import programs
from tests.launchers.programs import ROOT
from tests.launchers.sites import APART, keep_running_flags, site_of


@pytest.fixture(params=["Open MPI", "MPICH", "standard ABI"])
def site(request, tmp_path):
    return site_of(request, request.param, tmp_path)


@pytest.fixture(params=["Open MPI", pytest.param("MPICH", marks=pytest.mark.heavy)])
def family(request, tmp_path):
    """One library for each launcher; ``site`` covers all libraries where they differ most."""
    return site_of(request, request.param, tmp_path)


def same(actual: list[dict], expected: list[dict]) -> None:
    for rank, (own, other) in enumerate(zip(actual, expected, strict=True)):
        assert own.pop("modes") == [True, True]
        assert other.pop("modes") == [True, False]
        assert list(own) == list(other)
        different = [name for name in own if own[name] != other[name]]
        assert not different, f"rank {rank}: {different}"


def test_results_equal_horovods_links_bitwise(site):
    same(site.reports(2, "short", operations="gloo", **APART), site.reports(2, "short", **APART))


@pytest.mark.heavy
@pytest.mark.parametrize("size", [3, pytest.param(2, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)])
def test_results_equal_horovods_links_bitwise_in_all_sizes(site, size):
    same(site.reports(size, operations="gloo", **APART), site.reports(size, **APART))


@pytest.mark.heavy
def test_process_sets(site):
    parts = "short", "sets"
    same(site.reports(4, *parts, operations="gloo", **APART), site.reports(4, *parts, **APART))


def test_ranks_of_one_host_keep_their_shared_memory(family):
    same(family.reports(2, "short", operations="gloo"), family.reports(2, "short"))


@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.heavy)])
def test_hosts_of_several_ranks(family, size):
    family.not_open_mpi_4("as a wheel has no PMIx library")
    parts = "short", "hosts:2", "sets"
    same(family.reports(size, *parts, operations="gloo"), family.reports(size, *parts))


def test_only_one_thread_calls_mpi(family):
    done = family.run(2, "short", HOROVOD_MPI_THREADS_DISABLE="1", **APART)
    assert done.code == 0, done.text
    if not family.open_mpi:  # Open MPI may grant a higher level than requested
        assert "MPI_THREAD_FUNNELED" in done.text
        assert "THREADS False" in done.text


def test_a_killed_rank_is_named(family):
    done = family.run(2, "kill:1", before=keep_running_flags(family), **APART)
    assert done.code != 0
    assert "rank 0 was told: rank 1 (host " in done.text, done.text
    assert "was lost" in done.text


def test_mpi_reduces_on_request(family):
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
        "            assert (got == reference).all(), (dtype, count)\n"  # halves are exact in any order of addition
        "print('RIGHT', flush=True)\n"
    )
    command = [*family.command(3), sys.executable, str(script)]
    done = programs.run(command, family.environment(HOROVOD_MPI_REDUCTION="mpi", **APART))
    assert done.code == 0, done.text
    assert done.text.count("RIGHT") == 3


def test_shutdown_with_operations_under_way(family):
    assert len(family.reports(2, "short", "leave", **APART)) == 2


def test_a_rank_that_fails_ends_the_job(family):
    done = family.run(2, "raise:1", **APART)
    assert done.code != 0
    assert "ValueError: no more data" in done.text


def test_a_program_uses_mpi_too(family):
    programs.with_mpi4py(family.folder)  # its wheels lack the standard ABI
    assert len(family.reports(2, "short", "mpi4py", "again", **APART)) == 2


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_program_finalizes_mpi_itself(site, when):
    assert len(site.reports(2, "short", when, **APART)) == 2


@pytest.mark.parametrize("level", ["funneled", pytest.param("single", marks=pytest.mark.heavy)])
def test_too_low_thread_level_of_the_program(family, level):
    programs.with_mpi4py(family.folder)
    done = family.run(2, "mpi4py", f"level:{level}", **APART)
    if f"MPI_THREAD_{level.upper()}" not in done.text and done.code == 0:
        return  # the library grants a higher level than requested
    assert done.code != 0
    assert f"got MPI_THREAD_{level.upper()}" in done.text
    assert "mpi4py.rc.thread_level" in done.text


@pytest.mark.parametrize("names", [("Open MPI", "MPICH"), ("MPICH", "Open MPI")])
def test_a_library_of_another_mpi_than_the_launcher(request, tmp_path, names):
    site, other = (site_of(request, name, tmp_path) for name in names)
    done = site.run(2, "short", HOROVOD_MPI_LIBRARY=str(ROOT / other.folder / "lib" / other.library))
    assert done.code != 0
    assert "the launcher is of another MPI than the library" in done.text
    assert other.says in done.text


def test_encrypted_data_do_not_use_mpi(family):
    done = family.run(2, "short", HOROVOD_ENCRYPT_DATA="1", **APART)
    assert done.code != 0
    assert "MPI does not encrypt" in done.text
