// Operations with one source and one destination: copy, zero, scale and cast. Used by the packing kernels and the
// in-place scaling kernels.
//
// A vector is 16 bytes of the narrower type. Each thread issues at least four 16-byte loads before it uses the first
// loaded value.
#pragma once
#include <cstdint>

#include "kernels/elements.h"
#include "kernels/platform.h"

namespace hvd::kernels {

// Work of one thread: the vectors first, first + stride, first + 2 * stride and so on, then the elements outside full vectors, in the same
// pattern.
struct Share {
  uint64_t first, stride;
};

// Return the number of leading elements that are processed one by one, until both addresses are multiples of 16. If they never are, return
// the number of all elements.
template <class In, class Out>
HVD_KERNEL_INLINE uint64_t head_of(uint64_t source, uint64_t destination, uint64_t elements) {
  const uint64_t to_boundary = (16 - destination % 16) % 16;
  if constexpr (kBytes<In> == kBytes<Out>) {
    if (source % 16 != destination % 16 || to_boundary % kBytes<Out> != 0) return elements;
    const uint64_t head = to_boundary / kBytes<Out>;
    return head < elements ? head : elements;
  } else {
    return source % 16 == 0 && to_boundary == 0 ? 0 : elements;
  }
}

template <class In, class Out, int kLanes>
HVD_KERNEL_INLINE Words<kMemoryWords<Out, kLanes>> transformed(const Words<kMemoryWords<In, kLanes>>& x, const Scaling& s) {
  static_assert(sizeof(typename In::Acc) == sizeof(typename Out::Acc));
  return narrow<Out, kLanes>(scaled<In, kLanes>(widen<In, kLanes>(x), s));
}

// Load or store a vector of 16 * kParts bytes. In a cast, the wider type takes several parts of 16 bytes for as many elements as fit in one
// part of the narrower type.
template <int kParts>
HVD_KERNEL_INLINE Words<4 * kParts> load_vector(uint64_t address) {
  Words<4 * kParts> x;
  HVD_KERNEL_UNROLL
  for (int part = 0; part < kParts; ++part) {
    const Words<4> some = load_aligned<16>(address + 16 * part);
    for (int i = 0; i < 4; ++i) x.w[4 * part + i] = some.w[i];
  }
  return x;
}
template <int kParts>
HVD_KERNEL_INLINE void store_vector(uint64_t address, const Words<4 * kParts>& x) {
  HVD_KERNEL_UNROLL
  for (int part = 0; part < kParts; ++part) {
    store_aligned<16>(address + 16 * part, {x.w[4 * part], x.w[4 * part + 1], x.w[4 * part + 2], x.w[4 * part + 3]});
  }
}

template <class In, class Out>
HVD_KERNEL_INLINE void transform(uint64_t source, uint64_t destination, uint64_t elements, const Scaling& s, Share share) {
  constexpr int kLanes = 16 / (kBytes<In> < kBytes<Out> ? kBytes<In> : kBytes<Out>);
  constexpr int kIn = kLanes * kBytes<In> / 16, kOut = kLanes * kBytes<Out> / 16, kAtOnce = 4 / kIn;
  const bool fast = kScalesFast<In> || s.identity;
  const uint64_t head = fast ? head_of<In, Out>(source, destination, elements) : elements;
  const uint64_t vectors = (elements - head) / kLanes;

  const uint64_t from = source + head * kBytes<In>, to = destination + head * kBytes<Out>;
  HVD_KERNEL_ROLL
  for (uint64_t v = share.first; v < vectors; v += kAtOnce * share.stride) {
    Words<4 * kIn> x[kAtOnce] = {};
    HVD_KERNEL_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t at = v + k * share.stride;
      if (at < vectors) x[k] = load_vector<kIn>(from + at * (16 * kIn));
    }
    HVD_KERNEL_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t at = v + k * share.stride;
      if constexpr (kScalesFast<In>) {
        if (at < vectors) store_vector<kOut>(to + at * (16 * kOut), transformed<In, Out, kLanes>(x[k], s));
      } else {
        if (at < vectors) store_vector<kOut>(to + at * (16 * kOut), x[k]);
      }
    }
  }

  // Process the unaligned elements before the first and after the last vector one by one.
  const uint64_t single = elements - vectors * kLanes;
  HVD_KERNEL_ROLL
  for (uint64_t i = share.first; i < single; i += share.stride) {
    const uint64_t at = i < head ? i : i + vectors * kLanes;
    store<kBytes<Out>>(destination + at * kBytes<Out>, transformed<In, Out, 1>(load<kBytes<In>>(source + at * kBytes<In>), s));
  }
}

// Copy bytes in the widest words that the addresses allow. A null source stands for zeros.
template <int kWidth>
HVD_KERNEL_INLINE void copy_words(uint64_t source, uint64_t destination, uint64_t words, Share share) {
  constexpr int kAtOnce = 4;
  HVD_KERNEL_ROLL
  for (uint64_t i = share.first; i < words; i += kAtOnce * share.stride) {
    Words<(kWidth + 3) / 4> x[kAtOnce] = {};
    HVD_KERNEL_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t at = i + k * share.stride;
      if (source != 0 && at < words) x[k] = load_aligned<kWidth>(source + at * kWidth);
    }
    HVD_KERNEL_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const uint64_t at = i + k * share.stride;
      if (at < words) store_aligned<kWidth>(destination + at * kWidth, x[k]);
    }
  }
}

HVD_KERNEL_INLINE void copy(uint64_t source, uint64_t destination, uint64_t bytes, Share share) {
  const uint64_t apart = source == 0 ? 0 : source ^ destination;
  const uint64_t width = apart % 16 == 0 ? 16 : apart % 4 == 0 ? 4 : apart % 2 == 0 ? 2 : 1;
  uint64_t head = (width - destination % width) % width;
  if (head > bytes) head = bytes;
  const uint64_t words = (bytes - head) / width, single = bytes - words * width;
  const uint64_t from = source == 0 ? 0 : source + head, to = destination + head;
  switch (width) {
    case 16: copy_words<16>(from, to, words, share); break;
    case 4: copy_words<4>(from, to, words, share); break;
    case 2: copy_words<2>(from, to, words, share); break;
    default: copy_words<1>(from, to, words, share);
  }
  HVD_KERNEL_ROLL
  for (uint64_t i = share.first; i < single; i += share.stride) {
    const uint64_t at = i < head ? i : i + words * width;
    store_aligned<1>(destination + at, source == 0 ? Words<1>{} : load_aligned<1>(source + at));
  }
}

}  // namespace hvd::kernels
