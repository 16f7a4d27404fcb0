// Size thresholds of the collectives, which select algorithms, chunk sizes and kinds of stores. The defaults were
// measured on one kind of machine; horovod.benchmark --calibrate measures them on another
// (src/horovod/common/bootstrap/calibration.py). All ranks of a job use the same values, and no value changes a bit of
// a result (docs/adr/0002-same-bits.md).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hvd {

// Size thresholds in bytes. tuning_fields() lists the names of the fields.
struct Tuning {
  // Thresholds in shared memory.
  size_t direct_bytes = 16 << 10;
  size_t chunk_bytes = 128 << 10;   // Bytes that a member stages per round; at most half of a usual L2 cache.
  size_t stream_bytes = 8 << 20;    // Outputs from this size on bypass the cache.
  // Thresholds over links.
  size_t doubling_bytes = 16 << 10;  // Allreduce by recursive doubling up to this size.
  size_t pair_bytes = 512 << 10;     // The same limit for two ranks, if it is larger.
  // If some hosts have several ranks, broadcast by the tree up to this size and by the pipeline above it.
  size_t tree_bytes = 256 << 10;
  size_t flat_tree_bytes = 1 << 20;  // The same limit if every host has one rank.

  // Parse "name=bytes" items separated by commas. Values that are not named keep their defaults. Errors name the
  // invalid part and the accepted values.
  static Status parse(std::string_view text, Tuning* out);
  std::string text() const;  // all values, in the form that parse() reads
  // Return all values in the order of tuning_fields(), and read them back. Errors name the value that is out of range.
  std::vector<int64_t> values() const;
  static Status read(std::span<const int64_t> values, Tuning* out);

  bool operator==(const Tuning&) const = default;
};

struct TuningField {
  std::string_view name;
  size_t Tuning::* value;
  size_t low, high;  // accepted range in bytes
};
std::span<const TuningField> tuning_fields();

}  // namespace hvd
