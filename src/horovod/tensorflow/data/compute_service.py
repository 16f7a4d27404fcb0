"""Preprocessing for a training job in separate processes, built on tf.data's data service.

*Data workers* run the preprocessing on other cores or hosts. *Dispatchers* tell the training processes which data
worker has which data. Start both sides::

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
from horovod.common.frontends import TENSORFLOW, state
from horovod.common.objects import broadcast_object
from horovod.tensorflow.data.config import Relay, TfDataServiceConfig

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

_service = tf.data.experimental.service
# Relays in use, keyed by dispatcher address.
_relays: dict[str, Relay] = {}


@contextlib.contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Provide a data service dispatcher for this rank.

    The context manager yields an address for ``tf.data.experimental.service.distribute``. Entering waits until the
    dispatcher and all its workers are running. Use the dataset, and call ``hvd.join()``, within the context.

    With dispatchers on the training side, each of the first ranks runs one dispatcher until it leaves the context.
    Leaving waits until all other ranks that read from the dispatcher have also left, and then ends the dispatcher's
    workers. If a dispatcher does not respond for ``compute_config.timeout`` seconds, reading raises
    tf.errors.NotFoundError, and the logger ``horovod.data`` names the dispatcher.

    Args:
        compute_config (TfDataServiceConfig): Configuration of the service.
        rank (int): Rank of this process in the training job.

    Yields:
        str: Address of the dispatcher.

    Raises:
        ValueError: If the training has fewer ranks than dispatchers.
        TimeoutError: If a part of the service did not start within ``compute_config.timeout`` seconds.
        ConnectionError: If the service does not respond.
    """
    number = rank % compute_config.dispatchers
    if compute_config.dispatcher_side == "compute":
        with compute_config.compute_client() as client:
            dispatcher = _registered(compute_config, client, number)
        yield f"grpc://{_relay_to(compute_config, number, dispatcher).address}"
        return
    job = state.job
    if job is not None and job.rank == rank and job.size < compute_config.dispatchers:
        raise ValueError(
            f"dispatchers on the training side must be at most the number of ranks of the training, {job.size}, got "
            f"{compute_config.dispatchers} (rank {rank})"
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
        relay = Relay(compute_config, number, dispatcher, reader)
        ends.callback(relay.close)
        yield f"grpc://{relay.address}"


def _registered(config: TfDataServiceConfig, client: ComputeClient, number: int) -> str:
    """Wait until a dispatcher and its workers have registered, and return the dispatcher's address."""
    address = client.wait_for_dispatcher_registration(number, config.timeout)
    client.wait_for_dispatcher_worker_registration(number, config.workers_per_dispatcher, config.timeout)
    return address


def _relay_to(config: TfDataServiceConfig, number: int, dispatcher: str) -> Relay:
    """Return the relay to a dispatcher, creating it if necessary.

    The relay stays open until the process exits, because there is no way to tell when the last dataset stops using it.
    """
    if (found := _relays.get(dispatcher)) is None or not found.leads_there:
        found = _relays[dispatcher] = Relay(config, number, dispatcher)
    return found


def _readers(config: TfDataServiceConfig, rank: int) -> int:
    """Return the number of training ranks that share this rank's dispatcher, which is at least 1."""
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
    """Return a dataset whose preprocessing steps defined so far run on the data workers.

    The dataset yields elements in any order.

    This function is also a method of ``tf.data.Dataset``. The steps cannot contain Python code (``py_function``,
    ``from_generator``).

    Args:
        dataset (tf.data.Dataset): Dataset with the steps to move to the data workers.
        compute_config (TfDataServiceConfig): Configuration of the service.
        rank (int): Rank of this process in the training job.
        size (int, optional): Number of ranks in the training job.
        processing_mode (str or object): Same as in ``tf.data.experimental.service.distribute``. Default:
            "distributed_epoch".
        reuse_dataset (bool): Let the ranks of a dispatcher share one pass over the dataset instead of one pass each.
            All ranks of the job must then make this call, like a collective. Default: False.
        round_robin (bool): Give elements to the ranks in turn. Requires ``reuse_dataset``, ``size``, an infinite
            dataset and ``processing_mode="parallel_epochs"``. Default: False.

    Returns:
        tf.data.Dataset: Dataset of the elements produced by the data workers.

    Raises:
        RuntimeError: If dispatchers are on the training side; use ``tf_data_service``.
        ValueError: If ``rank`` or ``size`` does not match the job, or options conflict.
        TimeoutError: If ``tf_data_service`` would raise it.
        ConnectionError: If ``tf_data_service`` would raise it.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service needs dispatchers on the compute side, this service has them on the training side: "
            "use tf_data_service(compute_config, rank), in which they run, and tf.data.experimental.service.distribute"
        )
    if round_robin and not (reuse_dataset and size is not None):
        raise ValueError(f"round_robin needs reuse_dataset and size, got reuse_dataset={reuse_dataset}, size={size}")
    if size is not None and not 0 <= rank < size:
        raise ValueError(f"rank must be from 0 to {size - 1} with size {size}, got {rank}")
    options: dict[str, Any] = {}
    if reuse_dataset:
        options["job_name"] = f"horovod.{_agreed(rank, size)}"
    if round_robin and size is not None:
        # Set consumer_index to this rank's index among the ranks that share its dispatcher.
        options["consumer_index"], number = divmod(rank, compute_config.dispatchers)
        options["num_consumers"] = len(range(number, size, compute_config.dispatchers))
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(_service.distribute(processing_mode, address, **options))


def _agreed(rank: int, size: int | None) -> str:
    """Choose a name for this pass over the data, unique in the service and the same on all ranks.

    A simple counter would not be unique: a rank that joins later, or a later training with the same service, would read
    the rest of an earlier pass.

    Returns:
        The name.

    Raises:
        ValueError: If ``rank`` and ``size`` are not those of this process.
    """
    own, job = uuid.uuid4().hex, state.job
    if size == 1:
        return own
    if job is None or rank != job.rank or size not in (None, job.size):
        here = "no job" if job is None else f"rank {job.rank} of {job.size}"
        raise ValueError(
            f"reuse_dataset: rank and size must be those of this process, {here}, because the ranks of a job share a "
            f"pass; got rank {rank}, size {size}"
        )
    name: str = broadcast_object(
        own, name="send_to_data_service", frontend=TENSORFLOW if TENSORFLOW.engine is not None else None
    )
    return name


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig, index: int | None = None) -> None:
    """Run one of the processes that serve the training with data, until the training ends.

    Each process runs a tf.data service worker. The first process of each dispatcher also runs the dispatcher.

    Args:
        compute_config (TfDataServiceConfig): Configuration of the service.
        index (int, optional): Number of the process. To replace a lost process, start one with the same number on the
            same host. A process with a dispatcher cannot be replaced. Default: the rank given by the launcher.

    Raises:
        ValueError: If the service has no process with number ``index``.
        TimeoutError: If the dispatcher did not start.
    """
    index = WorkerEnv.from_environ().rank if index is None else index
    with contextlib.ExitStack() as ends:
        client = ends.enter_context(compute_config.compute_client())
        begin_dispatcher(compute_config, client, index, ends)
        run_worker(compute_config, client, index)


def begin_dispatcher(
    config: TfDataServiceConfig, client: ComputeClient, index: int, ends: contextlib.ExitStack
) -> None:
    """Start a dispatcher if this process must run one.

    Args:
        config: Configuration of the service.
        client: Client of the service's registry.
        index: Index of this process among the processes of the compute job.
        ends: Stack that stops the dispatcher when it is closed.
    """
    number, mine = _place_of(config, index)
    if config.dispatcher_side == "compute" and mine == 0:
        client.register_dispatcher(number, _start_dispatcher(ends, client.here))


def run_worker(config: TfDataServiceConfig, client: ComputeClient, index: int) -> None:
    """Run the data worker of process ``index`` until its dispatcher shuts down."""
    number, own = _place_of(config, index)
    try:
        dispatcher = client.wait_for_dispatcher_registration(number, config.timeout)
    except TimeoutError as error:
        if config.dispatcher_side == "compute":
            raise
        raise TimeoutError(
            f"{error}: dispatchers are on the training side, rank {number} of the training has it, if it has that rank"
        ) from None
    # Reuse the address of a lost worker. The dispatcher reassigns the lost worker's unfinished tasks only to a worker
    # at that address, and training waits for these tasks.
    host, _, port = client.find_worker(number, own).rpartition(":")
    chosen = int(port) if host == client.here else _free_port(client.here)
    address = f"{client.here}:{chosen}"
    worker = _service.WorkerServer(
        _service.WorkerConfig(dispatcher_address=dispatcher, worker_address=address, port=chosen)
    )
    try:
        client.register_worker_for_dispatcher(number, own, address)
        client.wait_for_shutdown(number)
    finally:
        _stop(worker)
    client.leave(number, own)


def _place_of(config: TfDataServiceConfig, index: int) -> tuple[int, int]:
    """Return the index of a process's dispatcher, and the process's index among that dispatcher's workers."""
    workers = config.dispatchers * config.workers_per_dispatcher
    if not 0 <= index < workers:
        raise ValueError(f"index must be from 0 to {workers - 1}, got {index}: the data service has {workers} workers")
    return divmod(index, config.workers_per_dispatcher)


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as tried:
        port: int = tried.getsockname()[1]
        return port


def _start_dispatcher(ends: contextlib.ExitStack, host: str) -> str:
    """Start a dispatcher and return its address. Closing the stack ``ends`` stops the dispatcher."""
    server = _service.DispatchServer(_service.DispatcherConfig(port=0))
    ends.callback(_stop, server)
    return f"{host}:{server.target.rpartition(':')[2]}"


def _stop(server: Any) -> None:
    # Fall back to `_stop`, because servers in older versions of TensorFlow have no `stop`.
    getattr(server, "stop", server._stop)()
