// The contract of Link, for every kind of link, and each kind's behaviour when its peer goes away.
#include <doctest/doctest.h>
#include <poll.h>

#include <random>
#include <thread>

#include "../collectives/elements.h"
#include "../collectives/harness_links.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

std::vector<std::byte> random_bytes(size_t n) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::vector<std::byte> data(n);
  for (auto& b : data) b = static_cast<std::byte>(random());
  return data;
}

// Two links of one kind for two threads with separate wakeups.
struct Ends {
  LinkWorld world;
  explicit Ends(Wire wire, size_t capacity = 64) : world(2, {.wire = wire, .capacity = capacity}) {}
  Link& a() { return *world.comm(0).links[1]; }
  Link& b() { return *world.comm(1).links[0]; }
};

size_t fill(Link& link, size_t at_most) {
  const auto data = random_bytes(at_most);
  size_t sent = 0;
  while (sent < at_most) {
    const int64_t n = link.try_send(ConstBytes(data).subspan(sent));
    REQUIRE(n >= 0);
    if (n == 0) break;
    sent += static_cast<size_t>(n);
  }
  return sent;
}

}  // namespace

TEST_CASE("a link keeps order and content, wrapping around many times, both ways at once") {
  for (Wire wire : {Wire::inproc, Wire::unix_socket, Wire::tcp, Wire::shm}) {
    INFO(std::string(name_of(wire)));
    Ends ends(wire);
    const auto forth = random_bytes(40'001), back = random_bytes(39'999);
    std::vector<std::byte> at_b(forth.size()), at_a(back.size());
    const auto results =
        ends.world.run([&](Comm& comm) { return comm.rank == 0 ? exchange(comm, 1, forth, 1, at_a) : exchange(comm, 0, back, 0, at_b); });
    check_ok(results);
    CHECK(at_b == forth);
    CHECK(at_a == back);
  }
}

TEST_CASE("a full link takes nothing, an empty one gives nothing, and both recover") {
  for (Wire wire : {Wire::inproc, Wire::unix_socket, Wire::tcp, Wire::shm}) {
    INFO(std::string(name_of(wire)));
    Ends ends(wire);
    std::byte one[1];
    CHECK(ends.a().try_recv(one) == 0);
    CHECK(ends.a().try_send({}) == 0);
    CHECK(ends.a().try_recv({}) == 0);
    const size_t held = fill(ends.a(), 8 << 20);
    CHECK(held < 8u << 20);
    if (ends.a().fd() < 0) CHECK(held == 64);
    const auto want = random_bytes(8 << 20);
    std::vector<std::byte> got(held);
    for (size_t n = 0; n < held;) {
      const int64_t k = ends.b().try_recv(Bytes(got).subspan(n));
      REQUIRE(k >= 0);
      n += static_cast<size_t>(k);
    }
    CHECK(std::equal(got.begin(), got.end(), want.begin()));
    CHECK(ends.b().error().ok());
  }
}

TEST_CASE("a socket link says what a sleeper has to watch for") {
  Ends ends(Wire::unix_socket);
  std::byte one[1] = {};
  CHECK(ends.a().wanted() == 0);
  CHECK(ends.a().try_recv(one) == 0);
  CHECK(ends.a().wanted() == POLLIN);
  fill(ends.a(), 8 << 20);
  CHECK(ends.a().wanted() == (POLLIN | POLLOUT));
  CHECK(ends.b().try_send(one) == 1);
  CHECK(ends.a().try_recv(one) == 1);
  CHECK(ends.a().wanted() == POLLOUT);
  ends.a().clear_wanted();
  CHECK(ends.a().wanted() == 0);
  Ends other(Wire::inproc);
  CHECK(other.a().try_recv(one) == 0);
  CHECK(other.a().fd() == -1);
  CHECK(other.a().wanted() == 0);
}

TEST_CASE("a peer that closes: what it sent before arrives, then the link is broken for good") {
  SUBCASE("socket") {
    auto [x, y] = unix_pair();
    auto a = adopt(x), b = adopt(y);
    std::byte data[3] = {std::byte{1}, std::byte{2}, std::byte{3}}, got[3];
    CHECK(a->try_send(data) == 3);
    a.reset();
    CHECK(b->try_send(data) == -1);  // EPIPE, without a signal
    CHECK(b->error().code() == Code::peer_lost);
    CHECK(b->try_recv(got) == 3);
    CHECK(got[2] == std::byte{3});
    CHECK(b->try_recv(got) == -1);
    CHECK(b->try_recv(got) == -1);
    CHECK(b->error().message() == "the peer closed its connection");
  }
  SUBCASE("reset") {
    auto [x, y] = tcp_pair();
    auto a = adopt(x), b = adopt(y);
    std::byte data[3] = {}, got[3];
    CHECK(b->try_send(data) == 3);
    const linger now{1, 0};
    setsockopt(a->fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    a.reset();
    pollfd p{b->fd(), POLLIN, 0};
    CHECK(poll(&p, 1, 2000) == 1);
    CHECK(b->try_recv(got) == -1);
    CHECK(b->error().code() == Code::peer_lost);
    CHECK(b->error().message() == "the peer closed its connection");
  }
  SUBCASE("inproc") {
    auto [a, b] = InprocLink::make_pair({}, {}, 16);
    std::byte data[3] = {std::byte{1}, std::byte{2}, std::byte{3}}, got[3];
    CHECK(a->try_send(data) == 3);
    a->close();
    CHECK(a->try_send(data) == -1);
    CHECK(b->try_send(data) == -1);
    CHECK(b->try_recv(got) == 3);
    CHECK(b->try_recv(got) == -1);
    CHECK(b->error().message() == "the peer closed its connection");
  }
}

TEST_CASE("a shared-memory link is broken by abort only") {
  auto segment = Segment::in_process({2, 64, 4096});
  ShmLink a(segment, 0, 1, {}), b(segment, 1, 0, {});
  std::byte one[1] = {};
  CHECK(a.try_send(one) == 1);
  b.abort(Status(Code::shutdown, "rank 0 has shut down"));
  CHECK(b.try_recv(one) == -1);
  CHECK(b.try_send(one) == -1);
  CHECK(b.error().message() == "rank 0 has shut down");
  CHECK(a.try_send(one) == 1);
}
