#include "engine/protocol.h"

#include <doctest/doctest.h>

using namespace hvd;

namespace {

Request request() {
  Request q;
  q.name = "x";
  q.shape = {2, 3};
  return q;
}

Response response() {
  Response r;
  r.names = {"x"};
  r.shapes = {{2, 3}};
  return r;
}

std::vector<Message> one_of_each() {
  return {ReadyRequests{1, {request()}},
          Decisions{2, {response()}},
          ReadyUpTo{3, 30},
          GoUpTo{4, 40},
          Revoke{5, true},
          Revoked{6, 60},
          Settled{7},
          StalledKeys{8, {"0/x", "0/y"}},
          ObserverMessageUp{11, std::string("a\0b", 3)},
          ObserverMessageDown{-1, 12, "c"},
          Goodbye{9, Status(Code::shutdown, "left", 2)},
          Abort{10, Status(Code::peer_lost, "lost", 1)}};
}

Frame frame_of(const Message& message) {
  const FrameType type = std::visit([](const auto& m) { return m.kType; }, message);
  return {type, 2, payload_of(message)};
}

}  // namespace

TEST_CASE("each message is read as what was written") {
  for (const Message& message : one_of_each()) {
    const Frame frame = frame_of(message);
    CAPTURE(static_cast<int>(frame.type));
    const std::optional<Message> back = message_in(frame);
    REQUIRE(back);
    CHECK(back->index() == message.index());
    CHECK(payload_of(*back) == frame.payload);
  }
  const auto goodbye = std::get<Goodbye>(*message_in(frame_of(Goodbye{9, Status(Code::shutdown, "left")})));
  CHECK(goodbye.executed == 9);
  CHECK(goodbye.why.rank() == 2);  // whichever rank reports it
  const auto abort = std::get<Abort>(*message_in(frame_of(Abort{10, Status(Code::peer_lost, "lost", 1)})));
  CHECK(abort.why.rank() == 1);
  CHECK(abort.why.code() == Code::peer_lost);
  CHECK(abort.why.message() == "lost");
}
