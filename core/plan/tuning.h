// Size thresholds of the collectives. They select algorithms, chunk sizes and kinds of stores. The defaults were
// measured on one kind of machine; horovod.benchmark --calibrate measures them on another
// (src/horovod/common/bootstrap/calibration.py). All ranks of a job use the same values, and no value affects the bits
// of a result (docs/adr/0002-same-bits.md).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace hvd {

// Size thresholds in bytes, whose names tuning_fields() lists. A link is the engine's connection between two ranks; ranks on the same host
// normally use shared memory instead.
struct Tuning {
  // Maximum size in bytes of an allreduce that uses the direct algorithm, for two ranks in shared memory. For n ranks, the limit is 2 / n
  // of this value.
  size_t direct_bytes = 16 << 10;
  // Bytes that a rank stages in shared memory per round. At most half of an L2 cache is best.
  size_t chunk_bytes = 128 << 10;
  // Minimum size in bytes at which an output is written with stores that bypass the cache.
  size_t stream_bytes = 8 << 20;
  // Maximum size in bytes of an allreduce that uses recursive doubling, if ranks communicate only over links (one rank per host).
  size_t doubling_bytes = 16 << 10;
  // Maximum size in bytes of an allreduce between two ranks over links that uses recursive doubling. Ignored if below doubling_bytes.
  size_t pair_bytes = 512 << 10;
  // Maximum size in bytes of a slice that uses recursive doubling between hosts with several ranks. Each rank of a host has one slice.
  size_t slice_doubling_bytes = 32 << 10;
  // Value of slice_doubling_bytes for two hosts. It is higher, because two hosts exchange all data with any algorithm.
  size_t slice_pair_bytes = 512 << 10;
  // Maximum size in bytes of a broadcast between hosts that uses the tree algorithm, if some hosts have several ranks.
  size_t tree_bytes = 256 << 10;
  // Maximum size in bytes of a broadcast that uses the tree algorithm, if ranks communicate only over links (one rank per host).
  size_t flat_tree_bytes = 1 << 20;

  // Parse "name=bytes" items separated by commas. Values that are not named keep their defaults. Errors name the
  // invalid part and the accepted values.
  static Status parse(std::string_view text, Tuning* out);
  // Return all values in the form that parse() reads.
  std::string text() const;
  // Convert to or from numbers in the order of tuning_fields(), for messages between ranks. The error of read() names the value that is out
  // of range.
  std::vector<int64_t> values() const;
  static Status read(std::span<const int64_t> values, Tuning* out);

  bool operator==(const Tuning&) const = default;
};

struct TuningField {
  std::string_view name;
  size_t Tuning::* value;
  // Minimum and maximum accepted value of this setting in bytes.
  size_t low, high;
};
std::span<const TuningField> tuning_fields();

}  // namespace hvd
