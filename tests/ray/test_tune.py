"""Ray Tune trials that are jobs of several ranks."""

import pytest

pytest.importorskip("ray.tune", exc_type=ImportError)

from horovod.ray.tune import trainable


def study(config):
    import numpy as np

    import horovod.numpy as hvd
    from horovod.ray.tune import report

    hvd.init()
    if config["lr"] < 0:
        raise ValueError("the learning rate is negative")
    for step in range(2):
        loss = float(hvd.allreduce(np.full(1, config["lr"] * (hvd.rank() + 1)), op=hvd.Sum)[0])
        report({"loss": loss, "step": step, "size": hvd.size()})


@pytest.mark.long
def test_a_study(local, tmp_path):
    from ray import tune

    tuner = tune.Tuner(
        trainable(study, num_workers=2),
        param_space={"lr": tune.grid_search([0.5, 2.0, -1.0])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    results = tuner.fit()
    assert results.get_best_result().config == {"lr": 0.5}
    table = {one.config["lr"]: one for one in results}
    assert table[0.5].metrics["loss"] == 1.5
    assert (table[2.0].metrics["loss"], table[2.0].metrics["size"], table[2.0].metrics["step"]) == (6.0, 2, 1)
    assert "the learning rate is negative" in str(table[-1.0].error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 0}, "num_workers must be an integer of at least 1, got 0"),
        ({"num_workers": 1, "cpus_per_worker": 0}, "cpus_per_worker must be an integer of at least 1, got 0"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "use_gpu must be True with gpus_per_worker=1, got False"),
        ({"num_workers": 1, "timeout_s": 0}, "timeout_s must be a number of seconds"),
    ],
)
def test_wrong_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        trainable(study, **arguments)


def test_invalid_functions():
    with pytest.raises(TypeError, match="func must be a function of a trial's config, got 3"):
        trainable(3, 1)


def test_trials_request_one_bundle_per_rank():
    trial = trainable(study, 3, cpus_per_worker=2)
    assert trial._resources.required_resources == {"CPU": 6.0}
    assert trial.__name__ == "study"
