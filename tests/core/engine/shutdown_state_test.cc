#include "engine/shutdown_state.h"

#include <doctest/doctest.h>

using namespace hvd;

namespace {

Goodbye from(int rank, uint64_t executed) { return {executed, Status(Code::shutdown, "rank " + std::to_string(rank) + " has left", rank)}; }

}  // namespace

TEST_CASE("up to the least promise operations still end well, beyond it none") {
  ShutdownState shutdown_state;
  CHECK(!shutdown_state.leaving());
  CHECK(!shutdown_state.excludes(100));
  CHECK(!shutdown_state.departure_complete(100, true));
  shutdown_state.add_goodbye(from(1, 7));
  shutdown_state.add_goodbye(from(2, 5));
  shutdown_state.add_goodbye(from(3, 6));
  CHECK(shutdown_state.why().rank() == 2);
  CHECK(!shutdown_state.excludes(5));
  CHECK(shutdown_state.excludes(6));
  CHECK(!shutdown_state.departure_complete(4, false));
  CHECK(shutdown_state.departure_complete(5, false));
  CHECK(shutdown_state.departure_complete(0, true));  // not a member of the running operations
  // The next rank to leave promises what it has executed; a rank that is not a member revokes no earlier
  // promise.
  CHECK(shutdown_state.promise(3, false) == 3);
  CHECK(shutdown_state.promise(3, true) == 5);
}

TEST_CASE("what is said at the end is kept") {
  ShutdownState shutdown_state;
  CHECK(shutdown_state.promise(3, true) == 3);
  shutdown_state.parted(4);
  CHECK(shutdown_state.has_parted(4));
  CHECK(!shutdown_state.has_parted(3));
  CHECK(!shutdown_state.over());
  CHECK(!shutdown_state.final_abort());
  shutdown_state.set_final_abort({9, Status(Code::peer_lost, "gone", 3)});
  shutdown_state.end(Status(Code::peer_lost, "gone; in flight: x", 3));
  CHECK(shutdown_state.over());
  CHECK(shutdown_state.final_abort()->executed == 9);
  CHECK(shutdown_state.error().message() == "gone; in flight: x");
}
