#include "agree/check_response.h"

#include <algorithm>
#include <string>

#include "base/limits.h"

namespace hvd {
namespace {

// Maximum size of a process's address space in bytes.
constexpr uint64_t kMaxBytes = uint64_t{1} << 47;

bool reduces(Kind kind) { return kind == Kind::allreduce || kind == Kind::reducescatter; }

// Return the number of bytes in one row: the product of all dimensions except the first. Saturates on overflow.
uint64_t row_bytes(const std::vector<int64_t>& shape, DType dtype) {
  uint64_t bytes = size_of(dtype);
  for (size_t i = 1; i < shape.size(); ++i) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(shape[i]), &bytes)) return kMaxBytes;
  }
  return bytes;
}

// True if no row count is negative and the total size does not exceed the address space.
bool possible(const int64_t* rows, size_t count, size_t stride, uint64_t row) {
  uint64_t total = 0, bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (rows[i * stride] < 0 || __builtin_add_overflow(total, static_cast<uint64_t>(rows[i * stride]), &total)) return false;
  }
  return total == 0 || (!__builtin_mul_overflow(total, row, &bytes) && bytes <= kMaxBytes);
}

const char* disagreement(const Response& r, const std::vector<int64_t>& shape, const Request& q) {
  if (r.kind != q.kind) return "operation";
  if (r.dtype != q.dtype) return "dtype";
  if (r.device != q.device) return "device";
  if (reduces(r.kind) && (r.op != q.op || r.wire != q.wire || r.across_hosts != q.across_hosts)) return "reduction";
  if (r.kind == Kind::broadcast && r.root != q.root) return "root rank";
  const size_t first = ragged(r.kind) ? 1 : 0;
  if (shape.size() != q.shape.size() || shape.size() < first || !std::equal(shape.begin() + first, shape.end(), q.shape.begin() + first))
    return "shape";
  if (r.kind == Kind::reducescatter && shape.empty()) return "shape";
  return nullptr;
}

bool good_sizes(const Response& r, size_t i, const Request& q, size_t size, size_t rank) {
  const uint64_t row = row_bytes(r.shapes[i], r.dtype);
  if (r.kind == Kind::allgather) {
    if (r.sizes.size() != r.names.size() * size) return false;
    const int64_t* rows = r.sizes.data() + i * size;
    return rows[rank] == q.shape[0] && possible(rows, size, 1, row);
  }
  if (r.kind == Kind::alltoall) {
    if (r.sizes.size() != size * size || q.splits.size() != size) return false;
    const int64_t* own = r.sizes.data() + rank * size;
    return std::equal(q.splits.begin(), q.splits.end(), own) && possible(r.sizes.data() + rank, size, size, row);
  }
  return true;
}

Status refused(const Response& r, const std::string& why) {
  const std::string name = r.names.empty() ? "" : " '" + r.names.front() + "'";
  return Status(Code::internal, "rank 0's decision about " + std::string(name_of(r.kind)) + name + " is invalid: " + why);
}

}  // namespace

Status check_response(const Response& r, const std::vector<const Request*>& requests, int size, int rank) {
  if (r.kind > Kind::barrier) return refused(r, "it is not an operation on tensors");
  if (r.names.empty() || r.names.size() != r.shapes.size() || r.names.size() != requests.size()) return refused(r, "it has no names");
  if (r.names.size() > 1 && !joinable(r.kind)) return refused(r, "this operation cannot be fused");
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i]) continue;
    if (const char* what = disagreement(r, r.shapes[i], *requests[i])) {
      return refused(r, std::string("its ") + what + " differs from this rank's (shape " + shape_string(r.shapes[i]) + ", here " +
                            shape_string(requests[i]->shape) + ")");
    }
    if (!good_sizes(r, i, *requests[i], static_cast<size_t>(size), static_cast<size_t>(rank)))
      return refused(r, "wrong sizes " + shape_string(r.sizes));
  }
  return {};
}

Status check_set_change(const Response& r, int world) {
  const std::vector<int64_t>& s = r.sizes;
  if (s.size() < 2) return refused(r, "wrong sizes " + shape_string(s));
  const int64_t id = r.kind == Kind::add_set ? s[0] : s[1];
  bool good = id >= 0 && id < kMaxProcessSets;
  if (r.kind == Kind::add_set) {
    good = good && id > 0 && s.size() > 2 && s[2] >= 0 && s.back() < world;
    for (size_t i = 3; i < s.size(); ++i) good = good && s[i - 1] < s[i];
  } else {
    // The sizes of a remove_set response are {removed, id}. The id is valid only if `removed` is 1.
    good = good || s[0] == 0;
    good = good && (s[0] == 0 || id > 0);
  }
  return good ? Status() : refused(r, "wrong sizes " + shape_string(s));
}

}  // namespace hvd
