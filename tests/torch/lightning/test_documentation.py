"""The program of docs/pytorch/lightning.md runs as it stands there, and trains."""

import pytest

pytest.importorskip("lightning.pytorch")

from tests.documents import programs
from tests.torch.test_documentation import run

pytestmark = pytest.mark.heavy
AFTER = """
import horovod.torch as hvd

assert trainer.world_size == 2
assert abs(module.net.weight.item() - 3) < 0.2 and abs(module.net.bias.item() - 1) < 0.1
hvd.check_in_sync(module)
"""


@pytest.mark.heavy
def test_it_runs_and_trains(pool, tmp_path):
    pool(2).run(run, programs("torch")["lightning"].text + AFTER, str(tmp_path), timeout=120.0)
