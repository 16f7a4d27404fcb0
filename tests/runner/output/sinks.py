"""A sink that records the launcher's output."""

from horovod.runner.output.output import OutputSink


class Kept(OutputSink):
    """Records output: in `text` all since the last `take`, in `shown` all by stream."""

    def __init__(self, terminals=(), together=True, full=False):
        super().__init__(set(terminals), together, full)
        self.text = b""
        self.shown = {1: b"", 2: b""}

    def _emit(self, stream, data):
        self.text += data
        self.shown[stream] += data

    def take(self):
        text, self.text = self.text, b""
        return text
