"""What the estimators of all frameworks share.

Pure: which params there are (``param_table``), what a column becomes (``columns``), what a rank is told (``plan``).
What acts: params of Spark ML (``params``, ``saving``), where files lie (``store``), a DataFrame as Parquet
(``prepare``, ``parquet_parts``), reading it in ranks (``reader``), starting ranks (``backend``), the whole of it
(``estimator``). No framework."""
