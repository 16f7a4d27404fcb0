// Engines over encrypted links: tampering ends the job with the rank's name. The random jobs of
// programs_test.cc show that everything works as over plain links.
#include "../encrypted.h"

#include <doctest/doctest.h>

#include <atomic>

#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// Placed below the encryption.
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

TEST_CASE("what is changed on the way to one rank is noticed there, and everybody hears whose data it was") {
  const Library library = crypto_libraries().front();
  const Cipher cipher = library->ciphers().front();
  for (bool data_links : {true, false}) {
    CAPTURE(data_links);
    std::atomic<bool> changing{false};
    std::atomic<int> through{0};
    const std::atomic<bool> never{false};
    Setup setup{Layout::apart, crowded()};
    setup.wrap = [&](std::unique_ptr<Link> link, int rank, int peer, bool data) {
      const bool here = rank == 0 && peer == 2 && data == data_links;
      return encrypted(std::make_unique<ChangingLink>(std::move(link), here ? &changing : &never), library, cipher, rank, peer);
    };
    check_ranks(3, setup, [&](Program& p) {
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
      if (p.rank == 2 && !data_links) {  // the link that would carry the reason is the one that has ended
        p.expect(end.message().find("rank 0 was lost: the peer closed its connection") == 0, "does not name the rank: " + end.message());
        return;
      }
      p.expect(end.message().find("rank 2") != std::string::npos, "does not name the rank: " + end.message());
      p.expect(end.message().find("altered, repeated or dropped") != std::string::npos, "does not say why: " + end.message());
    });
  }
}
