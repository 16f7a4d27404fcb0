"""An elastic job of processes that somebody else has started: one is killed, the others go on, a new one joins."""

import os
import sys
import threading

import cloudpickle

from horovod.common.store.front import Front
from horovod.runner.elastic.limits import Limits
from horovod.runner.resident import residence
from horovod.runner.resident import seat as seats
from horovod.runner.resident.course import Course
from horovod.runner.resident.mailbox import Mailbox
from horovod.runner.resident.residence import Residence
from tests.runner.resident.residents import Residents

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def train():
    import time

    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    state = hvd.elastic.ObjectState(step=0, sizes=[])

    @hvd.elastic.run
    def loop(state):
        while state.sizes[-3:] != [2, 2, 2] or 1 not in state.sizes:
            size = int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
            state.sizes.append(size)
            state.step += 1
            if state.step == 3 and size == 2 and hvd.rank() == 1:
                os._exit(7)
            state.commit()
            time.sleep(0.05)
        return state.sizes

    result = loop(state)
    hvd.shutdown()
    return result


class World:
    """Hands that start processes."""

    def __init__(self, residents):
        self.residents = residents
        self.box = Mailbox()
        self.front = Front()
        self.house = Residence("127.0.0.1", lambda number, still: self.box.put(("gone", number)), self.front)
        self.course = Course(Limits(2, 1, 2, timeout=30.0), (1, 1), self.front, self, {})
        self.said = []
        self.results = {}

    def start(self, number, host):
        process = self.residents.add()
        told = self.residents.ask(process, seats.describe)
        own = residence.of_member(number, host, 30.0)
        order = self.house.seat(number, told, own, 10.0)
        self.residents.ask(process, lambda: seats.sit(order))
        self.residents.tell(process, train)
        threading.Thread(target=self._hear, args=(process, number), daemon=True).start()

    def _hear(self, process, number):
        try:
            self.box.put(("done", number, self.residents.hear(process)))
        except EOFError:
            pass

    def kill(self, number):
        self.residents.processes[number].kill()

    def say(self, text):
        self.said.append(text)

    def run(self):
        self.course.found({"node": 2})
        while self.course.end is None:
            events, ready = self.box.take(self.course.next_time(), (self.course.fd,))
            self.course.tick()
            for kind, number, *value in events:
                if kind == "gone" and self.course.alive(number):
                    self.course.exited(number, False, "its process has ended")
                elif kind == "done" and self.course.alive(number):
                    good, self.results[number] = value[0]
                    self.course.exited(number, good, str(value[0][1]))
            if ready:
                self.course.serve()

    def close(self):
        self.house.close()
        self.front.close()


def test_survivors_go_on_and_a_new_worker_joins():
    with Residents() as residents:
        world = World(residents)
        try:
            world.run()
        finally:
            world.close()
    assert world.course.end.success, world.said
    assert len(residents.processes) == 3
    assert any("rank 1 on host node failed: its process has ended; 1 rank left" in one for one in world.said)
    results = [world.results[number] for number in world.course.roster.members]
    assert results[0] == results[1]
    sizes = results[0]
    assert sizes[:2] == [2, 2]
    assert 1 in sizes
    assert sizes[-3:] == [2, 2, 2]
