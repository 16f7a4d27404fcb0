"""Sink for the engine's log messages: stderr, with rank and time."""

import sys
import time
from collections.abc import Callable

from horovod.common.contract.settings import LOG_LEVELS, Settings


def make_sink(rank: int, hide_time: bool) -> Callable[[int, str], None]:
    """Return a function (level, message) that writes one line; it is called from the engine's thread."""

    def sink(level: int, message: str) -> None:
        name = LOG_LEVELS[level].upper() if 0 <= level < len(LOG_LEVELS) else str(level)
        stream = sys.stderr
        if stream is None:  # processes without stderr, and the very end of the interpreter
            return
        stamp = ""
        if not hide_time:
            now = time.time()
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d} "
        try:
            stream.write(f"{stamp}[horovod, rank {rank}] {name}: {message}\n")
            stream.flush()
        except (OSError, ValueError):
            pass  # a closed stderr must not end training

    return sink


def warner(rank: int, settings: Settings) -> Callable[[str], None]:
    """Return a function that logs a warning in the engine's format."""
    warning = LOG_LEVELS.index("warning")
    sink = make_sink(rank, settings.flag("HOROVOD_LOG_HIDE_TIME"))
    shown = LOG_LEVELS.index(settings.text("HOROVOD_LOG_LEVEL")) <= warning
    return lambda text: sink(warning, text) if shown else None
