#include "base/thread.h"

#include <doctest/doctest.h>

namespace hvd {
namespace {

bool blocks(int signal) {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return sigismember(&mask, signal) == 1;
}

TEST_CASE("a thread without signals blocks them, and whoever starts it blocks what it did before") {
  REQUIRE_FALSE(blocks(SIGUSR1));
  bool there = false;
  thread_without_signals([&there] { there = blocks(SIGUSR1) && blocks(SIGTERM) && blocks(SIGXFSZ); }).join();
  CHECK(there);
  CHECK_FALSE(blocks(SIGUSR1));
}

}  // namespace
}  // namespace hvd
