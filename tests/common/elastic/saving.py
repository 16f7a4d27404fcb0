"""Values and writers shared by tests of checkpoints."""

from horovod.common.elastic import Checkpoint


def saved(directory, *steps, **kwargs):
    with Checkpoint(directory, **kwargs) as checkpoint:
        for step in steps:
            checkpoint.save(step, {"step": step})
            checkpoint.wait()
    return checkpoint


def dump_until_full(value, file):
    """Write a part of the value "bad", then fail as if the disk were full."""
    file.write(b"some" * 1000)
    if value == "bad":
        raise OSError(28, "No space left on device")
