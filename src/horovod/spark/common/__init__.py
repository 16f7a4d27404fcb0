"""Framework-independent parts of the estimators.

Modules without dependencies on other software: the list of params (``param_table``), columns and their types
(``columns``), the description of a training run that ranks receive (``plan``). Other modules: Spark ML's params
(``params``, ``saving``), storage (``store``), writing a DataFrame as Parquet (``prepare``, ``parquet_parts``), reading
it in ranks (``reader``), starting ranks (``backend``), and the estimator that connects them (``estimator``).
"""
