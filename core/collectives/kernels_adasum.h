// Adasum kernels. kernels_impl.h includes this file inside its unnamed namespace.
//
// All arithmetic is in double. On every instruction set, sums use kAdasumLanes lanes, and lane i adds elements i, i + kAdasumLanes, and so
// on. The results are therefore bitwise identical everywhere.

constexpr size_t kAdasumLanes = 8;

using DoubleVec = Vector<double>;
constexpr size_t kDoubles = kWidth / sizeof(double);
constexpr size_t kAdasumVecs = kAdasumLanes / kDoubles;

// Load or store kDoubles elements as doubles.
template <class T>
HVD_INLINE DoubleVec load_doubles(const std::byte* p) {
  typedef T Part __attribute__((vector_size(kDoubles * sizeof(T))));
  return __builtin_convertvector(load_bytes<Part>(p), DoubleVec);
}
template <class T>
HVD_INLINE void store_doubles(std::byte* p, DoubleVec v) {
  typedef T Part __attribute__((vector_size(kDoubles * sizeof(T))));
  const Part part = __builtin_convertvector(v, Part);
  memcpy(p, &part, sizeof part);
}

// Call step(a, b, byte offset, bytes) for kAdasumLanes elements of the two operands at a time. The remaining elements are first copied and
// padded with zeros.
template <class T, class Step>
HVD_INLINE void in_adasum_steps(const std::byte* a, const std::byte* b, size_t n, Step step) {
  constexpr size_t kStep = kAdasumLanes * sizeof(T);
  size_t at = 0;
  for (; n >= kAdasumLanes; n -= kAdasumLanes, at += kStep) step(a + at, b + at, at, kStep);
  if (n == 0) return;
  std::byte padded[2][kStep] = {};
  memcpy(padded[0], a + at, n * sizeof(T));
  memcpy(padded[1], b + at, n * sizeof(T));
  step(padded[0], padded[1], at, n * sizeof(T));
}

HVD_INLINE double sum_of_lanes(const DoubleVec (&v)[kAdasumVecs]) {
  double x[kAdasumLanes];
  memcpy(x, v, sizeof x);
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

template <class T>
void adasum_dots_loop(const std::byte* a, const std::byte* b, size_t n, double unit_a, double unit_b, double* sums) {
  DoubleVec ab[kAdasumVecs] = {}, aa[kAdasumVecs] = {}, bb[kAdasumVecs] = {};
  in_adasum_steps<T>(a, b, n, [&](const std::byte* x, const std::byte* y, size_t, size_t) {
    for (size_t k = 0; k < kAdasumVecs; ++k) {
      const DoubleVec u = load_doubles<T>(x + k * kDoubles * sizeof(T)) * unit_a * unit_a;
      const DoubleVec v = load_doubles<T>(y + k * kDoubles * sizeof(T)) * unit_b * unit_b;
      ab[k] += u * v;
      aa[k] += u * u;
      bb[k] += v * v;
    }
  });
  sums[0] = sum_of_lanes(ab);
  sums[1] = sum_of_lanes(aa);
  sums[2] = sum_of_lanes(bb);
}

template <class T>
void adasum_blend_loop(std::byte* dst, const std::byte* a, const std::byte* b, size_t n, const double* units, const double* factors) {
  in_adasum_steps<T>(a, b, n, [&](const std::byte* x, const std::byte* y, size_t at, size_t bytes) {
    std::byte result[kAdasumLanes * sizeof(T)];
    for (size_t k = 0; k < kAdasumVecs; ++k) {
      const size_t here = k * kDoubles * sizeof(T);
      const DoubleVec u = load_doubles<T>(x + here) * units[0] * units[0] * factors[0];
      const DoubleVec v = load_doubles<T>(y + here) * units[1] * units[1] * factors[1];
      store_doubles<T>(result + here, u + v);
    }
    memcpy(dst + at, result, bytes);
  });
}

// Return the largest magnitude. It does not depend on how elements are assigned to lanes. NaN never compares greater and is thus ignored.
double adasum_largest_loop(const double* x, size_t n) {
  double most = 0;
  for (size_t i = 0; i < n; ++i) {
    const double magnitude = x[i] < 0 ? -x[i] : x[i];
    most = magnitude > most ? magnitude : most;
  }
  return most;
}
