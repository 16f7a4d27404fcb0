"""Ranks in fit that are in different epochs, train at different rates, or have stopped."""

import pytest

from tests.keras.modules import hvd, keras, models


def stopping(how):
    """Return the warning that a rank gets when rank 0 alone stops, or None if fit returns."""
    rank = hvd.rank()
    x, y = models.data(16)
    model = models.model()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")

    class RisingLoss(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["score"] = float(epoch) if rank == 0 else -3.0 * epoch

    stop = keras.callbacks.EarlyStopping("score", patience=1, mode="min", restore_best_weights=True)
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), RisingLoss()]
    options = {"epochs": 4}
    if how == "averaged":
        callbacks += [hvd.callbacks.MetricAverageCallback(), stop]
    elif how == "rank 0":
        callbacks += [stop] if rank == 0 else []
    elif how == "own":
        callbacks += [stop]
    elif how == "fewer epochs":
        options["epochs"] = 2 if rank == 0 else 4
    elif how == "later":
        options["initial_epoch"] = 1 if rank == 0 else 0
    elif how == "later, averaged":
        options["initial_epoch"] = 1 if rank == 0 else 0
        callbacks = [hvd.callbacks.MetricAverageCallback()]
    try:
        history = model.fit(x, y, batch_size=8, verbose=0, callbacks=callbacks, **options)
    except Exception as error:
        return type(error).__name__, str(error)
    return len(history.epoch), ""


ENDED = "rank 0 has ended its training after epoch 2, but rank 1 begins epoch 3"
BEGUN = "rank 0 is in epoch 2, but rank 1 in epoch 1"


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("rank 0", ENDED),
        pytest.param("fewer epochs", ENDED, marks=pytest.mark.heavy),
        ("later", BEGUN),
        pytest.param("later, averaged", BEGUN, marks=pytest.mark.heavy),
    ],
)
def test_a_rank_at_another_point_of_fit_is_named_on_all_ranks(keras_pool, how, text):
    for kind, message in keras_pool("tensorflow")(2).run(stopping, how):
        assert kind == "ValueError", message
        assert text in message
        assert (text == BEGUN) != ("EarlyStopping" in message)


def test_ranks_that_stop_together_are_left_alone(keras3):
    first, second = keras3(2).run(stopping, "averaged")
    assert first == second == (4, "")
    for kind, message in keras3(2).run(stopping, "own"):
        assert (kind, ENDED in message) == ("ValueError", True)


def plateau(averaged):
    rank = hvd.rank()
    x, y = models.data(16)
    model = models.model()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss="mse")

    class Score(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["score"] = 1.0 if rank == 0 else -float(epoch)

    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), Score()]
    callbacks += [hvd.callbacks.MetricAverageCallback()] if averaged else []
    callbacks += [keras.callbacks.ReduceLROnPlateau("score", factor=0.1, patience=1, min_delta=0.5, mode="min")]
    try:
        model.fit(x, y, batch_size=8, epochs=4, verbose=0, callbacks=callbacks)
    except ValueError as error:
        return str(error)
    return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))


def test_learning_rates_that_differ_are_an_error_in_the_next_epoch(keras3):
    job = keras3(2)
    for message in job.run(plateau, False):
        assert "the learning rate of epoch 3 is 0.01 on rank 0, but 0.1 on rank 1" in str(message)
        assert "ReduceLROnPlateau" in message
    first, second = job.run(plateau, True)
    assert first == second
    assert first < 0.1


def test_places_are_compared():
    from horovod._keras.checks import Position, compare_places

    compare_places([Position(3, False, 0.1), Position(3, False, None), Position(3, False, 0.1 * (1 + 1e-7))])
    compare_places([Position(3, True, None), Position(3, True, None)])
    compare_places([Position(3, False, float("nan"))] * 2)
    for places, text in (
        ([Position(0, False, 0.1), Position(0, True, None)], "rank 1 has ended its training after epoch 1, but rank 0"),
        (
            [Position(0, False, 0.1), Position(0, False, 0.2)],
            "learning rate of epoch 1 is 0.1 on rank 0, but 0.2 on rank 1",
        ),
        ([Position(0, False, 0.1), Position(4, False, 0.1)], "rank 0 is in epoch 1, but rank 1 in epoch 5"),
    ):
        with pytest.raises(ValueError, match=text):
            compare_places(places)
