"""hvd.init() hides the variables that horovodrun has set for torch.distributed."""

import pytest

from horovod.torch.distributed import from_launcher, hide

HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}
PLACE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}


def test_the_launchers_variables_are_hidden_and_the_address_stays():
    environ = {**HOROVOD, **PLACE, "MASTER_ADDR": "h", "MASTER_PORT": "1"}
    assert from_launcher(environ)
    hide(environ)
    assert environ == {**HOROVOD, "MASTER_ADDR": "h", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    "environ",
    [
        PLACE,
        {**HOROVOD, **PLACE, "RANK": "0"},
        {**HOROVOD, **PLACE, "TORCHELASTIC_RUN_ID": "x"},
        {**HOROVOD, **PLACE, "HOROVOD_TORCH_DISTRIBUTED_ENV": "0"},
        HOROVOD,
    ],
)
def test_launchers_of_others_are_not_recognized(environ):
    assert not from_launcher(environ)
