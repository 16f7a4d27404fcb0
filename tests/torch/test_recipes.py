"""The programs of docs/pytorch run unchanged, and have the documented effect."""

import os
import shutil
import socket
import sys
import tempfile

import pytest
import torch

import horovod.torch as hvd
from tests.documents import programs
from tests.torch.recipes import CHECKS, execute


def run(folder, text, name):
    os.chdir(tempfile.mkdtemp(dir=folder))
    random = torch.get_rng_state()
    try:
        left = execute(text)
        for check in CHECKS[name]:
            check(left)
    finally:
        torch.set_rng_state(random)
        os.chdir("/")
        hvd.barrier()  # fails if the program leaves one rank behind


@pytest.mark.heavy
@pytest.mark.parametrize("name", CHECKS)
def test_recipe(pool, tmp_path, name):
    found = programs("torch")
    text = found["beginning"].text + found[name].text
    if name == "IterableDataset" and sys.version_info >= (3, 14):
        text = text.replace("WORKERS, BATCH = 2, 32", "WORKERS, BATCH = 0, 32")  # spawning needs a module
    pool(2).run(run, str(tmp_path), text, name)


def migrate(folder, begins, before, after):
    """Run both programs on this rank; rank 0 compares the files that they saved."""
    os.chdir(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = hvd.broadcast_object(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": hvd.rank(), "WORLD_SIZE": hvd.size()}
    place["HOROVOD_TORCH_DISTRIBUTED_ENV"] = 0  # hvd.init() would take these variables for the launcher's and hide them
    kept = dict(os.environ)
    os.environ.update({name: str(value) for name, value in place.items()})
    try:
        execute(begins + before)
        if hvd.rank() == 0:
            shutil.move("model.pt", "ddp.pt")
        execute(begins + after)
    finally:
        os.environ.clear()
        os.environ.update(kept)
    if hvd.rank() == 0:
        ddp, horovod = torch.load("ddp.pt"), torch.load("model.pt")
        assert ddp.keys() == horovod.keys()
        for name in horovod:
            torch.testing.assert_close(horovod[name], ddp[name], rtol=1e-4, atol=1e-5)
    os.chdir("/")
    hvd.barrier()


@pytest.mark.heavy
def test_migration_from_ddp(pool, tmp_path):
    found = programs("torch")
    block = found["from DDP"]
    pool(2).run(migrate, str(tmp_path), found["beginning"].text, block.without("+"), block.without("-"))
