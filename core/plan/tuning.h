// Size thresholds of the collectives: algorithms, chunk sizes and kinds of stores. The defaults were measured on one
// kind of machine; horovod.benchmark --calibrate measures them on another (src/horovod/common/bootstrap/calibration.py). All
// ranks of a job use the same values, and no value changes a bit of a result (docs/adr/0002-same-bits.md). Pure.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace hvd {

// Size thresholds in bytes; the fields are named in tuning_fields().
struct Tuning {
  // In shared memory.
  size_t direct_bytes = 16 << 10;   // Allreduce of two up to this: one synchronisation less, arithmetic twice.
  size_t chunk_bytes = 128 << 10;   // Staged by a member per round: at most half the usual L2 cache.
  size_t stream_bytes = 8 << 20;    // Outputs from this size on bypass the cache.
  // Over links.
  size_t doubling_bytes = 16 << 10;  // Allreduce up to this: recursive doubling.
  size_t pair_bytes = 512 << 10;     // The same for two ranks, if larger.
  size_t tree_bytes = 256 << 10;     // Broadcast up to this: tree, above: pipelined; if some hosts have several ranks.
  size_t flat_tree_bytes = 1 << 20;  // The same with one rank per host.

  // Parse "name=bytes" items separated by commas; unnamed values keep their defaults. Errors name the part and what is
  // accepted.
  static Status parse(std::string_view text, Tuning* out);
  std::string text() const;  // all values, in the form that parse() reads

  bool operator==(const Tuning&) const = default;
};

struct TuningField {
  std::string_view name;
  size_t Tuning::* value;
  size_t low, high;  // accepted range in bytes
};
std::span<const TuningField> tuning_fields();

}  // namespace hvd
