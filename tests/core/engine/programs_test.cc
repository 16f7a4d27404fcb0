// Random jobs (random_jobs.h) with tensors in host memory. HVD_PROGRAMS: number of jobs (default 100);
// HVD_PROGRAM_SEED: the first one's seed; HVD_PROGRAM_MINUTES: how long to continue.
#include <doctest/doctest.h>

#include "../encrypted.h"
#include "random_jobs.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

std::string play_job(uint64_t seed, uint64_t* schedules) {
  std::mt19937_64 random(seed);
  const int size = 2 + static_cast<int>(random() % 5);
  Settings settings = crowded();
  settings.spins = random() % 2 ? 0 : 50;
  settings.fusion_threshold = random() % 3 ? size_t{128} << 20 : random() % 2 ? 2000 : 0;
  settings.groups_apart = random() % 4 == 0;
  settings.cache_capacity = random() % 8 == 0 ? 6 : 1024;
  Setup setup{kLayouts[random() % 3], settings};
  const std::vector<int> nodes = nodes_of(setup.layout, size);
  if (random() % 3 == 0) {
    static const Library library = crypto_libraries().front();
    setup.wrap = [&](std::unique_ptr<Link> link, int rank, int peer, bool) {
      const bool local = nodes[static_cast<size_t>(rank)] == nodes[static_cast<size_t>(peer)];
      return local ? std::move(link) : encrypted(std::move(link), library, library->ciphers().front(), rank, peer, 50);
    };
  }
  const Job job(seed, {size, 1 + static_cast<int>(random() % 3), 12});
  EngineWorld world(size, setup);
  Run run_of(job, world, seed);
  const std::string wrong = run(world, [&](Program& p) {
    TensorMemory memory(p);
    play_rank(run_of, p, memory);
  });
  *schedules += world.stats().schedules;
  return wrong;
}

[[maybe_unused]] __attribute__((noinline)) void sits_and_waits(std::atomic<bool>* stop) {
  while (!*stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

#ifndef __SANITIZE_THREAD__  // its runtime replaces the frames of waiting threads
TEST_CASE("a report of a hang shows what each thread is at") {
  std::atomic<bool> stop{false};
  std::thread waiting(sits_and_waits, &stop);
  const std::string text = stacks_by_asking();
  stop = true;
  waiting.join();
  CHECK_MESSAGE(text.find("sits_and_waits") != std::string::npos, text);
}
#endif

TEST_CASE("random programs with threads: everything ends, with the right results") {
  const auto first = static_cast<uint64_t>(number("HVD_PROGRAM_SEED", 1)), jobs = static_cast<uint64_t>(number("HVD_PROGRAMS", 100));
  const Deadline end = Deadline::after(60 * number("HVD_PROGRAM_MINUTES", 0));
  uint64_t seed = first, schedules = 0;
  for (; seed < first + jobs || !end.passed(); ++seed) {
    CAPTURE(seed);
    REQUIRE(play_job(seed, &schedules) == "");
  }
  CHECK(schedules > (seed - first) / 20);  // entering and leaving them is part of the test
  MESSAGE((seed - first) << " jobs, " << schedules << " schedules");
}
