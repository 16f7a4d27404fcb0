// What a mailbox's reader receives: messages, waiting operations, and the end.
#include "trace/mailbox.h"

#include <doctest/doctest.h>

#include <thread>

#include "engine/harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

TEST_CASE("a mailbox brings notes and who waits to another thread, and closes with the job") {
  EngineWorld world(2);
  auto box = std::make_shared<Mailbox>(0);
  world.engine(0).observers().add(box);
  Mailbox::Letter letter;
  CHECK(run(world, [&](Program& p) {
    p.barrier();
    if (p.rank == 1) {
      p.expect(p.engine.post_message({0, 77, "hello"}), "no room");
      p.await_marks(1);
    } else {
      p.expect(box->take(&letter, Deadline::after(20)), "no letter");
      p.equal(letter.from, 1, "from");
      p.equal(letter.topic, 77u, "topic");
      p.expect(letter.body == "hello", "body " + letter.body);
      p.mark();
      TaskPtr t = p.sum_async("a \"quoted\" name", 1);
      const std::string expected = "\"name\":\"a \\\"quoted\\\" name\",\"set\":0,\"age\":";
      // It waits once it is requested, although no caller waits for it.
      bool found = false;
      for (const Deadline deadline = Deadline::after(20); !found && !deadline.passed();) {
        p.engine.ask_who_waits();
        while (!found && box->take(&letter, Deadline::after(0.2))) found = letter.body.find(expected) != std::string::npos;
      }
      p.expect(found, "nobody waits: " + letter.body);
      p.equal(letter.topic, static_cast<uint32_t>(Topic::waiting), "topic");
      p.equal(letter.from, 0, "from");
      p.expect(letter.body.find("\"ready\":[0],\"missing\":[1]}") != std::string::npos, letter.body);
      p.expect(letter.body.find("{\"asked\":true,") == 0, letter.body);
      p.mark();
      p.wait(*t);
    }
    if (p.rank == 1) {
      p.await_marks(2);
      p.wait(*p.sum_async("a \"quoted\" name", 1));
    }
  }) == "");
  CHECK(!box->closed());
  world.engine(0).shutdown("");
  CHECK(box->closed());
  while (box->take(&letter, Deadline::after(0))) {
  }
  CHECK(!box->take(&letter, Deadline::after(60)));  // at once
}

}  // namespace
