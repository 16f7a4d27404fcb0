"""Additional params of Keras estimators and models. Pure."""

from horovod.spark.common import checks
from horovod.spark.common.param_table import Row

KERAS = (
    Row("custom_objects", "names of classes and functions that the model's file has", None, checks.mapping),
    Row("checkpoint_callback", "a ModelCheckpoint in place of a checkpoint of each epoch; what it keeps is the result"),
    Row(
        "backend_env",
        "environment of the ranks",
        {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"},
        checks.mapping,
    ),
)
KERAS_MODEL = (
    Row("custom_objects", "names of classes and functions that the model's file has", None, checks.mapping),
    Row("_floatx", "Keras' floating type of the model", None, checks.text),
)
