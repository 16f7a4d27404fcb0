// Adasum over links, compared with a scalar reference in extended precision, whose exponents are wide enough
// for every product.
#include <doctest/doctest.h>

#include "elements.h"
#include "harness_links.h"
#include "harness_shm.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

using Vector = std::vector<long double>;
constexpr DType kFloats[] = {DType::float16, DType::bfloat16, DType::float32, DType::float64};

Vector pair_of(const Vector& a, const Vector& b) {
  long double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  Vector r(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const bool zero = aa == 0 || bb == 0;
    r[i] = zero ? a[i] + b[i] : a[i] - ab / (2 * aa) * a[i] + b[i] - ab / (2 * bb) * b[i];
  }
  return r;
}

Vector expected(std::vector<Vector> x) {
  while (x.size() > 1) {
    std::vector<Vector> next;
    for (size_t i = 0; i < x.size(); i += 2) next.push_back(pair_of(x[i], x[i + 1]));
    x = next;
  }
  return x[0];
}

Buffer from_doubles(DType d, const std::vector<double>& x) {
  Buffer b(x.size() * size_of(d));
  for (size_t i = 0; i < x.size(); ++i) put_float(d, b.data(), i, x[i]);
  return b;
}

Vector to_vector(DType d, const Buffer& b) {
  Vector v(b.size() / size_of(d));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<long double>(get_float(d, b.data(), i));
  return v;
}

// tensors[rank][tensor], all reduced in one operation; returns results in the same form. `joined`: a rank
// without memory.
using Tensors = std::vector<std::vector<Buffer>>;
Tensors adasum_of(LinkWorld& world, const Tensors& tensors, DType d, const Scale& scale = {}, bool in_place = false, int joined = -1) {
  Tensors out = tensors;
  if (!in_place) {
    for (auto& rank : out) {
      for (Buffer& b : rank) std::fill(b.begin(), b.end(), std::byte{0xee});
    }
  }
  const auto results = world.run([&](Comm& comm) {
    std::vector<Segments::Piece> pieces;
    size_t total = 0;
    for (size_t t = 0; t < out[comm.rank].size(); ++t) {
      Buffer& to = out[comm.rank][t];
      const std::byte* from = in_place ? to.data() : tensors[comm.rank][t].data();
      const bool absent = comm.rank == joined;
      pieces.push_back({absent ? nullptr : from, absent ? nullptr : to.data(), to.size() / size_of(d)});
      total += pieces.back().count;
    }
    return allreduce_adasum(comm, {pieces, total}, d, scale);
  });
  check_ok(results);
  return out;
}

std::vector<Buffer> one_each(LinkWorld& world, const std::vector<Buffer>& in, DType d) {
  Tensors tensors;
  for (const Buffer& b : in) tensors.push_back({b});
  std::vector<Buffer> out;
  for (auto& rank : adasum_of(world, tensors, d)) out.push_back(rank[0]);
  for (const Buffer& b : out) CHECK(b == out[0]);
  return out;
}

// Checks within the rounding of the result and of intermediate values, which are as large as the inputs.
void check_close(DType d, const Buffer& got, const std::vector<Vector>& in, long double scaled = 1) {
  const Vector want = expected(in);
  const long double unit = d == DType::float64 ? 0x1p-52L : d == DType::float32 ? 0x1p-23L : d == DType::float16 ? 0x1p-10L : 0x1p-7L;
  const long double way = d == DType::float64 ? 0x1p-48L : 0x1p-20L;
  const long double least = d == DType::float64 ? 0x1p-1074L : d == DType::float32 ? 0x1p-149L : d == DType::float16 ? 0x1p-24L : 0x1p-133L;
  size_t wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    long double sizes = 0;
    for (const Vector& v : in) sizes += std::abs(v[i]);
    const long double is = static_cast<long double>(get_float(d, got.data(), i)), want_i = want[i] * scaled;
    wrong += !(std::abs(is - want_i) <= unit * std::abs(want_i) + way * sizes + least);
  }
  CHECK(wrong == 0);
}

void check_pair(LinkWorld& world, DType d, const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<Buffer> in = {from_doubles(d, a), from_doubles(d, b)};
  check_close(d, one_each(world, in, d)[0], {to_vector(d, in[0]), to_vector(d, in[1])});
}

std::vector<Vector> vectors(DType d, const std::vector<Buffer>& in) {
  std::vector<Vector> all;
  for (const Buffer& b : in) all.push_back(to_vector(d, b));
  return all;
}

}  // namespace

TEST_CASE("Adasum: every dtype, size of the world and odd size of the tensor against the reference, the same bits on all ranks") {
  for (int size : {1, 2, 4, 8, 16}) {
    LinkWorld world(size);
    for (DType d : kFloats) {
      for (size_t n : {0, 1, 2, 3, 7, 8, 1003}) {
        INFO(name_of(d), " of ", n, " on ", size);
        const auto in = inputs(d, n, size, n + 1);
        const auto out = one_each(world, in, d);
        check_close(d, out[0], vectors(d, in));
      }
    }
  }
}

TEST_CASE("Adasum in the memory of a node gives the bits that it gives over links, also with little memory") {
  for (int size : {1, 2, 4, 8}) {
    LinkWorld links(size);
    for (size_t staging : {size_t{8} << 20, size_t{32} << 10}) {
      ShmWorld node(size, staging);
      for (DType d : kFloats) {
        for (size_t n : {0, 1, 5, 1003, 30'001}) {
          INFO(name_of(d), " of ", n, " on ", size);
          const auto in = inputs(d, n, size, n + 1);
          const auto want = one_each(links, in, d);
          std::vector<Buffer> out = in;
          const auto messages = node.run([&](Comm& comm) {
            Buffer& own = out[comm.rank];
            const Segments::Piece piece{in[comm.rank].data(), own.data(), n};
            return allreduce_adasum(comm, {{&piece, 1}, n}, d, {});
          });
          check_ok(messages);
          for (const Buffer& b : out) CHECK(b == want[0]);
        }
      }
    }
  }
}

TEST_CASE("Adasum of fused tensors: each by itself, with the bits that it has alone, in or out of place, scaled") {
  const std::vector<size_t> counts = {5, 0, 1, 3000, 17, 2};
  for (int size : {2, 8}) {
    LinkWorld world(size);
    for (DType d : kFloats) {
      Tensors tensors(size);
      for (int r = 0; r < size; ++r) {
        for (size_t t = 0; t < counts.size(); ++t) tensors[r].push_back(random_elements(d, counts[t], 100 * t + static_cast<uint64_t>(r)));
      }
      const Tensors fused = adasum_of(world, tensors, d), again = adasum_of(world, tensors, d, {}, true);
      const Tensors doubled = adasum_of(world, tensors, d, {2.0, 1});
      for (size_t t = 0; t < counts.size(); ++t) {
        INFO(name_of(d), ", tensor ", t, " on ", size);
        std::vector<Buffer> in;
        for (int r = 0; r < size; ++r) in.push_back(tensors[r][t]);
        const Buffer alone = one_each(world, in, d)[0];
        for (int r = 0; r < size; ++r) {
          CHECK(fused[r][t] == alone);
          CHECK(again[r][t] == alone);
        }
        check_close(d, doubled[0][t], vectors(d, in), 2);
      }
    }
  }
}

TEST_CASE("Adasum of extreme magnitudes neither overflows nor underflows") {
  LinkWorld world(2), four(4);
  struct Extreme {
    DType d;
    double largest, smallest;
  };
  for (const Extreme& e :
       {Extreme{DType::float64, 1.7e308, 5e-324}, Extreme{DType::float64, 1e300, 1e-300}, Extreme{DType::float32, 3.4e38, 1e-45},
        Extreme{DType::bfloat16, 3e38, 1e-40}, Extreme{DType::float16, 65504, 6e-8}}) {
    INFO(name_of(e.d), " ", e.largest);
    const double h = e.largest, l = e.smallest;
    check_pair(world, e.d, {h, h / 2, -h / 4}, {h, h / 2, -h / 4});  // parallel
    check_pair(world, e.d, {h / 4, h / 8, 0, 0}, {h / 8, h / 8, h / 8, 0});
    check_pair(world, e.d, {l, l, 0, 4 * l}, {2 * l, 0, l, 2 * l});
    check_pair(world, e.d, {h / 4, h / 8}, {l, l});
    check_pair(world, e.d, {l, 2 * l}, {h / 4, h / 8});
    check_pair(world, e.d, {l, -2 * l, h / 8}, {h / 4, h / 8, l});
    const auto large = from_doubles(e.d, {h, h / 3, -h / 5, 1}), small = from_doubles(e.d, {2 * l, 0, 8 * l, 4 * l});
    CHECK(one_each(four, {large, large, large, large}, e.d)[0] == large);
    CHECK(one_each(four, {small, small, small, small}, e.d)[3] == small);
  }
  // Elements far below the largest keep their bits if the operands are orthogonal.
  const Buffer a = from_doubles(DType::float64, {1e308, 0, 1e-10, 0}), b = from_doubles(DType::float64, {0, 1e-308, 0, 1e-300});
  CHECK(one_each(world, {a, b}, DType::float64)[0] == from_doubles(DType::float64, {1e308, 1e-308, 1e-10, 1e-300}));
}

TEST_CASE("Adasum of what is not finite gives NaN on all ranks, and nothing else for other tensors") {
  LinkWorld world(4);
  for (DType d : kFloats) {
    for (double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      Tensors tensors(4, {from_doubles(d, {1, 2, 3}), from_doubles(d, {1, 2, 3})});
      put_float(d, tensors[2][0].data(), 1, bad);
      const Tensors out = adasum_of(world, tensors, d);
      for (int r = 0; r < 4; ++r) {
        for (size_t i = 0; i < 3; ++i) CHECK(std::isnan(get_float(d, out[r][0].data(), i)));
        CHECK(out[r][1] == tensors[0][1]);
      }
    }
  }
}

TEST_CASE("Adasum refuses what it is not made for") {
  LinkWorld world(3);
  for (const Status& s : world.run([](Comm& c) { return allreduce_adasum(c, {}, DType::float32, {}); })) {
    CHECK(s.message() == "Adasum needs a floating-point dtype and a power of two of ranks, got float32 on 3 ranks");
  }
}

TEST_CASE("the kernels of Adasum give the same bits on every instruction set") {
  for (DType d : {DType::float32, DType::float64}) {
    for (size_t n : {0, 1, 7, 8, 9, 1001}) {
      INFO(name_of(d), " ", n);
      const Buffer a = random_elements(d, n, 1), b = random_elements(d, n, 2);
      std::vector<Buffer> results;
      each_isa([&] {
        double sums[3];
        dots(d, a.data(), b.data(), n, 0.25, 4.0, sums);
        Buffer result(n * size_of(d) + 3 * sizeof(double));
        const double units[2] = {0.5, 2.0}, factors[2] = {1.0 / 3, -0.7};
        blend(d, result.data(), a.data(), b.data(), n, units, factors);
        memcpy(result.data() + n * size_of(d), sums, sizeof sums);
        results.push_back(result);
        long double ab = 0;
        for (size_t i = 0; i < n; ++i)
          ab += static_cast<long double>(get_float(d, a.data(), i)) * static_cast<long double>(get_float(d, b.data(), i));
        CHECK(sums[0] == doctest::Approx(static_cast<double>(ab)).epsilon(1e-12));
        if (d == DType::float64) {
          double most = 0;
          for (size_t i = 0; i < n; ++i) most = std::max(most, std::abs(get<double>(a.data(), i)));
          CHECK(largest(reinterpret_cast<const double*>(a.data()), n) == most);
        }
      });
      for (const Buffer& r : results) CHECK(r == results[0]);
    }
  }
}
