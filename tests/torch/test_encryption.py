"""Results do not depend on how connections are encrypted."""

import hashlib

import torch

import horovod.torch as hvd
from horovod.common.security import cipher


def test_the_same_bits_with_every_cipher_and_without(pool):
    def work():
        digest = hashlib.sha256()
        for count in (1, 1000, 70_001, 1_000_003):
            values = torch.sin(torch.arange(count, dtype=torch.float32) * (1 + hvd.rank()))
            for _ in range(4):  # the later ones by a schedule
                result = hvd.allreduce(values, name=f"sum.{count}", op=hvd.Sum)
            digest.update(result.numpy().tobytes())
        gathered = hvd.allgather(torch.arange(hvd.rank() * 30_000), name="gather")
        digest.update(gathered.numpy().tobytes())
        splits = torch.tensor([10_000 * (rank + 1) for rank in range(hvd.size())], dtype=torch.int32)
        digest.update(hvd.alltoall(torch.arange(int(splits.sum())), splits)[0].numpy().tobytes())
        return digest.hexdigest()

    ways = [{"HOROVOD_ENCRYPT_DATA": "0"}] + [
        {"HOROVOD_ENCRYPT_DATA": "1", "HOROVOD_CIPHER": name} for name in cipher.available()
    ]
    plain, *others = [pool(3, HOROVOD_TRANSPORT="tcp", **way).run(work) for way in ways]
    assert len(others) == len(ways) - 1 >= 1
    assert all(other == plain for other in others)
