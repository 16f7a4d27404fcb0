// Random sequences of collectives in shared memory, and process sets that share staging areas.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>

#include "elements.h"
#include "harness_shm.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// FNV-1a over the results of a sequence of operations.
struct Hash {
  uint64_t value = 1469598103934665603u;
  void add(const Buffer& data) {
    for (std::byte b : data) value = (value ^ static_cast<uint8_t>(b)) * 1099511628211u;
  }
};

// A random sequence of all collectives on one group: all members draw the same sizes from `seed`, and their
// own data from their rank. Results that all members share are hashed; the others are compared with values
// that sender and receiver both know.
Status random_steps(Comm& comm, uint64_t seed, int steps, Hash* hash) {
  std::mt19937_64 random(seed);
  const int n = comm.size;
  for (int step = 0; step < steps; ++step) {
    const int kind = static_cast<int>(random() % 6);
    const size_t count = random() % (step % 5 == 0 ? 40000 : 700);
    const DType d = kAllDTypes[random() % kDTypeCount];
    const ReduceOp op = kAllOps[random() % 4];
    const int root = static_cast<int>(random() % n);
    const uint64_t salt = random();
    Buffer own = random_elements(d, count, salt + comm.rank);
    std::vector<size_t> parts(n);
    for (size_t& p : parts) p = random() % (count + 1);
    const size_t all = std::accumulate(parts.begin(), parts.end(), size_t{0});
    const std::byte fill{static_cast<uint8_t>(salt + 1)};
    if (kind == 0) {
      const std::vector<Segments::Piece> pieces = {
          {own.data(), own.data(), count / 2},
          {own.data() + count / 2 * size_of(d), own.data() + count / 2 * size_of(d), count - count / 2}};
      const Segments data = segments_of(pieces);
      if (salt & 1) comm.node->stores().record(1, 0);
      if (salt & 2 && stage_allreduce_shm(comm, data, d) && !comm.node->reached(comm.rank, 1)) return {Code::internal, "not staged"};
      HVD_RETURN_IF_ERROR(allreduce_shm(comm, data, d, op, {1.0, n}));
      hash->add(own);
    } else if (kind == 1) {
      HVD_RETURN_IF_ERROR(broadcast_shm(comm, own.data(), own.size(), root));
      hash->add(own);
    } else if (kind == 2) {
      Buffer out(all);
      const Buffer in(parts[comm.rank], std::byte{static_cast<uint8_t>(comm.rank)});
      HVD_RETURN_IF_ERROR(allgather_shm(comm, in.data(), out.data(), parts));
      hash->add(out);
    } else if (kind == 3) {
      // Each rank sends parts[r] bytes containing its own rank to rank r.
      const Buffer in(all, fill ^ std::byte{static_cast<uint8_t>(comm.rank)});
      const std::vector<size_t> recv(n, parts[comm.rank]);
      Buffer out(n * parts[comm.rank]);
      HVD_RETURN_IF_ERROR(alltoall_shm(comm, in.data(), parts, out.data(), recv));
      for (size_t i = 0; i < out.size(); ++i) {
        if (out[i] != (fill ^ std::byte{static_cast<uint8_t>(i / parts[comm.rank])})) return Status(Code::internal, "alltoall: wrong byte");
      }
    } else if (kind == 4) {
      const std::vector<int32_t> in(all, comm.rank + 1);
      std::vector<int32_t> out(parts[comm.rank]);
      HVD_RETURN_IF_ERROR(reducescatter_shm(comm, reinterpret_cast<const std::byte*>(in.data()), reinterpret_cast<std::byte*>(out.data()),
                                            parts, DType::int32, ReduceOp::sum, {}));
      if (out != std::vector(out.size(), n * (n + 1) / 2)) return Status(Code::internal, "reducescatter: wrong sum");
    } else {
      HVD_RETURN_IF_ERROR(barrier_shm(comm));
    }
  }
  return {};
}

}  // namespace

TEST_CASE("random sequences of all collectives give the same hash on every rank, run after run, however they are tuned") {
  const Tuning tunings[] = {{},
                            {},
                            {.direct_bytes = 0, .chunk_bytes = 4 << 10, .stream_bytes = 0},
                            {.direct_bytes = 4 << 20, .chunk_bytes = 64 << 20, .stream_bytes = size_t{1} << 40},
                            {.direct_bytes = 999, .chunk_bytes = 10'001, .stream_bytes = 5000}};
  for (int size : {2, 3, 4, 8}) {
    uint64_t first_run = 0;
    for (const Tuning& tuning : tunings) {
      ShmWorld world(size, &tuning == tunings + 1 ? 8 << 20 : kSmallStaging);
      std::vector<Hash> hashes(size);
      check_ok(world.run([&](Comm& comm) {
        comm.tuning = tuning;
        return random_steps(comm, 42 + size, 300, &hashes[comm.rank]);
      }));
      for (auto& h : hashes) CHECK(h.value == hashes[0].value);
      if (&tuning != tunings) CHECK(hashes[0].value == first_run);
      first_run = hashes[0].value;
    }
  }
}
