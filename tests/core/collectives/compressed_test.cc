// The compressed allreduces: equal bit for bit to the definition (encode each contribution, add in the
// canonical order, encode the result) on every topology, whatever is fused; and no loss with error feedback.
#include <doctest/doctest.h>

#include "collectives/codec.h"
#include "elements.h"
#include "harness_links.h"
#include "harness_shm.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr WireFormat kAllFormats[] = {WireFormat::fp16, WireFormat::bf16, WireFormat::int8};
using CompressedTensors = std::vector<std::vector<float>>;  // of one rank
using World = std::vector<CompressedTensors>;  // by rank
using CompressedAllreduce = Status (*)(Comm&, const Segments&, std::span<float* const>, WireFormat, const Scale&);

World random_world(int ranks, const std::vector<size_t>& sizes, uint64_t seed) {
  World all(ranks);
  for (int r = 0; r < ranks; ++r) {
    for (size_t t = 0; t < sizes.size(); ++t) {
      std::mt19937_64 random(seed * 1000 + r * 50 + t);
      std::normal_distribution<float> normal(0, 0.1f);
      std::vector<float> x(sizes[t]);
      for (float& v : x) v = normal(random);
      all[r].push_back(x);
    }
  }
  return all;
}

World zeros_like(const World& like) {
  World z = like;
  for (auto& tensors : z) {
    for (auto& x : tensors) std::fill(x.begin(), x.end(), 0.0f);
  }
  return z;
}

std::vector<float> coded(WireFormat f, const std::vector<float>& x) {
  std::vector<std::byte> bytes(coded_bytes(f, x.size()));
  encode_floats(f, bytes.data(), x.data(), x.size());
  std::vector<float> y(x.size());
  decode_floats(f, y.data(), bytes.data(), y.size());
  return y;
}

std::vector<float> sum_in_order(const std::vector<std::vector<float>>& rows, const Scale& scale = {}) {
  std::vector<const std::byte*> sources;
  for (auto& row : rows) sources.push_back(reinterpret_cast<const std::byte*>(row.data()));
  const Buffer sum = reference(DType::float32, ReduceOp::sum, sources, rows[0].size(), scale);
  std::vector<float> out(rows[0].size());
  if (!out.empty()) std::memcpy(out.data(), sum.data(), sum.size());
  return out;
}

// The definition. `host_of` as in LinkWorld: contributions are the hosts' sums.
CompressedTensors expected_compressed(const World& in, WireFormat f, const Scale& scale, std::vector<int> host_of = {}) {
  if (host_of.empty()) {
    for (size_t r = 0; r < in.size(); ++r) host_of.push_back(static_cast<int>(r));
  }
  CompressedTensors out;
  for (size_t t = 0; t < in[0].size(); ++t) {
    std::vector<std::vector<float>> contributions;
    for (int h = 0; h <= *std::max_element(host_of.begin(), host_of.end()); ++h) {
      std::vector<std::vector<float>> members;
      for (size_t r = 0; r < in.size(); ++r) {
        if (host_of[r] == h) members.push_back(in[r][t]);
      }
      contributions.push_back(coded(f, sum_in_order(members)));
    }
    out.push_back(coded(f, sum_in_order(contributions, scale)));
  }
  return out;
}

// Reduces `tensors` in place on one rank, as one operation or one each; residuals: empty for none.
Status reduce_here(Comm& comm, CompressedAllreduce allreduce, CompressedTensors& tensors, CompressedTensors& residuals, WireFormat f,
                   const Scale& scale, bool fused) {
  std::vector<Segments::Piece> pieces;
  std::vector<float*> kept;
  size_t total = 0;
  for (size_t t = 0; t < tensors.size(); ++t) {
    auto* data = reinterpret_cast<std::byte*>(tensors[t].data());
    pieces.push_back({data, data, tensors[t].size()});
    if (!residuals.empty()) kept.push_back(residuals[t].data());
    total += tensors[t].size();
  }
  if (fused) return allreduce(comm, {pieces, total}, kept, f, scale);
  for (size_t t = 0; t < pieces.size(); ++t) {
    std::span<float* const> own = kept.empty() ? std::span<float* const>() : std::span<float* const>(&kept[t], 1);
    HVD_RETURN_IF_ERROR(allreduce(comm, {{&pieces[t], 1}, pieces[t].count}, own, f, scale));
  }
  return {};
}

World reduced_compressed(LinkWorld& world, CompressedAllreduce allreduce, World in, WireFormat f, const Scale& scale, bool fused,
                         World* residuals = nullptr) {
  World none(in.size());
  World& kept = residuals ? *residuals : none;
  check_ok(world.run([&](Comm& comm) {
    const int r = comm.global_ranks[comm.rank];
    return reduce_here(comm, allreduce, in[r], kept[r], f, scale, fused);
  }));
  return in;
}

bool same_bits(const CompressedTensors& a, const CompressedTensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t t = 0; t < a.size(); ++t) {
    if (a[t].size() != b[t].size()) return false;
    if (!a[t].empty() && std::memcmp(a[t].data(), b[t].data(), a[t].size() * sizeof(float)) != 0) return false;
  }
  return true;
}

const std::vector<size_t> kLengths = {1, 0, 31, 33, 256, 257, 1003, 5000};

}  // namespace

TEST_CASE("compressed allreduce: the defined bits on every rank, fused or not, at every size of the world") {
  for (int size : {1, 2, 3, 4, 5, 8}) {
    LinkWorld world(size, {.wire = size % 2 ? Wire::mixed : Wire::inproc});
    for (WireFormat f : kAllFormats) {
      for (const Scale& scale : {Scale{}, Scale{0.5, size}}) {
        CAPTURE(size);
        CAPTURE(std::string(name_of(f)));
        const World in = random_world(size, kLengths, 7);
        const CompressedTensors want = expected_compressed(in, f, scale);
        for (bool fused : {true, false}) {
          for (const CompressedTensors& got : reduced_compressed(world, allreduce_compressed, in, f, scale, fused))
            CHECK(same_bits(got, want));
        }
      }
    }
  }
}

TEST_CASE("compressed allreduce in shared memory gives the bits that it gives over links") {
  for (int size : {1, 2, 3, 5}) {
    ShmWorld world(size, 256 << 10);
    for (WireFormat f : kAllFormats) {
      CAPTURE(size);
      const World in = random_world(size, kLengths, 7);
      const CompressedTensors want = expected_compressed(in, f, {1.0, size});
      World data = in, none(size);
      check_ok(world.run(
          [&](Comm& comm) { return reduce_here(comm, allreduce_compressed, data[comm.rank], none[comm.rank], f, {1.0, size}, true); }));
      for (const CompressedTensors& got : data) CHECK(same_bits(got, want));
    }
  }
}

TEST_CASE("compressed allreduce between hosts: float32 inside them, coded between them") {
  const std::vector<int> worlds[] = {{0, 0, 1, 1}, {0, 0, 1}, {0, 1, 1}, {0, 0, 1, 1, 2, 2}, {0, 1, 0, 1, 0}, {0, 0, 0, 1, 1, 2}};
  for (const auto& host_of : worlds) {
    const int size = static_cast<int>(host_of.size());
    LinkWorld world(size, {.host_of = host_of});
    for (WireFormat f : kAllFormats) {
      const World in = random_world(size, kLengths, 3);
      const CompressedTensors want = expected_compressed(in, f, {1.0, size}, host_of);
      for (bool fused : {true, false}) {
        for (const CompressedTensors& got : reduced_compressed(world, allreduce_compressed_hierarchical, in, f, {1.0, size}, fused))
          CHECK(same_bits(got, want));
      }
    }
  }
  LinkWorld flat(2);
  CHECK(allreduce_compressed_hierarchical(flat.comm(0), {}, {}, WireFormat::int8, {}).code() == Code::internal);
}

TEST_CASE("compressed allreduce: a rank that has joined counts as zeros and drops the result") {
  LinkWorld world(3);
  World data = random_world(3, {700}, 2), with_zeros = data;
  std::fill(with_zeros[1][0].begin(), with_zeros[1][0].end(), 0.0f);
  const auto untouched = data[1];
  check_ok(world.run([&](Comm& comm) {
    auto* bytes = reinterpret_cast<std::byte*>(data[comm.rank][0].data());
    const Segments::Piece piece = comm.rank == 1 ? Segments::Piece{nullptr, nullptr, 700} : Segments::Piece{bytes, bytes, 700};
    return allreduce_compressed(comm, {{&piece, 1}, 700}, {}, WireFormat::int8, {});
  }));
  const CompressedTensors want = expected_compressed(with_zeros, WireFormat::int8, {});
  CHECK(same_bits(data[0], want));
  CHECK(same_bits(data[2], want));
  CHECK(same_bits(data[1], untouched));
}

namespace {

// Largest difference, in float64, between the sum of all contributions and the results of all steps plus the
// final residuals.
double lost(LinkWorld& world, CompressedAllreduce allreduce, WireFormat f, bool feedback, double* typical) {
  const int size = world.size(), steps = 30;
  const Scale scale{1.0, size};
  const std::vector<size_t> sizes = {300, 1003};
  std::vector<std::vector<double>> balance;
  for (size_t n : sizes) balance.emplace_back(n, 0.0);
  World kept = zeros_like(random_world(size, sizes, 0)), none(size);
  *typical = 0;
  for (int step = 0; step < steps; ++step) {
    const World in = random_world(size, sizes, 100 + step);
    World residuals_or_none = feedback ? kept : none;
    const World out = reduced_compressed(world, allreduce, in, f, scale, true, &residuals_or_none);
    if (feedback) kept = residuals_or_none;
    for (size_t t = 0; t < sizes.size(); ++t) {
      for (size_t i = 0; i < sizes[t]; ++i) {
        for (int r = 0; r < size; ++r) balance[t][i] += in[r][t][i];
        balance[t][i] -= static_cast<double>(out[0][t][i]) * size;
      }
    }
  }
  double worst = 0;
  for (size_t t = 0; t < sizes.size(); ++t) {
    for (size_t i = 0; i < sizes[t]; ++i) {
      for (int r = 0; r < size; ++r) {
        balance[t][i] -= kept[r][t][i];
        *typical = std::max<double>(*typical, std::fabs(kept[r][t][i]));
      }
      worst = std::max(worst, std::fabs(balance[t][i]));
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("error feedback: what coding takes from a step is in the residuals, and nothing else is lost") {
  double held = 0;
  for (int size : {2, 3, 5}) {
    LinkWorld world(size);
    CAPTURE(size);
    CHECK(lost(world, allreduce_compressed, WireFormat::int8, true, &held) < 1e-5);
    CHECK(held > 1e-4);  // residuals are not empty
    // and do not grow: a step's encoding loses at most 1/254 of values below 0.6, and as much for the sum
    CHECK(held < 0.02);
    CHECK(lost(world, allreduce_compressed, WireFormat::int8, false, &held) > 1e-3);
  }
  LinkWorld hosts(5, {.host_of = {0, 0, 1, 1, 2}});
  CHECK(lost(hosts, allreduce_compressed_hierarchical, WireFormat::int8, true, &held) < 1e-5);
  CHECK(held > 1e-4);
}

TEST_CASE("bytes on the wire: half and about a quarter of float32") {
  for (WireFormat f : kAllFormats) {
    LinkWorld world(4);
    Counter traffic[4];
    for (int r = 0; r < 4; ++r) world.comm(r).traffic = &traffic[r];
    reduced_compressed(world, allreduce_compressed, random_world(4, {1 << 16}, 1), f, {}, true);
    const double plain = 2 * 3.0 / 4 * (1 << 16) * sizeof(float);  // bytes sent by the pairwise algorithm
    for (Counter& t : traffic) CHECK(static_cast<double>(t.get()) / plain == doctest::Approx(f == WireFormat::int8 ? 65.0 / 256 : 0.5));
  }
}
