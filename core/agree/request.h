// Negotiation data: a Request says that one tensor is ready on a rank, a Response tells every rank which operation to
// execute next.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/device_kind.h"
#include "base/dtype.h"
#include "base/status.h"

namespace hvd {

// Codes are part of the contract with the Python package (KIND_* in _core).
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

// Request of one rank: it is ready for one tensor of an operation. The ranks' requests must agree (agree/validate.h).
struct Request {
  Kind kind = Kind::allreduce;
  uint32_t set = 0;
  uint8_t frontend = 0;  // submitting framework: each framework in a process has its own names, groups, numbers and joins
  std::string name;             // full name on the wire; unique among the operations in flight of a set and frontend
  bool unnamed = false;         // the name is only a number; unnamed operations are matched by order
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  WireFormat wire = WireFormat::none;  // allreduce of float32: format of the values on the wire
  DeviceKind device = DeviceKind::host;  // where the tensor is; each rank chooses the device index itself
  // Allreduce only among ranks with the same local index, each of which holds a part of its host's reduction.
  bool across_hosts = false;
  int32_t root = 0;             // global rank of the source; broadcast only
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<int64_t> shape;
  // alltoall: rows for each set rank. add_set: the ranks, which alone request it if it has a name. remove_set: the id.
  std::vector<int64_t> splits;
  std::string group;            // grouped operations: name of the group, and its size below
  uint32_t group_size = 0;
  // Counts the waits of the submitting program. Operations with different fences are never fused, because the program
  // waited for the first before it submitted the second. The lower kWeakFenceBits count completion callbacks: later
  // submissions may or may not depend on these, and where they fall between operations varies from step to step. Not
  // part of the signature.
  uint64_t fence = 0;

  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * size_of(dtype); }
  // True if everything that must repeat from step to step for a schedule to hold is equal: all but the number of an
  // unnamed operation.
  bool same_signature(const Request& other) const;
  uint64_t signature_hash() const;
};

// Response to all ranks: the next operation to execute, possibly of several fused tensors, or an error.
struct Response {
  Kind kind = Kind::allreduce;
  uint32_t set = 0;
  uint8_t frontend = 0;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  WireFormat wire = WireFormat::none;
  DeviceKind device = DeviceKind::host;
  bool across_hosts = false;
  bool partial = false;  // a rank of the set has joined and contributes nothing
  int32_t root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::string> names;               // one name, or several if fused
  std::vector<std::vector<int64_t>> shapes;  // parallel to `names`; a rank that has joined learns the sizes from here
  // allgather: first dimensions, by name, then by set rank. alltoall: splits, row-major by sender. join: the last rank.
  // add_set: id, generation and ranks. remove_set: 1 if removed else 0, and the id.
  std::vector<int64_t> sizes;
  Status error;  // if not ok, every rank fails these operations with it
  std::string payload;  // adopt_schedule: the encoded schedule
};

// Return a request with the fields that the response fixes: all but names, shapes and splits.
Request request_like(const Response& response);

// Return a key that is unique in all sets and frontends; a name is unique only in one set and frontend.
inline std::string key_of(uint32_t set, uint8_t frontend, const std::string& name) {
  return std::to_string(set) + (frontend == 0 ? "/" : '.' + std::to_string(frontend) + '/') + name;
}
inline std::string key_of(const Request& q) { return key_of(q.set, q.frontend, q.name); }
// Return the number of a stream. Unnamed operations are numbered, and matched by order, within a stream. Ascending by
// set, then frontend.
constexpr uint64_t stream_of(uint32_t set, uint8_t frontend, Kind kind) {
  return static_cast<uint64_t>(set) << 16 | static_cast<uint64_t>(frontend) << 8 | static_cast<uint64_t>(kind);
}

// Return a shape for messages: "[2, 3]".
std::string shape_string(const std::vector<int64_t>& shape);

void encode(const std::vector<Request>& requests, std::string* out);
void encode(const std::vector<Response>& responses, std::string* out);
// Decode; return false if encode() cannot have written these bytes.
bool decode(const char** at, const char* end, std::vector<Request>* out);
bool decode(const char** at, const char* end, std::vector<Response>* out);

}  // namespace hvd
