import os

from horovod.spark.task import get_available_devices, own_environment


def test_the_environment_of_ranks():
    environ = {"A": "b", "PYTHONPATH": "/old", "HOROVOD_SPARK_PYTHONPATH": "/own", "AWS_SECRET_ACCESS_KEY": "mine"}
    environ.update(PYTHON_WORKER_FACTORY_SECRET="s", _SPARK_AUTH_SECRET="t")
    path = ["", ".", "/job/files", "/usr/lib/python3.11", "/venv/site-packages", "/old"]
    variables = {"HOROVOD_SPARK_PYTHONPATH": "/of/the/driver"}
    result = own_environment(environ, path, ("/venv", "/usr"), variables)
    assert result["A"] == "b"
    assert result["AWS_SECRET_ACCESS_KEY"] == "mine"
    assert [name for name in result if "SECRET" in name] == ["AWS_SECRET_ACCESS_KEY"]
    assert result["PYTHONPATH"].split(os.pathsep) == ["/own", "/job/files", "/old"]
    assert own_environment({}, [], (), variables)["PYTHONPATH"] == "/of/the/driver"


def test_devices(monkeypatch):
    monkeypatch.delenv("HOROVOD_SPARK_DEVICES", raising=False)
    assert get_available_devices() == []
    monkeypatch.setenv("HOROVOD_SPARK_DEVICES", "0,3")
    assert get_available_devices() == ["0", "3"]
