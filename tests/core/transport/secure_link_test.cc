// Encrypted links: the contract of Link over any channel, and all attacks by a man in the middle.
#include <doctest/doctest.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

#include "../collectives/elements.h"
#include "../collectives/harness_links.h"
#include "../encrypted.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr size_t kAround = 4 + kCipherTag;  // bytes that a record adds

std::vector<std::byte> noise(size_t n) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::vector<std::byte> data(n);
  for (auto& b : data) b = static_cast<std::byte>(random());
  return data;
}

// Bytes in flight in one direction, for an attacker to read and change.
using Wires = std::deque<std::byte>;

// A channel into and out of such wires. `room`: its capacity in bytes; `strict`: returns nothing until all
// requested bytes are there, like a sleeper that the kernel wakes no earlier.
class WireLink final : public Link {
 public:
  WireLink(Wires* out, Wires* in, size_t room, bool strict) : out_(out), in_(in), room_(room), strict_(strict) {}
  int64_t try_send(ConstBytes data) override {
    const size_t n = std::min(data.size(), room_ - std::min(room_, out_->size()));
    out_->insert(out_->end(), data.begin(), data.begin() + static_cast<ptrdiff_t>(n));
    return static_cast<int64_t>(n);
  }
  int64_t try_recv(Bytes data) override {
    if (strict_ && in_->size() < data.size()) return 0;
    const size_t n = std::min(data.size(), in_->size());
    std::copy_n(in_->begin(), n, data.begin());
    in_->erase(in_->begin(), in_->begin() + static_cast<ptrdiff_t>(n));
    return static_cast<int64_t>(n);
  }
  const Status& error() const override { return none_; }

 private:
  Wires *out_, *in_;
  size_t room_;
  bool strict_;
  Status none_;
};

struct Tapped {
  Wires forth, back;  // from a to b, from b to a
  std::unique_ptr<Link> a, b;

  explicit Tapped(size_t room = 1 << 20, bool strict = false, uint64_t records_per_key = SecureLink::kRecordsPerKey) {
    const Library library = crypto_libraries().front();
    const Cipher cipher = library->ciphers().front();
    a = encrypted(std::make_unique<WireLink>(&forth, &back, room, strict), library, cipher, 0, 1, records_per_key);
    b = encrypted(std::make_unique<WireLink>(&back, &forth, room, strict), library, cipher, 1, 0, records_per_key);
  }
  // Sends the data as `records` records.
  void send(const std::vector<std::byte>& data, size_t records = 1) {
    const size_t each = data.size() / records;
    for (size_t i = 0; i < records; ++i) REQUIRE(a->try_send(ConstBytes(data).subspan(i * each, each)) == static_cast<int64_t>(each));
  }
};

bool refused(Link& link, const char* why = "altered, repeated or dropped") {
  std::vector<std::byte> got(64, std::byte{0x5a});
  if (link.try_recv(got) != -1) return false;
  for (std::byte b : got) {
    if (b != std::byte{0x5a} && b != std::byte{0}) return false;  // no sent bytes are delivered
  }
  std::byte one[1] = {};
  CHECK(link.try_recv(one) == -1);  // permanently, in both directions
  CHECK(link.try_send(one) == -1);
  CHECK(link.error().code() == Code::peer_lost);
  return link.error().message().find(why) != std::string::npos;
}

}  // namespace

TEST_CASE("an encrypted link keeps order and content over every channel, with every library and cipher") {
  for (const Library& library : crypto_libraries()) {
    for (Cipher cipher : library->ciphers()) {
      for (Wire wire : {Wire::inproc, Wire::unix_socket, Wire::tcp}) {
        INFO(std::string(name_of(wire)));
        Options options{.wire = wire, .capacity = 64};
        options.wrap = [&](std::unique_ptr<Link> inner, int rank, int peer) {
          return encrypted(std::move(inner), library, cipher, rank, peer, 3);
        };
        LinkWorld world(2, options);
        const auto forth = noise(400'001), back = noise(399'999);
        std::vector<std::byte> at_b(forth.size()), at_a(back.size());
        const auto results =
            world.run([&](Comm& comm) { return comm.rank == 0 ? exchange(comm, 1, forth, 1, at_a) : exchange(comm, 0, back, 0, at_b); });
        check_ok(results);
        CHECK(at_b == forth);
        CHECK(at_a == back);
      }
    }
  }
}

TEST_CASE("channels that take a byte at a time, stall, or end in the middle") {
  const Library library = crypto_libraries().front();
  const Cipher cipher = library->ciphers().front();
  Options options{.wire = Wire::inproc, .capacity = 64};
  // The channel fails below the encryption.
  uint64_t cut = FaultScript::kNever;
  options.faults_below = [&](int rank, int) {
    return FaultScript{.cut_after_sent = rank == 0 ? cut : FaultScript::kNever, .piece = 1, .stall_calls = 1, .stall_every = 7};
  };
  options.wrap = [&](std::unique_ptr<Link> inner, int rank, int peer) { return encrypted(std::move(inner), library, cipher, rank, peer); };
  const auto data = noise(3000);
  std::vector<std::byte> got(data.size());
  auto run = [&] {
    LinkWorld world(2, options);
    return world.run([&](Comm& comm) { return comm.rank == 0 ? send_to(comm, 1, data) : recv_from(comm, 0, got); });
  };
  check_ok(run());
  CHECK(got == data);
  for (uint64_t after : {0, 2, 4, 2000, 3019}) {
    cut = after;
    got.assign(data.size(), std::byte{0});
    const auto results = run();
    CHECK(results[1].code() == Code::peer_lost);
    CHECK(results[1].message().find("rank 0 was lost: ") == 0);
    CHECK(got == std::vector<std::byte>(data.size()));
  }
}

TEST_CASE("a taken byte has left as a whole record, and a record that was begun is finished") {
  Tapped ends(100);
  const auto data = noise(500);
  CHECK(ends.a->try_send(data) == 0);  // 100 of 520 bytes are in flight
  CHECK(ends.forth.size() == 100);
  std::vector<std::byte> got(500);
  int64_t moved = 0;
  size_t arrived = 0;
  for (int i = 0; i < 20 && arrived < got.size(); ++i) {
    const int64_t n = ends.b->try_recv(Bytes(got).subspan(arrived));
    REQUIRE(n >= 0);
    arrived += static_cast<size_t>(n);
    if (moved == 0) moved = ends.a->try_send(data);
    REQUIRE(moved >= 0);
    if (moved == 0) CHECK(arrived == 0);
  }
  CHECK(moved == 500);
  CHECK(got == data);
  Tapped second(100);
  CHECK(second.a->try_send(data) == 0);
  CHECK(second.a->try_send(ConstBytes(data).first(499)) == -1);  // a mistake of the caller, not of the peer
  CHECK(second.a->error().code() == Code::internal);
}

TEST_CASE("no byte of a record can be altered") {
  const std::vector<std::byte> text = noise(33);
  for (size_t at = 0; at < text.size() + kAround; ++at) {
    CAPTURE(at);
    for (int bit : {0, 7}) {
      Tapped ends;
      ends.send(text);
      ends.send(text);
      REQUIRE(ends.forth.size() == 2 * (text.size() + kAround));
      ends.forth[at] ^= std::byte{1} << bit;
      std::vector<std::byte> got(64);
      // A larger length includes bytes of the next record, or waits for more; nothing is delivered either
      // way.
      const int64_t n = ends.b->try_recv(got);
      CHECK(n <= 0);
      if (n < 0) CHECK(ends.b->error().code() == Code::peer_lost);
      if (at >= 4) CHECK(refused(*ends.b));
    }
  }
}

TEST_CASE("records cannot be repeated, left out, swapped, cut short, sent back, or taken from another connection") {
  const std::vector<std::byte> text = noise(2 * 33);
  const ptrdiff_t one = 33 + kAround;
  std::byte got[33];
  Tapped ends;
  ends.send(text, 2);
  Wires& wires = ends.forth;
  REQUIRE(wires.size() == 2 * one);
  const Wires both = wires;
  SUBCASE("repeated") {
    wires.insert(wires.begin(), both.begin(), both.begin() + one);
    CHECK(ends.b->try_recv(got) == 33);
    CHECK(std::equal(got, got + 33, text.begin()));
    CHECK(refused(*ends.b));
  }
  SUBCASE("left out") {
    wires.erase(wires.begin(), wires.begin() + one);
    CHECK(refused(*ends.b));
  }
  SUBCASE("swapped") {
    std::rotate(wires.begin(), wires.begin() + one, wires.end());
    CHECK(refused(*ends.b));
  }
  SUBCASE("cut short") {
    wires.erase(wires.begin() + 10, wires.begin() + 11);
    CHECK(refused(*ends.b));
  }
  SUBCASE("sent back") {
    ends.back = both;
    CHECK(refused(*ends.a));
  }
  SUBCASE("from another connection") {
    Tapped same_text;
    const Library library = crypto_libraries().front();
    Wires none;
    auto other = encrypted(std::make_unique<WireLink>(&none, &wires, 1 << 20, false), library, library->ciphers().front(), 2, 0);
    CHECK(refused(*other));
  }
  SUBCASE("a length of nothing, or of too much") {
    for (uint32_t length : {uint32_t{0}, static_cast<uint32_t>(SecureLink::kMaxText + 1), uint32_t{0xffffffff}, uint32_t{0x20544547}}) {
      Tapped fresh;
      for (int i = 0; i < 4; ++i) fresh.forth.push_back(static_cast<std::byte>(length >> (8 * i)));
      CHECK(refused(*fresh.b, "not encrypted as agreed: a record must have "));
    }
  }
}

TEST_CASE("a forged record ends the connection: the peer hears of it, and a sleeper here wakes up") {
  const Library library = crypto_libraries().front();
  auto [x, y] = unix_pair();
  const int forger = ::dup(x);
  auto a = encrypted(adopt(x), library, library->ciphers().front(), 0, 1);
  auto b = encrypted(adopt(y), library, library->ciphers().front(), 1, 0);
  const auto text = noise(20);
  REQUIRE(a->try_send(text) == 20);
  const std::byte forged[30] = {std::byte{5}};
  REQUIRE(::send(forger, forged, sizeof forged, 0) == sizeof forged);
  ::close(forger);
  std::vector<std::byte> got(100);
  CHECK(b->try_recv(got) == 20);  // earlier records are genuine
  CHECK(b->try_recv(got) == -1);
  for (Link* link : {a.get(), b.get()}) {
    pollfd watched{link->fd(), POLLIN, 0};
    CHECK(::poll(&watched, 1, 5000) == 1);
    CHECK(link->try_recv(got) == -1);
    CHECK(link->error().code() == Code::peer_lost);
  }
}

TEST_CASE("random bytes never come through") {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Tapped ends;
    const bool short_record = round % 2;  // a plausible length, so that the tag is checked
    const size_t n = 24 + random() % 200;
    for (size_t i = 0; i < n; ++i) ends.forth.push_back(static_cast<std::byte>(random()));
    if (short_record) {
      ends.forth[0] = static_cast<std::byte>(1 + random() % (n - kAround));
      ends.forth[1] = ends.forth[2] = ends.forth[3] = std::byte{0};
    }
    std::vector<std::byte> got(4096);
    const int64_t moved = ends.b->try_recv(got);
    CHECK(moved <= 0);
    if (short_record) CHECK(moved == -1);
  }
}
