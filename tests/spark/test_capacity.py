import pytest

from horovod.spark.capacity import bound


@pytest.mark.parametrize(
    ("conf", "slots", "why"),
    [
        ({"spark.master": "local"}, 1, "the master local has 1 core"),
        ({"spark.master": "local[3]"}, 3, "has 3 cores"),
        ({"spark.master": "local[*]"}, 8, "has 8 cores"),
        ({"spark.master": "local[4,2]", "spark.task.cpus": "2"}, 2, "has 4 cores, and spark.task.cpus is 2"),
        ({"spark.master": "local-cluster[2,3,1024]"}, 6, "means 2 executors of 3 cores"),
        ({"spark.master": "local-cluster[ 2 , 3 , 1024 ]", "spark.task.cpus": "2"}, 2, "spark.task.cpus is 2"),
        ({"spark.master": "spark://a:7077", "spark.cores.max": "5"}, 5, "spark.cores.max is 5"),
        (
            {"spark.master": "yarn", "spark.executor.instances": "3", "spark.executor.cores": "4"},
            12,
            "spark.executor.instances=3 means 3 executors of 4 cores",
        ),
        (
            {
                "spark.master": "k8s://https://x",
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "2",
                "spark.executor.instances": "1",
            },
            2,
            "spark.dynamicAllocation.maxExecutors=2 means 2 executors of 1 core",
        ),
    ],
)
def test_what_settings_tell(conf, slots, why):
    found = bound(conf, cores=8)
    assert found.slots == slots
    assert why in found.why


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"spark.master": "spark://a:7077"},
        {"spark.master": "yarn"},
        {"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "2"},
        {"spark.master": "mesos://x", "spark.executor.instances": "2"},
    ],
)
def test_what_they_do_not_tell(conf):
    assert bound(conf, cores=8) is None
