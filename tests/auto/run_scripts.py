"""Run the scripts of this folder one after another: ``run_scripts.py FOLDER WORKERS``.

Started by ``python`` this is the reference, started by ``horovodrun --auto`` the program under test.
"""

import os
import runpy
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
# For each script: samples of all workers in a batch, arguments of the run in float64, arguments of the one-step run in
# float32, how the batch and the output are named.
RUNS = {
    "classification": (60, ["--epochs", "3"], ["--dry-run"], "--batch-size", "--save"),
    "gan": (60, ["--max-steps", "50"], ["--max-steps", "1"], "--batch-size", "--save"),
    "language_model": (24, ["--max-updates", "50", "--epochs", "9"], ["--max-updates", "1"], "--batch-size", "--save"),
    "amp_cpu": (30, ["--epochs", "4"], ["--max-steps", "1"], "--batch-size", "--save"),
    "hugging_face_style": (
        24,
        ["--max_train_steps", "50"],
        ["--max_train_steps", "1"],
        "--per_device_train_batch_size",
        "--output_dir",
    ),
    "keras_fit": (
        30,
        ["--epochs", "2", "--samples", "1388"],
        ["--samples", "30", "--epochs", "1"],
        "--batch-size",
        "--save",
    ),
}


def main(folder: str, workers: int, names: list[str]) -> None:
    """Run the scripts in float64 for at least 50 steps, and in float32 for one step."""
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    for name in names or RUNS:
        import torch

        batch, many, one, batch_flag, save_flag = RUNS[name]
        for dtype, more in (("float64", many), ("float32", one)):
            torch.set_default_dtype(torch.float32)
            save = f"{name}.{dtype}" + (".keras" if name == "keras_fit" else "")
            sys.argv = [name, batch_flag, str(batch // workers), "--dtype", dtype, save_flag, save, *more]
            print("==", *sys.argv)
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")


main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
