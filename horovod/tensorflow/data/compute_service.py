"""tf.data's own data service beside a training: steps of preprocessing that are slow run in processes of their own, the
*data workers*, on other cores or hosts, and *dispatchers* tell the training which worker has what.

    horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker compute.json      # the compute side
    horovodrun -np 2 python train.py                                                    # the training side

In the training::

    config = TfDataServiceConfig.read("compute.json", wait_for_file_creation=True)
    dataset = dataset.map(slow).send_to_data_service(config, hvd.rank(), hvd.size(), reuse_dataset=True)
    ...
    if hvd.rank() == 0:
        config.compute_client().shutdown()
"""

import contextlib
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from horovod.common.compute import ComputeClient
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.faces import TENSORFLOW
from horovod.common.objects import broadcast_object
from horovod.common.state import state
from horovod.tensorflow.data.config import TfDataServiceConfig
from horovod.tensorflow.data.way import Way

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

_service = tf.data.experimental.service
_ways: dict[str, Way] = {}  # by the dispatcher's address


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Gives the address of this rank's dispatcher, for ``tf.data.experimental.service.distribute``, when the dispatcher
    and all of its workers are there. With dispatchers on the training side the first ranks have them, one each, until
    they leave the context, which waits until the other ranks that read of it have left theirs: the dataset is to be
    used within it, and so is ``hvd.join()``. The workers end with it.

    A dispatcher that does not answer for ``compute_config.timeout`` seconds becomes a ``tf.errors.NotFoundError`` of
    what reads, and the log ``horovod.data`` names it.

    Raises ValueError when the training has fewer ranks than there are to be dispatchers, TimeoutError naming what has
    not come in ``compute_config.timeout`` seconds, ConnectionError when the service does not answer."""
    number = rank % compute_config.dispatchers
    if compute_config.dispatcher_side == "compute":
        with compute_config.compute_client() as client:
            dispatcher = _registered(compute_config, client, number)
        yield f"grpc://{_way(compute_config, number, dispatcher).address}"
        return
    job = state.job
    if job is not None and job.rank == rank and job.size < compute_config.dispatchers:
        raise ValueError(
            f"dispatchers is {compute_config.dispatchers}, on the training side, accepted is at most one for each rank "
            f"of the training, which has {job.size} (rank {rank})"
        )
    with contextlib.ExitStack() as ends:
        client = ends.enter_context(compute_config.compute_client())
        if rank < compute_config.dispatchers:
            address = _start_dispatcher(ends, client.here)
            ends.callback(client.dispatcher_ends, number)
            client.register_dispatcher(number, address)
            _registered(compute_config, client, number)
            yield f"grpc://{address}"
            client.wait_for_readers(number, _readers(compute_config, rank) - 1, compute_config.timeout)
            return
        dispatcher = _registered(compute_config, client, number)
        reader = client.register_reader(number)
        ends.callback(client.end_reader, number, reader)
        way = Way(compute_config, number, dispatcher, reader)
        ends.callback(way.close)
        yield f"grpc://{way.address}"


def _registered(config: TfDataServiceConfig, client: ComputeClient, number: int) -> str:
    """The address of the dispatcher, when it and its workers are there."""
    address = client.wait_for_dispatcher_registration(number, config.timeout)
    client.wait_for_dispatcher_worker_registration(number, config.workers_per_dispatcher, config.timeout)
    return address


def _way(config: TfDataServiceConfig, number: int, dispatcher: str) -> Way:
    """Of this process, for as long as it is there: nobody knows when a dataset is not used any more."""
    if (found := _ways.get(dispatcher)) is None or not found.leads_there:
        found = _ways[dispatcher] = Way(config, number, dispatcher)
    return found


def _readers(config: TfDataServiceConfig, rank: int) -> int:
    """How many ranks of the training have the dispatcher of this one, as far as is known: at least itself."""
    job = state.job
    if job is None or job.rank != rank:
        return 1
    return len(range(rank % config.dispatchers, job.size, config.dispatchers))


def send_to_data_service(
    dataset: Any,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: Any = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> Any:
    """The dataset as it comes from the data workers, in any order; also a method of ``tf.data.Dataset``. Its steps so
    far run there. What they do cannot be Python (``py_function``, ``from_generator``).

    ``processing_mode``: of ``tf.data.experimental.service.distribute``. ``reuse_dataset``: the ranks of a dispatcher
    share one pass of the dataset; else each has its own. All ranks of the job call it then, as a collective, and
    ``rank`` and ``size`` are theirs. ``round_robin``: they get its elements in turn (of a dataset
    that does not end, with ``processing_mode="parallel_epochs"``); needs ``reuse_dataset`` and ``size``.

    Raises RuntimeError with dispatchers on the training side: use ``tf_data_service`` there; ValueError for a rank and
    size that are not those of the job; else as ``tf_data_service``.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service needs dispatchers on the compute side, this service has them on the training side: "
            "use tf_data_service(compute_config, rank), in which they run, and tf.data.experimental.service.distribute"
        )
    if round_robin and not (reuse_dataset and size is not None):
        raise ValueError(f"round_robin needs reuse_dataset and size, reuse_dataset is {reuse_dataset}, size {size}")
    if size is not None and not 0 <= rank < size:
        raise ValueError(f"rank is {rank}, accepted is 0 to {size - 1}, size is {size}")
    options: dict[str, Any] = {}
    if reuse_dataset:
        options["job_name"] = f"horovod.{_agreed(rank, size)}"
    if round_robin and size is not None:
        # Among the ranks of this dispatcher.
        options["consumer_index"], number = divmod(rank, compute_config.dispatchers)
        options["num_consumers"] = len(range(number, size, compute_config.dispatchers))
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(_service.distribute(processing_mode, address, **options))


def _agreed(rank: int, size: int | None) -> str:
    """A name that no other pass has. A number would do for ranks that began together, not for the next training of the
    same service, nor for ranks that have come later: they would get what is left of another's pass, perhaps nothing."""
    own, job = uuid.uuid4().hex, state.job
    if size == 1:
        return own
    if job is None or rank != job.rank or size not in (None, job.size):
        here = "no job" if job is None else f"rank {job.rank} of {job.size}"
        raise ValueError(
            f"reuse_dataset: the ranks of a job share a pass, rank is {rank}, size {size}; accepted are those of this "
            f"process, which is {here}"
        )
    name: str = broadcast_object(
        own, name="send_to_data_service", face=TENSORFLOW if TENSORFLOW.engine is not None else None
    )
    return name


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig, index: int | None = None) -> None:
    """What a process of the compute side does: a data worker, and its dispatcher where that is due, until nobody needs
    them any more. ``index``: its number, if not the rank that a launcher gave it. One that takes the place of a lost
    one, on the same host, goes on in its stead; but for a dispatcher, which cannot be replaced.

    Raises ValueError for a number that the service does not have, TimeoutError when a dispatcher does not come.
    """
    index = WorkerEnv.from_environ().rank if index is None else index
    with contextlib.ExitStack() as ends:
        client = ends.enter_context(compute_config.compute_client())
        begin_dispatcher(compute_config, client, index, ends)
        run_worker(compute_config, client, index)


def begin_dispatcher(
    config: TfDataServiceConfig, client: ComputeClient, index: int, ends: contextlib.ExitStack
) -> None:
    """The dispatcher of the process ``index`` of the compute side, if it has one; it ends with ``ends``."""
    number, mine = _place_of(config, index)
    if config.dispatcher_side == "compute" and mine == 0:
        client.register_dispatcher(number, _start_dispatcher(ends, client.here))


def run_worker(config: TfDataServiceConfig, client: ComputeClient, index: int) -> None:
    """The data worker of the process ``index``, until its dispatcher is not needed any more."""
    number, mine = _place_of(config, index)
    try:
        dispatcher = client.wait_for_dispatcher_registration(number, config.timeout)
    except TimeoutError as error:
        if config.dispatcher_side == "compute":
            raise
        raise TimeoutError(
            f"{error}: dispatchers are on the training side, rank {number} of the training has it, if it has that rank"
        ) from None
    # What a lost worker had in hand is given to the one at its address, and nobody else: training would wait for it.
    host, _, port = client.find_worker(number, mine).rpartition(":")
    chosen = int(port) if host == client.here else _free_port(client.here)
    address = f"{client.here}:{chosen}"
    worker = _service.WorkerServer(
        _service.WorkerConfig(dispatcher_address=dispatcher, worker_address=address, port=chosen)
    )
    try:
        client.register_worker_for_dispatcher(number, mine, address)
        client.wait_for_shutdown(number)
    finally:
        _stop(worker)
    client.leave(number, mine)


def _place_of(config: TfDataServiceConfig, index: int) -> tuple[int, int]:
    """(number of its dispatcher, its number there)."""
    workers = config.dispatchers * config.workers_per_dispatcher
    if not 0 <= index < workers:
        raise ValueError(f"index is {index}, accepted is 0 to {workers - 1}: the data service has {workers} workers")
    return divmod(index, config.workers_per_dispatcher)


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as tried:
        port: int = tried.getsockname()[1]
        return port


def _start_dispatcher(ends: contextlib.ExitStack, host: str) -> str:
    """Its address; it ends with ``ends``."""
    server = _service.DispatchServer(_service.DispatcherConfig(port=0))
    ends.callback(_stop, server)
    return f"{host}:{server.target.rpartition(':')[2]}"


def _stop(server: Any) -> None:
    getattr(server, "stop", server._stop)()  # older versions have the second only
