"""Environment variables that are set but are no settings."""

import re
from pathlib import Path

import pytest

from horovod.common.contract import notices
from horovod.common.contract.notices import sentences

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HOROVOD_FUSION_TRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
        ("HOROVOD_FUSION_THRESHOLD_MB", "HOROVOD_FUSION_THRESHOLD"),
        ("HOROVOD_CYCLETIME", "HOROVOD_CYCLE_TIME"),
        ("HOROVOD_LOGLEVEL", "HOROVOD_LOG_LEVEL"),
        ("horovod_log_level", "HOROVOD_LOG_LEVEL"),
        ("HOROVOD_GLOO_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS"),
        ("HOROVOD_TIMELINE_FILENAME", "HOROVOD_TIMELINE"),
        ("HOROVD_TIMELINE", "HOROVOD_TIMELINE"),
        ("HOROVOD_LOCAL_RNAK", "HOROVOD_LOCAL_RANK"),
        ("HOROVOD_TIMELINE", ""),
        ("HOROVOD_RANK", ""),
        # Variables of users, and of other versions of Horovod.
        ("HOROVOD_NCCL_HOME", ""),
        ("HOROVOD_WITHOUT_MPI", ""),
        ("HOROVOD_VERSION", ""),
        ("HOROVOD_EXPERIMENT", ""),
        ("HOME_TIMELINE", ""),
        ("HOROVOD_", ""),
        ("HOROVOD", ""),
        ("", ""),
    ],
)
def test_nearest_variable(name, meant):
    assert notices.nearest_variable(name) == meant
    messages = sentences({name: "secret"})
    assert len(messages) == bool(meant)
    assert all(text.startswith(f"{name} is set, ") and text.endswith(f"did you mean {meant}?") for text in messages)
    assert "secret" not in str(messages)


def test_horovods_own_variables_are_not_misspelt():
    found = set()
    for folder in ("src", "bindings", "core", "deploy"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".cc", ".h", ".sh", ".yaml", ".json"):
                found.update(re.findall(r"\bHOROVOD_[A-Z0-9_]*[A-Z0-9]\b", path.read_text(errors="replace")))
    assert len(found) > 100
    assert {name: near for name in sorted(found) if (near := notices.nearest_variable(name))} == {}


def test_variables_set_by_the_program():
    environ = {"HOME": "/", "HOROVOD_SET_BY_A_TEST": "1"}
    assert notices.of_program(environ) == ["HOROVOD_SET_BY_A_TEST"]
