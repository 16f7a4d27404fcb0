"""Names of horovod.data, including those of other versions."""

import inspect
import subprocess
import sys

import horovod.data

NAMES = [
    "AsyncDataLoaderMixin",
    "BaseDataLoader",
    "LineFiles",
    "ParquetFiles",
    "ReadAhead",
    "Source",
    "StreamingDataset",
]


def test_names_and_signatures():
    assert horovod.data.__all__ == [*NAMES, "TarFiles", "WholeFiles"]
    parameters = list(inspect.signature(horovod.data.AsyncDataLoaderMixin).parameters.values())
    assert [(one.name, one.default) for one in parameters[:2]] == [
        ("async_loader_queue_size", 64),
        ("debug_data_loader", False),
    ]
    assert [one.kind for one in parameters[2:]] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]


def test_loaders_need_neither_numpy_nor_pyarrow(tmp_path):
    (tmp_path / "a.txt").write_text("1\n2\n3\n")
    program = f"""
import sys
sys.modules["numpy"] = sys.modules["pyarrow"] = None
from horovod.data import LineFiles, ReadAhead, StreamingDataset
stream = StreamingDataset(LineFiles({str(tmp_path)!r}), 2, shuffle=False, rank=int, size=lambda: 1)
print(list(ReadAhead(stream)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[[b'1', b'2'], [b'3']]\n", done.stderr
