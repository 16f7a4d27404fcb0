// What ranks say to one another about operations: a Request announces one tensor, a Response tells every rank what to do next.
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
  adopt_schedule = 9,  // responses only
};
const char* name_of(Kind kind);
// True if the first dimension may differ between ranks.
constexpr bool ragged(Kind kind) { return kind == Kind::allgather || kind == Kind::alltoall; }
// May one response be about several operations of this kind?
constexpr bool joinable(Kind kind) { return kind == Kind::allreduce || kind == Kind::allgather || kind == Kind::reducescatter; }
inline constexpr int kWeakFenceBits = 20;
// What an operation without a name is called once it is announced; its number follows.
std::string unnamed_prefix(Kind kind);
inline constexpr const char* kJoinName = "join.noname";

struct Request {
  Kind kind = Kind::allreduce;
  uint32_t set = 0;
  uint8_t face = 0;             // who asks: frameworks of one process, each with names, groups, numbers and joins of its own
  std::string name;             // full name on the wire; unique among what is in flight in a set for a face
  bool unnamed = false;         // the name is only a number: operations like this match by order
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  WireFormat wire = WireFormat::none;  // allreduce of float32: what its values are while they travel
  DeviceKind device = DeviceKind::host;  // where the tensor is; which of several is each rank's own business
  // Allreduce: only among ranks with the same place on their hosts, each of which has a part of what its host has reduced already.
  bool across_hosts = false;
  int32_t root = 0;             // broadcast: global rank
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<int64_t> shape;
  std::vector<int64_t> splits;  // alltoall: rows for each set rank; add_set: the ranks; remove_set: the id
  std::string group;            // grouped operations: name of the group, and how many belong to it
  uint32_t group_size = 0;
  // Counts the waits of the submitting program: operations with different fences cannot share a buffer, because the program waited
  // for the first before it submitted the second. The lower kWeakFenceBits count completions that the program was told of without
  // waiting: what it submitted afterwards may depend on them, or not, so where these fall between operations is chance. Not part of
  // the signature.
  uint64_t fence = 0;

  int64_t elements() const;
  size_t bytes() const { return static_cast<size_t>(elements()) * size_of(dtype); }
  // Everything that has to agree from one step to the next for a schedule to hold: all but the number of an unnamed operation.
  bool same_signature(const Request& other) const;
  uint64_t signature_hash() const;
};

struct Response {
  Kind kind = Kind::allreduce;
  uint32_t set = 0;
  uint8_t face = 0;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  WireFormat wire = WireFormat::none;
  DeviceKind device = DeviceKind::host;
  bool across_hosts = false;
  bool partial = false;  // a rank of the set has joined, and contributes nothing
  int32_t root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::string> names;               // one, or several fused ones
  std::vector<std::vector<int64_t>> shapes;     // by name; a rank that has joined learns the sizes from here
  // allgather: first dimensions by name, then set rank. alltoall: splits, row-major by sender. join: the last rank. add_set: id, generation
  // and the ranks. remove_set: 1 or 0, and the id.
  std::vector<int64_t> sizes;
  Status error;  // not ok: every rank fails these names with it
  std::string payload;  // adopt_schedule: the encoded schedule
};

// What a request about which that response is says of its operation: all but names, shapes and splits.
Request request_like(const Response& response);

// Names are unique within a process set and face; this is unique among all.
inline std::string key_of(uint32_t set, uint8_t face, const std::string& name) {
  return std::to_string(set) + (face == 0 ? "/" : '.' + std::to_string(face) + '/') + name;
}
inline std::string key_of(const Request& q) { return key_of(q.set, q.face, q.name); }
// Unnamed operations are numbered, and matched by order, within one of these. Ascending by set, then face.
constexpr uint64_t stream_of(uint32_t set, uint8_t face, Kind kind) {
  return static_cast<uint64_t>(set) << 16 | static_cast<uint64_t>(face) << 8 | static_cast<uint64_t>(kind);
}

std::string shape_string(const std::vector<int64_t>& shape);

void encode(const std::vector<Request>& requests, std::string* out);
void encode(const std::vector<Response>& responses, std::string* out);
// False: the bytes are not what encode() writes.
bool decode(const char** at, const char* end, std::vector<Request>* out);
bool decode(const char** at, const char* end, std::vector<Response>* out);

}  // namespace hvd
