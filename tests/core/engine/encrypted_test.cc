// Engines over encrypted links: negotiation, schedules and the messages that carry votes and data work as they do over plain ones, and
// what somebody changes on the way ends the job with the rank's name.
#include "../encrypted.h"

#include <doctest/doctest.h>

#include <atomic>

#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

bool local(const std::vector<int>& nodes, int a, int b) { return nodes[static_cast<size_t>(a)] == nodes[static_cast<size_t>(b)]; }

// Lies under the encryption.
class ChangingLink final : public PassingLink {
 public:
  ChangingLink(std::unique_ptr<Link> inner, const std::atomic<bool>* changing) : PassingLink(std::move(inner)), changing_(changing) {}
  int64_t try_recv(Bytes data) override {
    const int64_t n = PassingLink::try_recv(data);
    if (n > 0 && *changing_) data[static_cast<size_t>(n) - 1] ^= std::byte{0x10};
    return n;
  }

 private:
  const std::atomic<bool>* changing_;
};

}  // namespace

TEST_CASE("engines over encrypted links") {
  const Library library = crypto_libraries().front();
  const Cipher cipher = library->ciphers().front();
  for (Layout layout : {Layout::apart, Layout::pairs}) {
    CAPTURE(name_of(layout));
    const int size = 4;
    Given given{layout, crowded()};
    const auto nodes = nodes_of(layout, size);
    given.wrap = [&](std::unique_ptr<Link> link, int rank, int peer, bool) {
      return local(nodes, rank, peer) ? std::move(link) : encrypted(std::move(link), library, cipher, rank, peer, 50);
    };
    EngineWorld world(size, given);
    const std::string wrong = run(world, [&](Program& p) {
      for (int step = 0; step < 60; ++step) {
        for (size_t n : {size_t{1}, size_t{1000}, size_t{60'000}}) {
          const int got = p.sum("sum." + std::to_string(n), step + p.rank, n);
          p.equal(got, 4 * step + 6, "step " + std::to_string(step));
        }
      }
      p.barrier();
      p.equal(p.sum("last", 1), size, "after the schedule");
    });
    CHECK(wrong == "");
    CHECK(world.stats().scheduled > 0);
  }
}

TEST_CASE("what is changed on the way to one rank is noticed there, and everybody hears whose data it was") {
  const Library library = crypto_libraries().front();
  const Cipher cipher = library->ciphers().front();
  for (bool data_links : {true, false}) {
    CAPTURE(data_links);
    std::atomic<bool> changing{false};
    std::atomic<int> through{0};
    const std::atomic<bool> never{false};
    Given given{Layout::apart, crowded()};
    given.wrap = [&](std::unique_ptr<Link> link, int rank, int peer, bool data) {
      const bool here = rank == 0 && peer == 2 && data == data_links;
      return encrypted(std::make_unique<ChangingLink>(std::move(link), here ? &changing : &never), library, cipher, rank, peer);
    };
    EngineWorld world(3, given);
    const std::string wrong = run(world, [&](Program& p) {
      p.equal(p.sum("fine", 1), 3, "before");
      for (++through; through < 3;) std::this_thread::yield();
      if (p.rank == 0) changing = true;
      while (!changing) std::this_thread::yield();
      Status end;
      for (int i = 0; i < 50 && end.ok(); ++i) {
        TaskPtr task;
        end = p.try_submit(Program::request(Kind::allreduce, "x" + std::to_string(i), {100}), std::vector<std::byte>(400), &task, true);
        if (end.ok()) end = p.finish(*task);
      }
      p.expect(end.code() == Code::peer_lost, "code of: " + end.message());
      if (p.rank == 2 && !data_links) {  // the link over which it would hear why is the one that has ended
        p.expect(end.message().find("rank 0 was lost: the peer closed its connection") == 0, "does not name the rank: " + end.message());
        return;
      }
      p.expect(end.message().find("rank 2") != std::string::npos, "does not name the rank: " + end.message());
      p.expect(end.message().find("altered, repeated or left out") != std::string::npos, "does not say why: " + end.message());
    });
    CHECK(wrong == "");
  }
}
