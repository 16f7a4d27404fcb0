// Element types and the operations on them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "handles.h"
#include "knobs.h"

namespace simmpi {

inline size_t size_of(Id type) {
  switch (type) {
    case kByte:
    case kInt8:
    case kUint8: return 1;
    case kInt16:
    case kUint16: return 2;
    case kInt32:
    case kFloat: return 4;
    case kInt64:
    case kDouble: return 8;
    default: mistake("this is no type");
  }
}

// Integers wrap around.
template <class T>
struct Wide {
  using type = uint64_t;
};
template <>
struct Wide<float> {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};

template <class T>
void reduce_as(Id op, void* to, const void* from, size_t count) {
  using W = typename Wide<T>::type;
  auto* t = static_cast<T*>(to);
  const auto* f = static_cast<const T*>(from);
  for (size_t i = 0; i < count; ++i) {
    switch (op) {
      case kSum: t[i] = static_cast<T>(static_cast<W>(t[i]) + static_cast<W>(f[i])); break;
      case kProduct: t[i] = static_cast<T>(static_cast<W>(t[i]) * static_cast<W>(f[i])); break;
      case kMin: t[i] = std::min(t[i], f[i]); break;
      case kMax: t[i] = std::max(t[i], f[i]); break;
      default: mistake("this is no operation");
    }
  }
}

inline void reduce(Id type, Id op, void* to, const void* from, size_t count) {
  switch (type) {
    case kInt8: return reduce_as<int8_t>(op, to, from, count);
    case kUint8: return reduce_as<uint8_t>(op, to, from, count);
    case kInt16: return reduce_as<int16_t>(op, to, from, count);
    case kUint16: return reduce_as<uint16_t>(op, to, from, count);
    case kInt32: return reduce_as<int32_t>(op, to, from, count);
    case kInt64: return reduce_as<int64_t>(op, to, from, count);
    case kFloat: return reduce_as<float>(op, to, from, count);
    case kDouble: return reduce_as<double>(op, to, from, count);
    default: mistake("MPI does not reduce this type");
  }
}

}  // namespace simmpi
