// Negotiation data. With a Request a rank says that one tensor is ready; with a Response the coordinator tells every
// rank which operation to execute next.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/device_kind.h"
#include "base/dtype.h"
#include "base/status.h"

namespace hvd {

// The codes are shared with the Python package (KIND_* in _core), so they must not change.
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
  adopt_schedule = 9,  // used in responses only
};
const char* name_of(Kind kind);
// True if the first dimension may differ between ranks.
constexpr bool ragged(Kind kind) { return kind == Kind::allgather || kind == Kind::alltoall; }
// True if one response may fuse several operations of this kind.
constexpr bool joinable(Kind kind) { return kind == Kind::allreduce || kind == Kind::allgather || kind == Kind::reducescatter; }
inline constexpr int kWeakFenceBits = 20;
// Return the name prefix that an unnamed operation gets when it is negotiated; its number follows.
std::string unnamed_prefix(Kind kind);
inline constexpr const char* kJoinName = "join.noname";

// Request of one rank, sent when the rank is ready for one tensor of an operation. The ranks' requests for an operation
// must agree (agree/validate.h).
struct Request {
  Kind kind = Kind::allreduce;
  uint32_t set = 0;
  uint8_t frontend = 0;  // Framework that submitted it; each framework in a process has its own names, groups, numbers and joins.
  std::string name;             // Full name on the wire; unique among the operations in flight of one set and frontend.
  bool unnamed = false;         // True if the name is only a number; unnamed operations are matched by their order.
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  WireFormat wire = WireFormat::none;  // Format in which an allreduce of float32 sends its values.
  DeviceKind device = DeviceKind::host;  // Kind of memory that holds the tensor; each rank chooses the device index itself.
  // True for an allreduce only among the ranks with the same local index. Each holds a part of its host's reduction.
  bool across_hosts = false;
  int32_t root = 0;             // global rank of the source; only used by broadcasts
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<int64_t> shape;
  // For an alltoall, the rows sent to each set rank. For add_set, the ranks of the new set; if the request has a name,
  // only these ranks send it. For remove_set, the id of the set.
  std::vector<int64_t> splits;
  std::string group;            // name of the group, for grouped operations; group_size is its number of members
  uint32_t group_size = 0;
  // Increases whenever the submitting program waits. Operations with different fences are never fused, because the
  // program waited for the first before it submitted the second. The lower kWeakFenceBits bits count completion
  // callbacks: later submissions may or may not depend on a callback, and its place between operations varies from step
  // to step. The fence is not part of the signature.
  uint64_t fence = 0;

  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * size_of(dtype); }
  // True if the two requests are equal in all fields that must repeat from step to step in a schedule. Only the number
  // of an unnamed operation may differ.
  bool same_signature(const Request& other) const;
  uint64_t signature_hash() const;
};

// Response to all ranks: the next operation to execute, possibly with several fused tensors, or an error.
struct Response {
  Kind kind = Kind::allreduce;
  uint32_t set = 0;
  uint8_t frontend = 0;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  WireFormat wire = WireFormat::none;
  DeviceKind device = DeviceKind::host;
  bool across_hosts = false;
  bool partial = false;  // true if a rank of the set has joined and contributes nothing
  int32_t root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::string> names;               // One name, or several if fused.
  std::vector<std::vector<int64_t>> shapes;  // Parallel to `names`; a rank that has joined has no request and takes the sizes from here.
  // The meaning depends on the kind. For an allgather, the first dimension of each name's tensor on each set rank. For
  // an alltoall, the matrix of splits, one row per sender. For a join, the last rank to join. For add_set, the id, the
  // generation and the ranks. For remove_set, 1 if the set was removed (otherwise 0), and the id.
  // For adopt_schedule, the values of the new tuning (Tuning::values), or nothing if the tuning does not change.
  std::vector<int64_t> sizes;
  Status error;  // If this is an error, every rank fails these operations with it.
  std::string payload;  // The encoded schedule, only for adopt_schedule.
};

// Return a request with the fields that the response determines, that is all but names, shapes and splits.
Request request_like(const Response& response);

// Return a key that is unique in the job; a name is unique only within one set and frontend.
inline std::string key_of(uint32_t set, uint8_t frontend, const std::string& name) {
  return std::to_string(set) + (frontend == 0 ? "/" : '.' + std::to_string(frontend) + '/') + name;
}
inline std::string key_of(const Request& q) { return key_of(q.set, q.frontend, q.name); }
// Return the number of a stream: unnamed operations are numbered, and matched by order, within one stream. Stream
// numbers sort by set, then by frontend, then by kind.
constexpr uint64_t stream_of(uint32_t set, uint8_t frontend, Kind kind) {
  return static_cast<uint64_t>(set) << 16 | static_cast<uint64_t>(frontend) << 8 | static_cast<uint64_t>(kind);
}

// Return a shape as text for messages, for example "[2, 3]".
std::string shape_string(const std::vector<int64_t>& shape);

void encode(const std::vector<Request>& requests, std::string* out);
void encode(const std::vector<Response>& responses, std::string* out);
// Decode the bytes at *at. Return false if encode() cannot have written them.
bool decode(const char** at, const char* end, std::vector<Request>* out);
bool decode(const char** at, const char* end, std::vector<Response>* out);

}  // namespace hvd
