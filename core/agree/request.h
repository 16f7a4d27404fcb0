// Negotiation messages. A rank sends a Request when one tensor is ready. The coordinator sends a Response to all ranks
// to announce the next operation to execute.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/device_kind.h"
#include "base/dtype.h"
#include "base/status.h"

namespace hvd {

// Kinds of operations. The codes are shared with the Python package (KIND_* in _core), so they must not change.
enum class Kind : uint8_t {
  allreduce = 0,
  allgather = 1,
  broadcast = 2,
  alltoall = 3,
  reducescatter = 4,
  barrier = 5,
  join = 6,
  add_set = 7,
  remove_set = 8,
  // Kind used only in responses: it makes all ranks adopt a schedule.
  adopt_schedule = 9,
};
const char* name_of(Kind kind);
// True if ranks can contribute tensors with different first dimensions.
constexpr bool ragged(Kind kind) { return kind == Kind::allgather || kind == Kind::alltoall; }
// True if one response can fuse several operations of this kind.
constexpr bool joinable(Kind kind) { return kind == Kind::allreduce || kind == Kind::allgather || kind == Kind::reducescatter; }
inline constexpr int kWeakFenceBits = 20;
// Return the prefix of the names that unnamed operations get during negotiation. A number follows the prefix.
std::string unnamed_prefix(Kind kind);
inline constexpr const char* kJoinName = "join.noname";

// Request that a rank sends when it is ready for one tensor of an operation. All ranks' requests for the operation must
// agree (agree/validate.h).
struct Request {
  Kind kind = Kind::allreduce;
  uint32_t set = 0;
  // Framework that submitted the operation. Operation names, group names, the numbers of unnamed operations, and joins
  // are separate for each framework.
  uint8_t frontend = 0;
  // Full name of the operation on the wire. Unique among the operations in flight with the same set and frontend.
  std::string name;
  // True if the name is only a number. Ranks match unnamed operations by their order.
  bool unnamed = false;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  // Format in which an allreduce sends float32 values.
  WireFormat wire = WireFormat::none;
  // Kind of memory that holds the tensor. The device index is local to each rank and not part of the request.
  DeviceKind device = DeviceKind::host;
  // True for an allreduce between hosts: each rank has a slice of its host's sum, and ranks with the same local index add their slices.
  bool across_hosts = false;
  // Global rank of the source. Only used by broadcasts.
  int32_t root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<int64_t> shape;
  // For an alltoall, the number of rows to send to each rank of the set. For add_set, the ranks of the new set; only
  // these ranks send the request if it has a name. For remove_set, the id of the set.
  std::vector<int64_t> splits;
  // Group name and number of operations in the group, for grouped operations.
  std::string group;
  uint32_t group_size = 0;
  // Number that increases whenever the program waits. Operations with different fences are never fused, because the program waited for one
  // before it submitted the other. The lower kWeakFenceBits bits count completion callbacks, on which later submissions might depend.
  // Callbacks run at different points in each step, so the fence is not part of the signature.
  uint64_t fence = 0;

  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * size_of(dtype); }
  // True if the requests agree in all fields that a schedule requires to be the same in every step. Only the numbers of
  // unnamed operations can differ.
  bool same_signature(const Request& other) const;
  uint64_t signature_hash() const;
};

// Response to all ranks: the next operation to execute, which can fuse several tensors, or an error.
struct Response {
  Kind kind = Kind::allreduce;
  uint32_t set = 0;
  uint8_t frontend = 0;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  WireFormat wire = WireFormat::none;
  DeviceKind device = DeviceKind::host;
  bool across_hosts = false;
  // True if a rank of the process set has called join() and contributes no data.
  bool partial = false;
  int32_t root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  // Names of the operations in the response.
  std::vector<std::string> names;
  // Shape of the tensor of each operation in `names`. Ranks that have called join() need the shapes, because they have
  // no request.
  std::vector<std::vector<int64_t>> shapes;
  // Numbers whose meaning depends on the kind. For an allgather: the first dimension of each tensor in `names` on each
  // rank of the process set. For an alltoall: the matrix of splits, one row per sender. For a join: the last rank to
  // join. For add_set: the id, the generation and the ranks. For remove_set: 1 if the set was removed or 0 if not, and
  // the id. For adopt_schedule: the values of the new tuning (Tuning::values), or nothing if the tuning does not
  // change.
  std::vector<int64_t> sizes;
  // Error with which these operations fail on every rank, or ok.
  Status error;
  // The encoded schedule. Used only by adopt_schedule.
  std::string payload;
};

// Return a request with the fields of the response. Names, shapes and splits stay empty.
Request request_like(const Response& response);

// Return a key that is unique within the job. A name alone is unique only within one process set and frontend.
inline std::string key_of(uint32_t set, uint8_t frontend, const std::string& name) {
  return std::to_string(set) + (frontend == 0 ? "/" : '.' + std::to_string(frontend) + '/') + name;
}
inline std::string key_of(const Request& q) { return key_of(q.set, q.frontend, q.name); }
// Return the number of the stream of unnamed operations with this set, frontend and kind. Unnamed operations are
// numbered within their stream, and ranks match them by order. Stream numbers sort by set, then frontend, then kind.
constexpr uint64_t stream_of(uint32_t set, uint8_t frontend, Kind kind) {
  return static_cast<uint64_t>(set) << 16 | static_cast<uint64_t>(frontend) << 8 | static_cast<uint64_t>(kind);
}

// Format a shape for error messages, for example "[2, 3]".
std::string shape_string(const std::vector<int64_t>& shape);

void encode(const std::vector<Request>& requests, std::string* out);
void encode(const std::vector<Response>& responses, std::string* out);
// Decode requests at *at. Return false if encode() could not have produced the bytes.
bool decode(const char** at, const char* end, std::vector<Request>* out);
bool decode(const char** at, const char* end, std::vector<Response>* out);

}  // namespace hvd
