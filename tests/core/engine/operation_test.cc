#include "engine/operation.h"

#include <doctest/doctest.h>

#include <memory>
#include <thread>

using namespace hvd;

TEST_CASE("an operation completes once for all sleepers, or they give up in time") {
  Operation op;
  CHECK(!op.sleep_until(Deadline::after(0.01)));
  std::vector<std::thread> sleepers;
  std::atomic<int> woken{0};
  for (int i = 0; i < 4; ++i) {
    sleepers.emplace_back([&] { woken += op.sleep_until(Deadline::after(10)); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  op.complete(Status(Code::timeout, "late"));
  for (auto& t : sleepers) t.join();
  CHECK(woken == 4);
  CHECK(op.done());
  CHECK(op.status().code() == Code::timeout);
  CHECK(op.sleep_until(Deadline::after(0)));
}
