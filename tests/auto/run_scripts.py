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
    "classification": (60, "--epochs 3", "--dry-run", "--batch-size", "--save"),
    "gan": (60, "--max-steps 50", "--max-steps 1", "--batch-size", "--save"),
    "language_model": (24, "--max-updates 50 --epochs 9", "--max-updates 1", "--batch-size", "--save"),
    "amp_cpu": (30, "--epochs 4", "--max-steps 1", "--batch-size", "--save"),
    "hugging_face_style": (
        24,
        "--max_train_steps 50",
        "--max_train_steps 1",
        "--per_device_train_batch_size",
        "--output_dir",
    ),
    "keras_fit": (30, "--epochs 2 --samples 1388", "--samples 30 --epochs 1", "--batch-size", "--save"),
}

# Scripts that take these flags, and the default dtype of the framework: samples in a batch, epochs.
PLAIN = {
    "vae": (60, 3),
    "diffusion": (60, 3),
    "batch_norm_cnn": (60, 3),
    "translation": (48, 3),
    "imbalanced": (30, 4),
    "wgan_gp": (60, 3),
    "regression_sampler": (30, 3),
    "stream": (40, 3),
    "keras_functional": (20, 8),
}
for _name, (_batch, _epochs) in PLAIN.items():
    RUNS[_name] = (_batch, f"--epochs {_epochs}", f"--epochs 1 --limit {_batch}", "--batch-size", "--save")


def main(folder: str, workers: int, names: list[str]) -> None:
    """Run the scripts in float64 for at least 50 steps, and in float32 for one step."""
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    for name in names or RUNS:
        import torch

        batch, many, one, batch_flag, save_flag = RUNS[name]
        for dtype, more in (("float64", many), ("float32", one)):
            torch.set_default_dtype(getattr(torch, dtype) if name in PLAIN else torch.float32)
            save = f"{name}.{dtype}" + (".keras" if name.startswith("keras") else "")
            if name == "keras_functional":
                import keras

                keras.backend.set_floatx(dtype)
            sys.argv = [name, batch_flag, str(batch // workers), save_flag, save, *more.split()]
            sys.argv += [] if name in PLAIN else ["--dtype", dtype]
            print("==", *sys.argv)
            runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")


main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
