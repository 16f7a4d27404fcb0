// Allreduce of tensors in the members' arenas (collectives/offsets.h).
#include "transport/arena.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/arena_offsets.h"
#include "elements.h"
#include "harness_shm.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr size_t kArena = 8 << 20;
using Block = std::shared_ptr<Arena::Block>;

struct ArenaWorld : ShmWorld {
  std::vector<std::shared_ptr<Arena>> arenas;
  explicit ArenaWorld(int size, double timeout = 60) : ShmWorld(size, 64 << 10, timeout, kArena) {
    for (int r = 0; r < size; ++r) arenas.push_back(std::make_shared<Arena>(segment(), r));
  }
  Block block(int rank, const Buffer& content) {
    Block b = arenas[rank]->allocate(content.size());
    std::memcpy(b->data(), content.data(), content.size());
    return b;
  }
};

bool same(const Block& block, const Buffer& want) { return std::memcmp(block->data(), want.data(), want.size()) == 0; }

// Several pieces on every rank; at_home(rank, piece): true if it is in the arena.
void check(ArenaWorld& world, DType d, ReduceOp op, const std::vector<size_t>& counts, const Scale& s,
           const std::function<bool(int, size_t)>& at_home) {
  std::vector<std::vector<Buffer>> in(counts.size());
  std::vector<Buffer> want;
  for (size_t p = 0; p < counts.size(); ++p) {
    in[p] = inputs(d, counts[p], world.size(), counts[p]);
    want.push_back(reference(d, op, in[p], counts[p], s));
  }
  std::vector<std::vector<Block>> blocks(world.size());
  std::vector<std::vector<Buffer>> apart(world.size());
  std::vector<std::vector<Segments::Piece>> pieces(world.size());
  for (int r = 0; r < world.size(); ++r) {
    // Offsets differ between ranks.
    const Block gap = world.arenas[r]->allocate(4096 * (r + 1));
    apart[r].reserve(counts.size());
    for (size_t p = 0; p < counts.size(); ++p) {
      blocks[r].push_back(world.block(r, in[p][r]));
      apart[r].push_back(in[p][r]);
      std::byte* at = at_home(r, p) ? blocks[r][p]->data() : apart[r][p].data();
      pieces[r].push_back({at, at, counts[p]});
    }
  }
  check_ok(world.run([&](Comm& comm) { return allreduce_shm(comm, segments_of(pieces[comm.rank]), d, op, s); }));
  for (int r = 0; r < world.size(); ++r) {
    for (size_t p = 0; p < counts.size(); ++p) {
      INFO(name_of(d), " ", name_of(op), " piece ", p, " of ", counts[p], " on rank ", r, " of ", world.size());
      CHECK((at_home(r, p) ? same(blocks[r][p], want[p]) : apart[r][p] == want[p]));
    }
  }
}

bool everywhere(int, size_t) { return true; }

}  // namespace

TEST_CASE("allreduce in arenas: every dtype and operation, the reference's bits") {
  for (int size : {2, 3, 5}) {
    ArenaWorld world(size);
    for (DType d : kAllDTypes) {
      for (ReduceOp op : kAllOps) check(world, d, op, {20011}, op == ReduceOp::sum ? Scale{1.0, size} : Scale{}, everywhere);
    }
  }
}

TEST_CASE("allreduce in arenas: sizes, several pieces, scaling") {
  for (int size : {2, 4, 8}) {
    ArenaWorld world(size);
    for (size_t n : {1, 4097, 16384, 100003}) check(world, DType::float32, ReduceOp::sum, {n}, {0.5, 3}, everywhere);
    check(world, DType::float32, ReduceOp::sum, {1, 30000, 7, 4096, 12345, 2}, {1.0, size}, everywhere);
    check(world, DType::bfloat16, ReduceOp::sum, std::vector<size_t>(ArenaOffsets::kMax, 999), {}, everywhere);
  }
}

TEST_CASE("allreduce in arenas: tensors elsewhere on some ranks, or too many, take the other way") {
  for (int size : {2, 3, 5}) {
    ArenaWorld world(size);
    for (int away = 0; away < size; ++away) {
      check(world, DType::float32, ReduceOp::sum, {20000, 30000}, {}, [&](int r, size_t) { return r != away; });
      check(world, DType::float32, ReduceOp::sum, {20000, 30000}, {}, [&](int r, size_t) { return r == away; });
      check(world, DType::float32, ReduceOp::sum, {20000, 30000}, {}, [&](int r, size_t p) { return r != away || p == 0; });
      check(world, DType::float32, ReduceOp::sum, {9000}, {}, [&](int r, size_t) { return r == away; });
    }
    check(world, DType::float32, ReduceOp::sum, std::vector<size_t>(ArenaOffsets::kMax + 1, 999), {}, everywhere);
  }
}

TEST_CASE("allreduce in arenas: only what lies there as a whole, and is input and output at once, is at home") {
  ArenaWorld world(3);
  const Block first = world.arenas[1]->allocate(4096);
  check_ok(world.run([&](Comm& comm) -> Status {
    if (comm.rank != 1) return {};
    std::byte *base = comm.node->arena(1), *end = base + kArena;
    std::vector<std::byte> apart(64);
    struct Case {
      const char* what;
      const std::byte* in;
      std::byte* out;
      size_t count;  // elements of 4 bytes
      bool home;
    };
    for (const Case& c : std::initializer_list<Case>{{"a block", first->data(), first->data(), 1024, true},
                                                     {"all of the arena", base, base, kArena / 4, true},
                                                     {"its last element", end - 4, end - 4, 1, true},
                                                     {"beyond its end", end - 4, end - 4, 2, false},
                                                     {"one element more than all of it", base, base, kArena / 4 + 1, false},
                                                     {"the neighbour's", end, end, 1, false},
                                                     {"further in the neighbour's", end + 4096, end + 4096, 1, false},
                                                     {"before it", base - 4, base - 4, 1, false},
                                                     {"from elsewhere", apart.data(), base, 1, false},
                                                     {"to elsewhere", base, apart.data(), 1, false},
                                                     {"zeros of a rank that has joined", nullptr, nullptr, 1, false},
                                                     {"zeros to a block", nullptr, base, 1, false}}) {
      const std::vector<Segments::Piece> pieces{{first->data(), first->data(), 1}, {c.in, c.out, c.count}};
      const ArenaOffsets offsets = arena_offsets_of(*comm.node, segments_of(pieces), 4);
      if (offsets.count != (c.home ? 2 : 0)) return Status(Code::internal, c.what);
      if (c.home && offsets.offset[1] != static_cast<uint64_t>(c.out - base))
        return Status(Code::internal, std::string("offset of ") + c.what);
    }
    for (size_t count : {ArenaOffsets::kMax, ArenaOffsets::kMax + 1}) {
      const std::vector<Segments::Piece> pieces(count, {base, base, 1});
      const size_t home = arena_offsets_of(*comm.node, segments_of(pieces), 4).count;
      if (home != (count > ArenaOffsets::kMax ? 0 : count)) return Status(Code::internal, std::to_string(count) + " pieces");
    }
    return {};
  }));
}

TEST_CASE("allreduce in arenas: a member that never comes ends in an error, not a hang") {
  ArenaWorld world(2, 0.3);
  const size_t n = 50000;
  std::vector<Block> blocks{world.arenas[0]->allocate(n * 4), world.arenas[1]->allocate(n * 4)};
  const auto messages = world.run([&](Comm& comm) -> Status {
    if (comm.rank == 1) return {};
    std::byte* at = blocks[0]->data();
    const std::vector<Segments::Piece> pieces{{at, at, n}};
    return allreduce_shm(comm, segments_of(pieces), DType::float32, ReduceOp::sum, {});
  });
  CHECK(messages[0].message().find("local rank 1") != std::string::npos);
}
