"""horovod.run in the cells of a notebook: real kernels execute real notebooks."""

import contextlib
import importlib.util
import queue
import re
import time
from pathlib import Path

import pytest

from tests.runner.launching import MARK, eventually, marked_environment, processes_with

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.heavy
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/notebook/horovod_in_a_notebook.ipynb"
LIMIT = 240  # seconds for a cell on a busy machine


@pytest.fixture
def jupyter(tmp_path, monkeypatch):
    """Redirect Jupyter's files to the test's folder, and mark the kernels' environment."""
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    environment = marked_environment()
    for name in (MARK, "PYTHONPATH"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # otherwise the kernel's debugger prints a warning
    yield environment[MARK]
    eventually(lambda: processes_with(environment[MARK]) == [], 60, "kernels and workers end")


def execute(notebook, folder):
    """Run all cells; return the outputs of each code cell."""
    client = nbclient.NotebookClient(
        notebook, timeout=LIMIT, startup_timeout=LIMIT, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def stream(outputs, name="stdout"):
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == name)


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "sklearn")), reason="torch or sklearn is not there"
)
def test_the_example_notebook(jupyter, tmp_path):
    first, define, train, results, fail = execute(nbformat.read(EXAMPLE, 4), tmp_path)
    assert [output.output_type for output in first] == ["execute_result"]
    assert re.fullmatch(r"\[\(0, (\d+)\), \(1, (?!\1)\d+\)\]", first[0].data["text/plain"])
    assert define == []
    losses = re.findall(r"^\[0\]<stdout>:epoch \d: loss ([\d.]+)$", stream(train), re.MULTILINE)
    assert len(losses) == 6
    assert float(losses[-1]) < float(losses[0]) / 2
    accuracies = re.findall(r"accuracy ([\d.]+)%", stream(results))
    assert len(accuracies) == 3
    assert len(set(accuracies)) == 1
    assert float(accuracies[0]) > 85
    assert "same parameters everywhere: True" in stream(results)
    assert "rank 1 on localhost, exit code 1" in stream(fail)
    assert 'raise ValueError("no data for rank 1")' in stream(fail)  # the line of the cell, shown by the worker
    assert "[1]<stderr>:ValueError: no data for rank 1" in stream(fail, "stderr")


CELLS = [
    # Definitions in cells are pickled by value, and results have the same classes.
    """
import os, sys, time, horovod, contextlib, io
scale = 3
class Point:
    def __init__(self, x): self.x = x
class Unlucky(Exception): pass
points = horovod.run(lambda p: Point(p.x * scale + int(os.environ["HOROVOD_RANK"])), (Point(5),), num_proc=2)
assert all(isinstance(point, Point) for point in points)
[point.x for point in points]
""",
    # Output on the cell's two streams; progress bars update in place.
    """
def talk():
    for i in range(3):
        print("out", i)
        print("err", i, file=sys.stderr)
    for i in range(3):
        print(f"\\r{i} of 3", end="")
    print()
    assert not any(name.startswith("JPY_") for name in os.environ)
_ = horovod.run(talk)
""",
    # A worker's exception is raised in the cell.
    """
def fail():
    raise Unlucky("third of three")
horovod.run(fail, num_proc=2)
""",
    # In a thread, and with the streams redirected.
    """
import threading
text, found = io.StringIO(), []
with contextlib.redirect_stdout(text):
    thread = threading.Thread(target=lambda: found.extend(horovod.run(print, ("from a thread",))))
    thread.start(); thread.join()
print(found, repr(text.getvalue()))
""",
]


def test_cells(jupyter, tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    values, output, failure, thread = execute(notebook, tmp_path)
    assert values[0].data["text/plain"] == "[15, 16]"
    assert stream(output, "stderr") == "".join(f"[0]<stderr>:err {i}\n" for i in range(3))
    assert stream(output).startswith("".join(f"[0]<stdout>:out {i}\n" for i in range(3)))
    assert stream(output).endswith("[0]<stdout>:2 of 3\n")
    assert "[0]<stdout>:0 of 3\n" not in stream(output)
    [error] = [part for part in failure if part.output_type == "error"]
    assert error.ename == "WorkerError(Unlucky)"
    assert re.search(
        r"(?ms)^rank ([01]) on host localhost failed first: exit code 1$.*^the exception of rank \1:$.*in fail",
        error.evalue,
    ), error.evalue
    assert 'raise Unlucky("third of three")' in error.evalue
    assert stream(thread) == "[None] '[0]<stdout>:from a thread\\n'\n"


@contextlib.contextmanager
def kernel(folder):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(startup_timeout=LIMIT, cwd=str(folder))
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def messages(client, until):
    """Return messages of the kernel up to the first for which `until` holds."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            message = client.get_iopub_msg(timeout=1)
            yield message
            if until(message):
                return
    pytest.fail(f"nothing of the kernel within {LIMIT} s")


def is_idle(message):
    return message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"


def test_an_interrupt_of_the_cell_ends_the_workers(jupyter, tmp_path):
    """The workers' output also appears while they run."""
    with kernel(tmp_path) as (manager, client):
        client.execute(
            "import horovod, time\ndef work(): print('ready'); time.sleep(600)\nhorovod.run(work, num_proc=2)"
        )
        shown = []
        for message in messages(client, lambda _: "".join(shown).count("ready\n") == 2):
            shown.append(message["content"].get("text", ""))
        workers = [
            pid for pid in processes_with(jupyter) if b"function.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(workers) == 2
        manager.interrupt_kernel()
        errors = [m["content"] for m in messages(client, is_idle) if m["msg_type"] == "error"]
        assert [error["ename"] for error in errors] == ["KeyboardInterrupt"]
        assert set(workers).isdisjoint(processes_with(jupyter))
        client.execute("print(horovod.run(lambda: 'again'))")  # the kernel survives
        assert any("['again']" in m["content"].get("text", "") for m in messages(client, is_idle))
