// Reduction of up to 64 sources into several destinations, in the canonical order of collectives/reduce.h. Let p be the largest power of
// two <= the number of sources, and r the remainder. Partial value i combines sources 2i and 2i+1 for i < r, and is source i+r for all
// other i. Then neighbours combine until one value is left.
//
// With two sources, a thread works on two vectors at a time. With more sources, it works on one vector and reads four partial values at a
// time, which keeps four to eight 16-byte loads in flight. They are combined to a subtree, whose result waits on a stack for the
// neighbouring subtree of the same size, like a carry in a binary counter.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/platform.h"

namespace hvd::kernels {

// Elements that can be reduced as 16-byte vectors: [first, first + 16 / bytes * count). Their addresses in all buffers are multiples of 16.
// If the buffers are aligned differently, count is 0.
struct Vectors {
  uint64_t first, count;
};

template <class E>
HVD_KERNEL_INLINE Vectors vectors_of(const ReduceParameters& p) {
  constexpr uint64_t kLanes = 16 / kBytes<E>;
  const uint64_t elements = p.end - p.begin, reference = p.sources[0];
  uint64_t apart = 0;
  HVD_KERNEL_ROLL
  for (uint32_t i = 1; i < p.source_count; ++i) apart |= p.sources[i] ^ reference;
  HVD_KERNEL_ROLL
  for (uint32_t i = 0; i < p.destination_count; ++i) apart |= p.destinations[i] ^ reference;
  const uint64_t to_boundary = (16 - (reference + p.begin * kBytes<E>) % 16) % 16;
  const uint64_t head = to_boundary / kBytes<E>;
  if (apart % 16 != 0 || to_boundary % kBytes<E> != 0 || head > elements || !(kScalesFast<E> || p.scaling.identity)) return {p.begin, 0};
  return {p.begin + head, (elements - head) / kLanes};
}

// Accessor that reads and writes kLanes elements at a time: either whole vectors, or a single element at any address.
template <class E, int kLanes>
struct Access {
  using Memory = Words<kMemoryWords<E, kLanes>>;
  using Acc = Words<kAccWords<E, kLanes>>;
  HVD_KERNEL_INLINE static Memory read(uint64_t address) {
    if constexpr (kLanes > 1) {
      return load_aligned<16>(address);
    } else {
      return load<kBytes<E>>(address);
    }
  }
  HVD_KERNEL_INLINE static void write(uint64_t address, const Memory& x) {
    if constexpr (kLanes > 1) {
      store_aligned<16>(address, x);
    } else {
      store<kBytes<E>>(address, x);
    }
  }
  // Scale and narrow the values, and store them to every destination.
  HVD_KERNEL_INLINE static void finish(const ReduceParameters& p, uint64_t offset, const Acc& x) {
    Memory y;
    if constexpr (kLanes == 1 || kScalesFast<E>) {
      y = narrow<E, kLanes>(scaled<E, kLanes>(x, p.scaling));
    } else {
      y = narrow<E, kLanes>(x);
    }
    const uint32_t count = p.destination_count;
    HVD_KERNEL_ROLL
    for (uint32_t i = 0; i < count; ++i) write(p.destinations[i] + offset, y);
  }
};

// Reduce `count` vectors from each of two sources, starting at byte `offset`.
template <class E>
HVD_KERNEL_INLINE void reduce_two(const ReduceParameters& p, uint64_t offset, uint64_t count, Place place) {
  constexpr int kLanes = 16 / kBytes<E>, kAtOnce = 2;
  using A = Access<E, kLanes>;
  HVD_KERNEL_ROLL
  for (uint64_t v = place.first(); v < count; v += kAtOnce * place.stride()) {
    typename A::Memory x[kAtOnce] = {}, y[kAtOnce] = {};
    HVD_KERNEL_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t at = v + k * place.stride();
      if (at >= count) continue;
      x[k] = A::read(p.sources[0] + offset + 16 * at);
      y[k] = A::read(p.sources[1] + offset + 16 * at);
    }
    typename A::Acc a[kAtOnce], b[kAtOnce];
    HVD_KERNEL_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      a[k] = widen<E, kLanes>(x[k]);
      b[k] = widen<E, kLanes>(y[k]);
    }
    combine<E>(a, b, p.op);
    HVD_KERNEL_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t at = v + k * place.stride();
      if (at < count) A::finish(p, offset + 16 * at, a[k]);
    }
  }
}

// Combine the elements of all sources at byte offset `offset`.
template <class E, int kLanes>
HVD_KERNEL_INLINE Words<kAccWords<E, kLanes>> tree(const ReduceParameters& p, uint64_t offset) {
  using A = Access<E, kLanes>;
  // Maximum number of subtrees on the stack: one each of 1, 2, 4 and 8 combined subtrees, because 64 sources form 16 subtrees.
  constexpr int kLevels = 4;
  static_assert(kMostSources == 4 << kLevels);
  uint32_t partials = 1;
  HVD_KERNEL_ROLL
  while (2 * partials <= p.source_count) partials *= 2;
  const uint32_t pairs = p.source_count - partials;

  typename A::Acc waiting[kLevels] = {}, root{};
  HVD_KERNEL_ROLL
  for (uint32_t first = 0; first < partials; first += 4) {
    typename A::Memory x[4] = {}, y[4] = {};
    HVD_KERNEL_UNROLL
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t i = first + j;
      if (i >= partials) continue;
      x[j] = A::read(p.sources[i < pairs ? 2 * i : i + pairs] + offset);
      if (i < pairs) y[j] = A::read(p.sources[2 * i + 1] + offset);
    }
    typename A::Acc a[4];
    HVD_KERNEL_UNROLL
    for (uint32_t j = 0; j < 4; ++j) a[j] = widen<E, kLanes>(x[j]);
    if (first < pairs) {
      HVD_KERNEL_UNROLL
      for (uint32_t j = 0; j < 4; ++j) {
        typename A::Acc one[1] = {a[j]}, other[1] = {widen<E, kLanes>(y[j])};
        if (first + j < pairs) combine<E>(one, other, p.op);
        a[j] = one[0];
      }
    }
    typename A::Acc left[2] = {a[0], a[2]}, right[2] = {a[1], a[3]};
    if (partials > 1) combine<E>(left, right, p.op);
    typename A::Acc one[1] = {left[0]}, other[1] = {left[1]};
    if (partials > 2) combine<E>(one, other, p.op);
    // Combine the new subtree with waiting subtrees of the same size, up to the first free level, like a carry in a binary counter. The
    // number of subtrees is a power of two, so the last one combines with all others.
    root = one[0];
    bool rises = true;
    HVD_KERNEL_UNROLL
    for (int level = 0; level < kLevels; ++level) {
      if (rises && (first / 4 >> level & 1) != 0) {
        typename A::Acc below[1] = {waiting[level]}, carry[1] = {root};
        combine<E>(below, carry, p.op);
        root = below[0];
      } else if (rises) {
        waiting[level] = root;
        rises = false;
      }
    }
  }
  return root;
}

template <class E>
HVD_KERNEL_INLINE void reduce(const ReduceParameters& p, Place place) {
  if (p.begin >= p.end || p.source_count == 0) return;
  constexpr int kLanes = 16 / kBytes<E>;
  const Vectors vectors = vectors_of<E>(p);
  const uint64_t offset = vectors.first * kBytes<E>;
  if (p.source_count == 2) {
    reduce_two<E>(p, offset, vectors.count, place);
  } else {
    HVD_KERNEL_ROLL
    for (uint64_t v = place.first(); v < vectors.count; v += place.stride()) {
      Access<E, kLanes>::finish(p, offset + 16 * v, tree<E, kLanes>(p, offset + 16 * v));
    }
  }
  // Process the unaligned elements before the first and after the last vector one by one.
  const uint64_t inside = vectors.count * kLanes, single = p.end - p.begin - inside;
  HVD_KERNEL_ROLL
  for (uint64_t i = place.first(); i < single; i += place.stride()) {
    const uint64_t at = p.begin + i < vectors.first ? p.begin + i : p.begin + i + inside;
    Access<E, 1>::finish(p, at * kBytes<E>, tree<E, 1>(p, at * kBytes<E>));
  }
}

}  // namespace hvd::kernels
