"""Explanations of Spark's failures, derived from its messages. Pure."""

from __future__ import annotations

import re

_LINES = 12  # maximum number of lines of Spark's message that are shown

_KNOWN = (
    (
        r"No module named '(horovod(?:\.(?:spark|runner|common)[\w.]*)?|cloudpickle|msgspec|zmq)'",
        "an executor has no horovod, or another version ({0}): install the version of the driver, and what it needs, "
        "for the Python of the executors (PYSPARK_PYTHON, spark.pyspark.python)",
    ),
    (
        r"Python in worker has different version:? ?\(?['\"]?([\d.]+)[^\n]*",
        "an executor runs Python {0}, the driver another: let spark.pyspark.python name an interpreter of the driver's "
        "minor version on all nodes",
    ),
    (
        r"Cannot run program \"([^\"]+)\"",
        "an executor cannot run Python as {0}: let spark.pyspark.python name an interpreter that is there on all nodes",
    ),
    (
        r"the launcher refuses this process: ([^\n]+)",
        "an executor cannot take part: {0}",
    ),
    (
        r"(host \S+ cannot reach the job's launcher[^\n]*)",
        "{0}; executors have to reach the driver: see nics, and HOROVOD_PORT_RANGE where a firewall is in between",
    ),
)


def known(text: str) -> str:
    """Return the explanation of a failure that retrying cannot solve, or an empty string for other failures."""
    for pattern, words in _KNOWN:
        if found := re.search(pattern, text):
            return words.format(found[1])
    return ""


def explain(text: str) -> str:
    """Return the most informative part of Spark's message about a failed job, or an explanation of it."""
    if words := known(text):
        return words
    lost = re.findall(r"ExecutorLostFailure[^\n]*", text)
    if lost:
        return str(lost[-1]).strip()
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not re.match(r"\s+at |\s*\.\.\. \d", line)]
    lines = [re.sub(r"^.*?Exception: (?=Job aborted)", "", line) for line in lines]
    begin = next((at for at, line in enumerate(lines) if "Job aborted" in line or "failed" in line), 0)
    return "\n".join(lines[begin : begin + _LINES])
