from horovod.common.network.interfaces import machine_identity


def test_machine_identity():
    assert machine_identity(True) == machine_identity(True)
    assert machine_identity(False) != machine_identity(False)
