// The votes of one rank in a guarded schedule, when the test simulates the other rank.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include "../contains.h"
#include "collectives/guarded.h"
#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// The victim is the root, simulated by the test: it sends rank 1 a schedule, and its end.
class PlayedRoot {
 public:
  explicit PlayedRoot(double timeout) : world_(2, setup(timeout)) {
    std::map<int, std::unique_ptr<Link>> children;
    children[1] = adopt_socket(::dup(world_.victim_fds(0).at(0)));
    root_ = std::make_unique<Control>(0, nullptr, 0, std::move(children));
    announce_and_revoke(*root_, kId);
  }
  void vote(uint64_t position) {
    const GuardHeader header{kId, position, position, 0, 1};
    REQUIRE(::send(world_.victim_fds(0).at(1), &header, sizeof header, 0) == sizeof header);
  }
  // The first frame of a type from rank 1, or of an abort's text.
  bool hears(FrameType type, std::string* payload) {
    Frame frame;
    for (const Deadline deadline = Deadline::after(15); !deadline.passed();) {
      root_->pump();
      while (root_->pop(&frame) || root_->pop_urgent(&frame)) {
        *payload = frame.payload;
        if (frame.type == type) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

 private:
  static constexpr uint64_t kId = 1;
  static Setup setup(double timeout) {
    Setup g{Layout::apart, crowded()};
    g.settings.timeout = timeout;
    g.victims = {0};
    return g;
  }
  EngineWorld world_;
  std::unique_ptr<Control> root_;
};

}  // namespace

TEST_CASE("a schedule may be adopted and revoked in one breath") {
  PlayedRoot root(20);
  root.vote(0);
  std::string payload;
  CHECK(root.hears(FrameType::settled, &payload));
}

TEST_CASE("a rank that was told to leave and says nothing is an error after the timeout") {
  PlayedRoot root(0.3);
  std::string payload;
  CHECK(root.hears(FrameType::abort, &payload));
  CHECK(contains(payload, "no progress for 0.3 s while waiting for data from rank 0"));
}

TEST_CASE("a vote on another position is an error") {
  PlayedRoot root(20);
  root.vote(5);
  std::string payload;
  CHECK(root.hears(FrameType::abort, &payload));
  CHECK(contains(payload, "rank 0 is at position 5 of schedule 1, this rank at position 0 of schedule 1"));
}
