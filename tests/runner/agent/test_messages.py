import os
import struct

import pytest

from horovod.runner.agent import messages
from horovod.runner.agent.messages import (
    FrameReader,
    FrameWriter,
    Output,
    Report,
    Request,
    StartJob,
    Stop,
    StreamData,
    Worker,
)
from horovod.runner.base.job_result import AgentError

START = StartJob([b"python", b"\xff"], b"/", [(b"A", b"\xfe=1")], [Worker(0, [(b"R", b"0")])], b"k" * 32, 0)


def written(*sent):
    read_end, write_end = os.pipe()
    writer = FrameWriter(write_end)
    for message in sent:
        writer.send(message)
    os.close(write_end)
    data = os.read(read_end, 1 << 20)
    os.close(read_end)
    return data


def test_messages_are_parsed_from_any_chunks():
    data = written(START, Stop(5.0))
    reader = FrameReader(Request)
    got = [message for index in range(len(data)) for message in reader.feed(data[index : index + 1])]
    assert got == [START, Stop(5.0)]
    # Defaults: nobody reads stdin, no results, no relay.
    plain = StartJob(START.command, START.directory, START.environment, START.workers, START.key)
    assert FrameReader(Request).feed(written(plain)) == [plain]
    assert plain.stdin_rank == -1
    assert StreamData(1, b"").error is False
    assert (plain.results, plain.relay, plain.own_environment, plain.own_python, plain.env_deny) == (False,) * 4 + ([],)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", messages.FRAME_LIMIT + 1),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        written(Output(0, 1, b"x")),  # a report is not a request
    ],
)
def test_invalid_requests_are_refused(data):
    with pytest.raises(AgentError):
        FrameReader(Request).feed(data)


def test_the_writer_does_not_block_and_resumes_later():
    read_end, write_end = os.pipe()
    writer = FrameWriter(write_end)
    reader = FrameReader(Report)
    writer.send(Output(1, 2, b"y" * 1_000_000))
    assert writer.pending > 0
    got = []
    while writer.pending:
        got += reader.feed(os.read(read_end, 1 << 20))
        writer.flush()
    got += reader.feed(os.read(read_end, 1 << 20))
    assert got == [Output(1, 2, b"y" * 1_000_000)]
    os.close(read_end)
    writer.send(Stop(0.0))
    assert writer.broken
    assert writer.pending == 0
    os.close(write_end)
