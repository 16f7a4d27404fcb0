// Adasum adds the orthogonal parts of two gradients and averages the parallel parts: a (+) b = (1 - a.b / (2 a.a)) a +
// (1 - a.b / (2 b.b)) b. More than two gradients are combined in pairs: first neighbours, then neighbours among the
// results, and so on. If one operand is zero, the result is the other. The products are computed separately for each
// tensor of a fused operation.
//
// The algorithm is vector halving with distance doubling, as in allreduce_rabenseifner. In each step, two ranks share a range of the data,
// and each receives the other's values for one half of it. To combine them, it needs dot products over whole tensors, which are spread over
// a group (subcube) of ranks; that group adds its partial products by recursive doubling. Finally, the results are copied back the same
// way. The number of ranks must be a power of two.
//
// Every tensor is split into P parts separately, so that the result's bits do not depend on fusion. The buffer holds
// part 0 of all tensors, then part 1, and so on. This keeps each range of parts contiguous and the order within a
// single tensor unchanged.
//
// Dot products are computed in double, and values in float32 or float64. 16-bit floats are sent as float32 during the
// reduction and as 16 bits on the way back. Products of float32 values fit a double, but products of float64 values do
// not. Each rank scales its part of a float64 tensor by a power of two near its largest magnitude, and sends the
// exponents with the dot products. A NaN or infinity makes the result NaN unless the other operand is zero.
//
// On one node, partners exchange data through the staging areas, as in an all-to-all in which every rank has one
// partner.
//
// Cost for P ranks and N bytes, with Q = log2(P) (alpha-beta-gamma model of plan/cost.h): (2 Q + Q (Q + 1) / 2) * alpha + (P-1)/P * N * (2
// beta + 2 gamma). Values are added in the canonical order (collectives/reduce.h). Source: S. Maleki et al., "Scaling Distributed Training
// with Adaptive Summation", MLSys 2021 (arXiv:2006.02924).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {
namespace {

// Exponent of the smallest positive double.
constexpr int32_t kLeast = -1074;

// Dot products of operands a and b over a part of a tensor: `ab` (a.b) in units of 2^(unit_a + unit_b), and likewise `aa` and `bb`. The
// exponents unit_a and unit_b are even, so that the square root of each unit is exact. Messages use the same layout.
struct Sums {
  double ab = 0, aa = 0, bb = 0;
  int32_t unit_a = kLeast, unit_b = kLeast;
};

// Return the exponent of a scale for values with magnitudes up to `magnitude`, so that their scaled squares do not overflow.
int32_t unit_of(double magnitude) {
  if (magnitude == 0) return kLeast;
  return std::isfinite(magnitude) ? std::ilogb(magnitude) & ~1 : 0;
}

// Return the square root of 2^-exponent. Multiplying by it twice divides by 2^exponent without overflow.
double root_of_inverse(int32_t exponent) { return std::ldexp(1.0, -exponent / 2); }

Sums sums_of(DType d, const std::byte* a, const std::byte* b, size_t n) {
  Sums s{0, 0, 0, 0, 0};
  if (d == DType::float64) {
    s.unit_a = unit_of(largest(reinterpret_cast<const double*>(a), n));
    s.unit_b = unit_of(largest(reinterpret_cast<const double*>(b), n));
  }
  double sums[3];
  dots(d, a, b, n, root_of_inverse(s.unit_a), root_of_inverse(s.unit_b), sums);
  s.ab = sums[0], s.aa = sums[1], s.bb = sums[2];
  return s;
}

Sums operator+(const Sums& x, const Sums& y) {
  Sums s;
  s.unit_a = std::max(x.unit_a, y.unit_a);
  s.unit_b = std::max(x.unit_b, y.unit_b);
  auto add = [](double p, double q, int from_p, int from_q, int to) { return std::ldexp(p, from_p - to) + std::ldexp(q, from_q - to); };
  s.ab = add(x.ab, y.ab, x.unit_a + x.unit_b, y.unit_a + y.unit_b, s.unit_a + s.unit_b);
  s.aa = add(x.aa, y.aa, 2 * x.unit_a, 2 * y.unit_a, 2 * s.unit_a);
  s.bb = add(x.bb, y.bb, 2 * x.unit_b, 2 * y.unit_b, 2 * s.unit_b);
  return s;
}

// Factors of the Adasum of a and b: a * units[0]^2 * factors[0] + b * units[1]^2 * factors[1]. The units are 1, unless one operand is so
// much smaller than the other that its factor alone would overflow a double.
struct Factors {
  double units[2] = {1, 1}, factors[2] = {1, 1};

  explicit Factors(const Sums& s) {
    if (s.aa == 0 || s.bb == 0) return;
    set(0, s.ab / (2 * s.aa), s.unit_a, s.unit_b);
    set(1, s.ab / (2 * s.bb), s.unit_b, s.unit_a);
  }

 private:
  void set(int i, double share, int own, int remote) {
    factors[i] = 1 - std::ldexp(share, remote - own);
    if (!std::isinf(factors[i])) return;
    units[i] = root_of_inverse(own);
    factors[i] = std::ldexp(1.0, own) - std::ldexp(share, remote);
  }
};

class Adasum {
 public:
  Adasum(Comm& comm, const Segments& data, DType d);
  Status run();
  void deliver(const Scale& scale) const;

 private:
  struct Range {
    // Parts lo to hi - 1 of every tensor. Each tensor is split into one part per rank.
    size_t lo, hi;
    Range half(bool low) const { return low ? Range{lo, (lo + hi) / 2} : Range{(lo + hi) / 2, hi}; }
  };
  size_t tensors() const { return data_.pieces.size(); }
  // Return the index of the first element of part p of tensor t.
  size_t at(size_t p, size_t t = 0) const { return starts_[p * tensors() + t]; }
  size_t elements(Range r) const { return at(r.hi) - at(r.lo); }
  Bytes of(std::byte* base, Range r, DType d) const { return {base + at(r.lo) * size_of(d), elements(r) * size_of(d)}; }
  bool lower(int step) const { return (comm_.rank >> step & 1) == 0; }
  int partner(int step) const { return comm_.rank ^ (1 << step); }

  template <class Visit>
  // Call visit(tensor, first element in the tensor, first element in the buffer, number of elements) for each part of each tensor.
  void each_part(Visit visit) const;
  void pack();
  Status trade(int step, ConstBytes out, Bytes in);
  Status combine(int step, Range kept, const std::byte* remote);
  Status add_sums(int step);

  Comm& comm_;
  const Segments& data_;
  const DType dtype_, acc_;
  const size_t parts_;
  // Index of the first element of part p of tensor t, stored at starts_[p * tensors() + t]. The last entry is the total
  // number of elements.
  size_t* starts_;
  // Values of all tensors, converted to the accumulation type (float32 or float64).
  std::byte* wide_;
  // Result in the tensors' own type. If that is the accumulation type, it shares the memory of wide_.
  std::byte* narrow_;
  // Dot products for each tensor: those of this rank, and those received from the partner of the current step.
  Sums *sums_, *received_;
  // Numbers of bytes that this rank sends to and receives from each rank in a step through shared memory.
  std::vector<size_t> sent_bytes_, received_bytes_;
};

Adasum::Adasum(Comm& comm, const Segments& data, DType d)
    : comm_(comm), data_(data), dtype_(d), acc_(accumulator(d)), parts_(static_cast<size_t>(comm.size)) {
  Scratch& scratch = *comm.scratch;
  starts_ = reinterpret_cast<size_t*>(scratch.get(kSlotOffsets, (parts_ * tensors() + 1) * sizeof(size_t)));
  size_t end = 0;
  for (size_t p = 0; p < parts_; ++p) {
    for (size_t t = 0; t < tensors(); ++t) {
      const size_t count = data.pieces[t].count;
      starts_[p * tensors() + t] = end;
      end += slice_at(count, comm.size, static_cast<int>(p) + 1) - slice_at(count, comm.size, static_cast<int>(p));
    }
  }
  starts_[parts_ * tensors()] = end;
  // Process a single tensor directly in its output memory.
  const Segments::Piece& first = data.pieces.front();
  const bool in_place = tensors() == 1 && first.out && acc_ == d;
  wide_ = in_place ? first.out : scratch.get(kSlotWide, data.total * size_of(acc_));
  narrow_ = acc_ == d ? wide_ : scratch.get(kSlotAdasum, data.total * size_of(d));
  sums_ = reinterpret_cast<Sums*>(scratch.get(kSlotCounts, 2 * tensors() * sizeof(Sums)));
  received_ = sums_ + tensors();
}

template <class Visit>
void Adasum::each_part(Visit visit) const {
  for (size_t p = 0; p < parts_; ++p) {
    for (size_t t = 0; t < tensors(); ++t) {
      const Segments::Piece& piece = data_.pieces[t];
      const size_t first = slice_at(piece.count, comm_.size, static_cast<int>(p)), count = starts_[p * tensors() + t + 1] - at(p, t);
      if (count > 0) visit(piece, first, at(p, t), count);
    }
  }
}

void Adasum::pack() {
  each_part([&](const Segments::Piece& piece, size_t first, size_t to, size_t count) {
    std::byte* target = wide_ + to * size_of(acc_);
    if (!piece.in) {
      std::memset(target, 0, count * size_of(acc_));
    } else if (acc_ != dtype_) {
      widen(dtype_, reinterpret_cast<float*>(target), piece.in + first * size_of(dtype_), count);
    } else if (target != piece.in + first * size_of(dtype_)) {
      copy_bytes(target, piece.in + first * size_of(dtype_), count * size_of(dtype_), false);
    }
  });
}

void Adasum::deliver(const Scale& s) const {
  each_part([&](const Segments::Piece& piece, size_t first, size_t from, size_t count) {
    if (piece.out) scale(dtype_, piece.out + first * size_of(dtype_), narrow_ + from * size_of(dtype_), count, s);
  });
}

// Exchange data with this rank's partner in a step. In shared memory this is an all-to-all, in which all ranks must take part.
Status Adasum::trade(int step, ConstBytes out, Bytes in) {
  const int peer = partner(step);
  if (!comm_.node) return exchange(comm_, peer, out, peer, in);
  sent_bytes_.assign(parts_, 0);
  received_bytes_.assign(parts_, 0);
  sent_bytes_[peer] = out.size();
  received_bytes_[peer] = in.size();
  return alltoall_shm(comm_, out.data(), sent_bytes_, in.data(), received_bytes_);
}

Status Adasum::run() {
  pack();
  const int steps = std::countr_zero(parts_);
  // path[k] is the range of parts that this rank and its partner combine in step k. Each of them keeps one half. path[steps] is the range
  // of which this rank computes the final values.
  Range path[32];
  path[0] = {0, parts_};
  for (int k = 0; k < steps; ++k) {
    const Range kept = path[k].half(lower(k)), given = path[k].half(!lower(k));
    std::byte* remote = comm_.scratch->get(kSlotTheirs, elements(kept) * size_of(acc_));
    HVD_RETURN_IF_ERROR(trade(k, of(wide_, given, acc_), {remote, elements(kept) * size_of(acc_)}));
    HVD_RETURN_IF_ERROR(combine(k, kept, remote));
    path[k + 1] = kept;
  }
  narrowed(narrow_, wide_, at(path[steps].lo), elements(path[steps]), dtype_);
  for (int k = steps - 1; k >= 0; --k) {
    const Range given = path[k].half(!lower(k));
    HVD_RETURN_IF_ERROR(trade(k, of(narrow_, path[k + 1], dtype_), of(narrow_, given, dtype_)));
  }
  return {};
}

// Combine this rank's values with those of its partner, for each tensor separately, so that its bits do not depend on the tensors fused
// with it. `a` is the operand of the lower rank.
Status Adasum::combine(int step, Range kept, const std::byte* remote) {
  const size_t from = at(kept.lo);
  auto each = [&](auto&& visit) {
    for (size_t p = kept.lo; p < kept.hi; ++p) {
      for (size_t t = 0; t < tensors(); ++t) {
        const size_t here = at(p, t), count = starts_[p * tensors() + t + 1] - here;
        std::byte* own = wide_ + here * size_of(acc_);
        const std::byte* other = remote + (here - from) * size_of(acc_);
        if (count > 0) visit(t, own, lower(step) ? own : other, lower(step) ? other : own, count);
      }
    }
  };
  std::fill_n(sums_, tensors(), Sums{});
  each([&](size_t t, std::byte*, const std::byte* a, const std::byte* b, size_t n) { sums_[t] = sums_[t] + sums_of(acc_, a, b, n); });
  HVD_RETURN_IF_ERROR(add_sums(step));
  each([&](size_t t, std::byte* dst, const std::byte* a, const std::byte* b, size_t n) {
    const Factors f(sums_[t]);
    blend(acc_, dst, a, b, n, f.units, f.factors);
  });
  return {};
}

// Sum the dot products over the ranks whose numbers differ only in the lowest `step` + 1 bits. These ranks together hold both operands
// completely.
Status Adasum::add_sums(int step) {
  const size_t bytes = tensors() * sizeof(Sums);
  for (int k = 0; k <= step; ++k) {
    HVD_RETURN_IF_ERROR(trade(k, {reinterpret_cast<const std::byte*>(sums_), bytes}, {reinterpret_cast<std::byte*>(received_), bytes}));
    for (size_t t = 0; t < tensors(); ++t) sums_[t] = lower(k) ? sums_[t] + received_[t] : received_[t] + sums_[t];
  }
  return {};
}

}  // namespace

Status allreduce_adasum(Comm& comm, const Segments& data, DType d, const Scale& s) {
  if (!is_float(d) || !std::has_single_bit(static_cast<unsigned>(comm.size))) {
    return Status(Code::internal, "Adasum needs a floating-point dtype and a power of two of ranks, got " + std::string(name_of(d)) +
                                      " on " + std::to_string(comm.size) + " ranks");
  }
  if (data.total == 0) return {};
  Adasum adasum(comm, data, d);
  HVD_RETURN_IF_ERROR(adasum.run());
  adasum.deliver(s);
  return {};
}

}  // namespace hvd
