"""Parts of the estimators that all frameworks share.

The modules ``param_table`` (list of params), ``columns`` (columns and their types) and ``plan`` (description of a
training run) need no other software. The other modules are ``params`` and ``saving`` (Spark ML's params), ``store``
(storage), ``prepare`` and ``parquet_parts`` (writing a DataFrame as Parquet), ``reader`` (reading it in ranks),
``backend`` (starting ranks), and ``estimator``, which connects them.
"""
