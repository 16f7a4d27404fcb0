#include "transport/polled_wait.h"

#include <doctest/doctest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "contains.h"

using namespace hvd;
using hvd::testing::contains;

namespace {

struct Here {
  explicit Here(SpinPolicy policy) : fd(::eventfd(0, EFD_NONBLOCK)), waiter(WakeupEvent(fd, &word), policy) {}
  ~Here() { ::close(fd); }
  int fd;
  WakeupWord word;
  Waiter waiter;
};

const std::function<std::string()> kWhat = [] { return std::string("MPI_Itest"); };

}  // namespace

TEST_CASE("a polled wait has a deadline and says what it waits for") {
  for (const SpinPolicy policy : {SpinPolicy{2000, 20}, SpinPolicy{0, 200}}) {
    Here here(policy);
    PolledWait wait(here.waiter, 0.05, kWhat);
    const auto begin = Clock::now();
    Status status;
    while (status.ok()) status = wait.pause();
    CHECK(status.code() == Code::timeout);
    CHECK(contains(status.message(), "no progress for 0.05 s while waiting for MPI_Itest"));
    CHECK(Clock::now() - begin >= std::chrono::milliseconds(50));
  }
}

TEST_CASE("a polled wait hears of the end of the job: by the flag in memory at once, by the hook when it rests") {
  for (const bool by_flag : {true, false}) {
    Here here({2000, 20});
    std::atomic<uint32_t> flag{0};
    here.waiter.set_abort_flag(&flag);
    int wakeups = 0;
    here.waiter.set_hook([&]() -> Status {
      ++wakeups;
      return by_flag && !flag ? Status() : Status(Code::peer_lost, "rank 3 was lost");
    }, nullptr);
    if (by_flag) flag = 1;
    PolledWait wait(here.waiter, 30, kWhat);
    Status status;
    const auto begin = Clock::now();
    while (status.ok()) status = wait.pause();
    CHECK(status.code() == Code::peer_lost);
    CHECK(wakeups == 1);
    if (by_flag) CHECK(Clock::now() - begin < std::chrono::seconds(20));
  }
}
