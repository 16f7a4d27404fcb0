#include "engine/farewell.h"

#include <doctest/doctest.h>

using namespace hvd;

namespace {

Goodbye from(int rank, uint64_t executed) { return {executed, Status(Code::shutdown, "rank " + std::to_string(rank) + " has left", rank)}; }

}  // namespace

TEST_CASE("up to the least promise operations still end well, beyond it none") {
  Farewell farewell;
  CHECK(!farewell.leaving());
  CHECK(!farewell.beyond(100));
  CHECK(!farewell.past(100, true));
  farewell.hear(from(1, 7));
  farewell.hear(from(2, 5));
  farewell.hear(from(3, 6));
  CHECK(farewell.why().rank() == 2);
  CHECK(!farewell.beyond(5));
  CHECK(farewell.beyond(6));
  CHECK(!farewell.past(4, false));
  CHECK(farewell.past(5, false));
  CHECK(farewell.past(0, true));  // not a member of the running operations
  // The next rank to leave promises what it has executed; a rank that is not a member revokes no earlier
  // promise.
  CHECK(farewell.promise(3, false) == 3);
  CHECK(farewell.promise(3, true) == 5);
}

TEST_CASE("what is said at the end is kept") {
  Farewell farewell;
  CHECK(farewell.promise(3, true) == 3);
  farewell.parted(4);
  CHECK(farewell.has_parted(4));
  CHECK(!farewell.has_parted(3));
  CHECK(!farewell.over());
  CHECK(!farewell.last_words());
  farewell.say({9, Status(Code::peer_lost, "gone", 3)});
  farewell.end(Status(Code::peer_lost, "gone; in flight: x", 3));
  CHECK(farewell.over());
  CHECK(farewell.last_words()->executed == 9);
  CHECK(farewell.told().message() == "gone; in flight: x");
}
