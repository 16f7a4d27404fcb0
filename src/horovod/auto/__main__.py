"""Command line of ``python -m horovod.auto``, which ``horovodrun --auto`` runs instead of ``python``."""

import argparse
import ast
import importlib.util
import os
import runpy
import sys
from pathlib import Path

import horovod.numpy as hvd
from horovod.auto import imports, output
from horovod.auto.session import refuse, session


def main(arguments: list[str]) -> None:
    """Run a script, or a module with ``-m``, on this rank."""
    parser = argparse.ArgumentParser(prog="python -m horovod.auto", allow_abbrev=False)
    parser.add_argument("--lr-scale", choices=("none", "linear", "sqrt"), default="none")
    parser.add_argument("-m", dest="module", action="store_true", help="the script is the name of a module")
    parser.add_argument("script")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...")
    given = parser.parse_args(arguments)
    session.lr_scale = given.lr_scale
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "600")  # ranks that disagree end with an error
    hvd.init()
    session.rank, session.size = hvd.rank(), hvd.size()
    _choose_device()
    if given.module:
        spec = importlib.util.find_spec(given.script)
        if spec and spec.submodule_search_locations:
            spec = importlib.util.find_spec(f"{given.script}.__main__")
        session.script = (spec and spec.origin) or given.script
    else:
        session.script = given.script
        sys.path[0] = os.path.dirname(os.path.abspath(given.script))
    check_source(session.script)
    session.say(f"{session.script} runs on {session.size} ranks; a batch of the script is the batch of each rank")
    session.say(f"learning rates: --lr-scale {session.lr_scale}, multiplied by {session.lr_factor:g}")
    session.say("gradients: SUM/count over the samples of all ranks; evaluation: the whole set on each rank")
    session.say("rank 0 alone: print, tqdm, logging below ERROR, torch.save, model.save, TensorBoard, wandb, mlflow")
    output.install()
    imports.install()
    sys.argv = [given.script, *given.rest]
    if given.module:
        runpy.run_module(given.script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(os.path.abspath(given.script), run_name="__main__")


def _choose_device() -> None:
    """Let this process see only the GPU of its local rank, so that "cuda" and "cuda:0" mean that one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(hvd.local_size())]
    if visible != "" and len(names) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = names[hvd.local_rank() % len(names)]


def check_source(path: str) -> None:
    """Refuse a script that changes gradients itself, because they are not reduced yet at that point."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):  # running it reports the error
        return
    for node in ast.walk(tree):
        changed: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            changed = [] if isinstance(node.value, ast.Constant) else node.targets  # p.grad = None is allowed
        elif isinstance(node, ast.AugAssign):
            changed = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name.endswith("_") and not name.startswith("_") and name not in ("zero_", "detach_", "requires_grad_"):
                changed = [node.func.value]
        for target in changed:
            while isinstance(target, ast.Attribute | ast.Subscript):
                if isinstance(target, ast.Attribute) and target.attr == "grad":
                    refuse(
                        "it changes gradients itself, before they are reduced",
                        "use torch.nn.utils.clip_grad_norm_ or clip_grad_value_, or hvd.DistributedOptimizer",
                        f"{path}:{node.lineno}",
                    )
                target = target.value


if __name__ == "__main__":
    main(sys.argv[1:])
