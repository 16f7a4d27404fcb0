"""Command line of ``python -m horovod.auto``, which ``horovodrun --auto`` starts instead of ``python``."""

import argparse
import importlib
import importlib.abc
import importlib.util
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import horovod.numpy as hvd
from horovod.auto.session import limit_output, refuse, session

# Import hook that patches PyTorch and Keras right after the script imports them.

_CHANGES = {"torch": "horovod.auto.torch", "keras": "horovod.auto.keras"}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        # Remove the hook, so that the search below finds the module's own loader.
        change = _CHANGES.pop(fullname, None)
        spec = importlib.util.find_spec(fullname) if change else None
        loader: Any = spec and spec.loader
        if loader is not None:
            plain = loader.exec_module
            loader.exec_module = lambda module: (plain(module), importlib.import_module(str(change)).install())
        return spec


def install_import_hook() -> None:
    """Patch PyTorch and Keras. Frameworks that are not imported yet are patched when the script imports them."""
    sys.meta_path.insert(0, _Finder())
    for name in [name for name in _CHANGES if name in sys.modules]:
        importlib.import_module(_CHANGES.pop(name)).install()


def main(arguments: list[str]) -> None:
    """Run a script, or a module with ``-m``, as one rank of the job."""
    parser = argparse.ArgumentParser(prog="python -m horovod.auto", allow_abbrev=False)
    parser.add_argument("--lr-scale", choices=("none", "linear", "sqrt"), default="none")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is the name of a module")
    parser.add_argument("script")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...")
    options = parser.parse_args(arguments)
    session.lr_scale = options.lr_scale
    # Set a timeout, because ranks that run different operations would otherwise wait forever.
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "600")
    hvd.init()
    session.rank, session.size = hvd.rank(), hvd.size()
    _choose_device()
    if options.module:
        spec = importlib.util.find_spec(options.script)
        if spec and spec.submodule_search_locations:
            spec = importlib.util.find_spec(f"{options.script}.__main__")
        session.script = (spec and spec.origin) or options.script
    else:
        session.script = options.script
        sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    check_source(session.script)
    session.log(f"{session.script} runs on {session.size} ranks; a batch of the script is the batch of each rank")
    session.log(f"learning rates: --lr-scale {session.lr_scale}, multiplied by {session.lr_factor:g}")
    session.log("gradients: SUM/count over the samples of all ranks; evaluation: the whole set on each rank")
    session.log("rank 0 alone: print, tqdm, logging below ERROR, torch.save, model.save, TensorBoard, wandb, mlflow")
    limit_output()
    install_import_hook()
    sys.argv = [options.script, *options.rest]
    if options.module:
        runpy.run_module(options.script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(os.path.abspath(options.script), run_name="__main__")


def _choose_device() -> None:
    """Make only the GPU of the local rank visible, so that "cuda" and "cuda:0" refer to this GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(hvd.local_size())]
    if visible != "" and len(names) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = names[hvd.local_rank() % len(names)]


_CHANGED_GRADIENT = re.compile(
    r"\.grad(\.data|\[[^]]*\])*(\.(?!zero_|detach_|requires_grad_)[a-z]\w*_\(|\s*[-+*/]?=(?!=)(?!\s*None\b))"
)


def check_source(path: str) -> None:
    """Reject a script that modifies gradients itself, because the gradients it sees are not reduced yet."""
    text = Path(path).read_bytes().decode(errors="replace") if os.path.exists(path) else ""
    for number, line in enumerate(text.splitlines(), 1):
        if _CHANGED_GRADIENT.search(line.partition("#")[0]):
            line = f"{path}:{number}"
            refuse("it changes gradients before they are reduced", "use clip_grad_norm_ or clip_grad_value_", line)


if __name__ == "__main__":
    main(sys.argv[1:])
