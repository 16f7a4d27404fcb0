"""What is saved in tests of checkpoints, wherever they are."""

from horovod.common.elastic import Checkpoint


def saved(directory, *steps, **kwargs):
    with Checkpoint(directory, **kwargs) as checkpoint:
        for step in steps:
            checkpoint.save(step, {"step": step})
            checkpoint.wait()
    return checkpoint


def dump_until_full(value, file):
    """Of the value "bad" a part; then the disk is full."""
    file.write(b"some" * 1000)
    if value == "bad":
        raise OSError(28, "No space left on device")
