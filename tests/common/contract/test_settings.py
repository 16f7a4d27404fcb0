"""The settings table: parsing, messages, generated documentation."""

from pathlib import Path

import pytest

from horovod.common.contract import settings
from horovod.common.contract.settings import BY_NAME, TABLE, Settings


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "0", 0),
        ("HOROVOD_CYCLE_TIME", "2.5", 2.5),
        ("HOROVOD_CYCLE_TIME", " 3 ", 3.0),
        ("HOROVOD_AUTOTUNE", "1", True),
        ("HOROVOD_AUTOTUNE", "0", False),
        ("HOROVOD_AUTOTUNE", "True", True),
        ("HOROVOD_AUTOTUNE", "yes", True),
        ("HOROVOD_AUTOTUNE", "FALSE", False),
        ("HOROVOD_AUTOTUNE", "No", False),
        ("HOROVOD_FUSION_THRESHOLD", "True", 0),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "true", 30.0),
        ("HOROVOD_TRANSPORT", "TCP", "tcp"),
        ("HOROVOD_LOG_LEVEL", "DEBUG", "debug"),
        ("HOROVOD_THREAD_AFFINITY", "0,3", [0, 3]),
        ("HOROVOD_ALGORITHM", "allreduce=ring", "allreduce=ring"),
        ("HOROVOD_CACHE_CAPACITY", "", 1024),
    ],
)
def test_accepted_values(name, text, value):
    assert Settings.from_environ({name: text}).values[name] == value


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "-1", "an integer from 0 to 1099511627776"),
        ("HOROVOD_FUSION_THRESHOLD", "64MB", "an integer from 0 to"),
        ("HOROVOD_FUSION_THRESHOLD", "1.5", "an integer"),
        ("HOROVOD_CYCLE_TIME", "nan", "a number from 0 to 60000"),
        ("HOROVOD_CYCLE_TIME", "inf", "a number"),
        ("HOROVOD_SPARK_START_TIMEOUT", "inf", "a number of 0.1 or more"),
        ("HOROVOD_AUTOTUNE", "on", "0 or 1 (or false, true, no, yes)"),
        ("HOROVOD_AUTOTUNE", "2", "0 or 1"),
        ("HOROVOD_TRANSPORT", "rdma", "auto, tcp"),
        ("HOROVOD_LOG_LEVEL", "LOUD", "trace, debug, info, warning, error, fatal"),
        ("HOROVOD_THREAD_AFFINITY", "1,,2", "integers of 0 or more, separated by commas"),
        ("HOROVOD_THREAD_AFFINITY", "1,-2", "integers of 0 or more"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "1.01", "a number from 0 to 1"),
        ("HOROVOD_STAGING_BYTES", "65537", "a multiple of 4096"),
        ("HOROVOD_RING_BYTES", "5000", "a power of two"),
    ],
)
def test_a_bad_value_names_variable_value_and_accepted_values(name, text, accepted):
    with pytest.raises(ValueError) as caught:
        Settings.from_environ({name: text})
    message = str(caught.value)
    assert message.startswith(f"{name} must be ")
    assert message.rpartition("got ")[2].strip("'") == text
    assert accepted in message


def test_every_default_is_itself_accepted():
    for setting in TABLE:
        if setting.default in (None, ""):
            continue
        shown = str(int(setting.default)) if isinstance(setting.default, bool) else str(setting.default)
        assert setting.parse(shown) == setting.default, setting.name


def test_names_are_unique_and_fields_belong_to_one_setting():
    assert len(BY_NAME) == len(TABLE)
    for column in ("engine", "flag", "yaml"):
        used = [getattr(setting, column) for setting in TABLE if getattr(setting, column)]
        assert len(set(used)) == len(used), column


@pytest.mark.parametrize("asking", [(), (0,), (2,), (0, 1, 2)])
def test_encryption_is_on_if_any_rank_requests_it(asking):
    sent = [Settings.from_environ({"HOROVOD_ENCRYPT_DATA": str(int(rank in asking))}).shared() for rank in range(3)]
    assert settings.agree(sent)["HOROVOD_ENCRYPT_DATA"] is bool(asking)


def test_engine_fields_exist_in_the_contract():
    contract = (Path(settings.__file__).parent.parent.parent / "_core.pyi").read_text()
    config = contract.split("class EngineConfig")[1].split("\nclass ")[0]
    for setting in TABLE:
        if setting.engine:
            assert f"    {setting.engine}: " in config, setting.name


def test_documentation_is_current():
    page = Path(settings.__file__).parents[4] / "docs" / "settings.md"
    if not page.exists():
        pytest.skip("not in a checkout")
    assert page.read_text() == settings.generate_docs(), (
        "run: python -m horovod.common.contract.settings > docs/settings.md"
    )
