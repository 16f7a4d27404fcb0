"""Programs that replace other launchers."""

import sys

LSF = {"LSB_JOBID": "17", "LSB_MCPU_HOSTS": "batch 1 n1 4 n2 4"}


def fake(folder, name, script):
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return path
