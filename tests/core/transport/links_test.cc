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

TEST_CASE("a closed link wakes a sleeper at once") {
  for (Wire wire : {Wire::inproc, Wire::unix_socket}) {
    INFO(std::string(name_of(wire)));
    LinkWorld world(2, {.wire = wire, .timeout = 60, .faults = [](int rank, int) {
      return FaultScript{.cut_after_sent = rank == 0 ? 0 : FaultScript::kNever};
    }});
    const auto begin = Clock::now();
    const auto results = world.run([&](Comm& comm) {
      std::byte data[4] = {};
      if (comm.rank == 1) return recv_from(comm, 0, data);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // rank 1 sleeps by now
      return send_to(comm, 1, data);
    });
    CHECK(results[1].code() == Code::peer_lost);
    CHECK(Clock::now() - begin < std::chrono::seconds(30));
  }
}

TEST_CASE("descriptors that cannot be links are refused with a reason") {
  std::unique_ptr<TcpLink> link;
  const Status closed = TcpLink::adopt(-1, &link);
  CHECK(closed.code() == Code::invalid_argument);
  CHECK(closed.message().find("descriptor -1") != std::string::npos);
  const int datagrams = socket(AF_UNIX, SOCK_DGRAM, 0), unconnected = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(TcpLink::adopt(datagrams, &link).message().find("not a stream socket") != std::string::npos);
  CHECK(TcpLink::adopt(unconnected, &link).message().find("not connected") != std::string::npos);
  CHECK(link == nullptr);
  ::close(datagrams);
  ::close(unconnected);
}

TEST_CASE("a sleeper that asked for much is woken when much has come, when little was asked for, and when the peer is gone") {
  Ends ends(Wire::tcp);
  std::vector<std::byte> wanted(16 << 10);
  pollfd watched{ends.b().fd(), POLLIN, 0};
  auto wakes = [&] { return ::poll(&watched, 1, 50) == 1; };
  auto ask = [&](size_t bytes) {
    CHECK(ends.b().try_recv(Bytes(wanted).first(bytes)) == 0);
    ends.b().before_sleep();
  };
  const auto data = random_bytes(8 << 10);
  ask(8 << 10);
  CHECK(ends.a().try_send(ConstBytes(data).first(100)) == 100);
  CHECK_FALSE(wakes());  // 100 of 8192 bytes
  for (size_t sent = 100; sent < data.size();) {  // the rest, in portions that the sockets accept
    const int64_t n = ends.a().try_send(ConstBytes(data).subspan(sent));
    REQUIRE(n >= 0);
    sent += static_cast<size_t>(n);
    if (n == 0) ::poll(nullptr, 0, 1);
  }
  CHECK(::poll(&watched, 1, 5000) == 1);
  for (size_t got = 0; got < data.size();) {
    const int64_t n = ends.b().try_recv(Bytes(wanted).subspan(got, data.size() - got));
    REQUIRE(n >= 0);
    got += static_cast<size_t>(n);
  }
  ask(8 << 10);
  CHECK(ends.b().try_recv(Bytes(wanted).first(100)) == 0);  // without before_sleep()
  CHECK(ends.a().try_send(ConstBytes(data).first(1)) == 1);
  CHECK(::poll(&watched, 1, 5000) == 1);
  CHECK(ends.b().try_recv(Bytes(wanted).first(1)) == 1);
  ask(8 << 10);
  ::shutdown(ends.a().fd(), SHUT_WR);
  CHECK(::poll(&watched, 1, 5000) == 1);
}
