// Table of NCCL functions, loaded from a library at run time. No code here links with NCCL or includes its header, so
// one build serves machines with and without NCCL. Types, numbers and layouts are those of nccl.h 2.18, which later
// versions keep.
#pragma once
#include <climits>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace hvd::nccl {

using Result = int;
inline constexpr Result kSuccess = 0, kUnhandledCuda = 1, kSystem = 2, kInternal = 3, kInvalidArgument = 4, kInvalidUsage = 5, kRemote = 6,
                        kInProgress = 7, kTimeout = 8;

// Handle of an NCCL communicator (ncclComm_t).
using Handle = void*;
// CUDA stream (cudaStream_t, which is a CUstream).
using Stream = void*;
enum class Type : int { int8 = 0, uint8, int32, uint32, int64, uint64, float16, float32, float64, bfloat16, float8_e4m3, float8_e5m2 };
// Reduction operations. Values of 5 and above were created by red_op_create_premul_sum.
enum class Op : int { sum = 0, product = 1, max = 2, min = 3, average = 4 };
inline constexpr int kScalarOnHost = 1;

// Id for creating one communicator, passed by value. In the process that created the id, a thread of NCCL listens for
// connections of the communicator's ranks.
struct UniqueId {
  char bytes[128];
};

// NCCL's configuration structure. It works with all versions: NCCL copies min(size, its own size) bytes and uses defaults for fields newer
// than `version`.
struct Config {
  size_t size = 48;
  uint32_t magic = 0xcafebeef;
  uint32_t version = 21800;
  int blocking = 1;
  // Fields set to INT_MIN or null make NCCL use its default.
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  // This field is unused padding in NCCL versions before 2.26.
  int traffic_class = INT_MIN;
};
static_assert(sizeof(UniqueId) == 128 && sizeof(Config) == 48 && offsetof(Config, net_name) == 32 && offsetof(Config, traffic_class) == 44);

struct Library {
  Result (*get_version)(int*) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*comm_init_rank_config)(Handle*, int size, UniqueId, int rank, Config*) = nullptr;
  Result (*comm_finalize)(Handle) = nullptr;
  Result (*comm_destroy)(Handle) = nullptr;
  Result (*comm_abort)(Handle) = nullptr;
  Result (*comm_get_async_error)(Handle, Result*) = nullptr;
  const char* (*get_error_string)(Result) = nullptr;
  const char* (*get_last_error)(Handle) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*all_reduce)(const void* in, void* out, size_t count, Type, int op, Handle, Stream) = nullptr;
  Result (*reduce)(const void* in, void* out, size_t count, Type, int op, int root, Handle, Stream) = nullptr;
  Result (*broadcast)(const void* in, void* out, size_t count, Type, int root, Handle, Stream) = nullptr;
  Result (*all_gather)(const void* in, void* out, size_t count_of_each, Type, Handle, Stream) = nullptr;
  Result (*reduce_scatter)(const void* in, void* out, size_t count_of_each, Type, int op, Handle, Stream) = nullptr;
  Result (*send)(const void* in, size_t count, Type, int peer, Handle, Stream) = nullptr;
  Result (*recv)(void* out, size_t count, Type, int peer, Handle, Stream) = nullptr;
  Result (*red_op_create_premul_sum)(int* op, void* scalar, Type, int residence, Handle) = nullptr;
  Result (*red_op_destroy)(int op, Handle) = nullptr;
  // Functions that NCCL 2.18.1, 2.19, 2.27 and 2.28.7 added. Null if the library lacks the function.
  Result (*comm_split)(Handle, int color, int key, Handle*, Config*) = nullptr;
  Result (*comm_register)(Handle, void* buffer, size_t bytes, void** handle) = nullptr;
  Result (*comm_deregister)(Handle, void* handle) = nullptr;
  Result (*comm_shrink)(Handle, int* without, int count, Handle*, Config*, int flags) = nullptr;
  Result (*comm_revoke)(Handle, int flags) = nullptr;

  // NCCL version, for example 22809 for 2.28.9. All ranks of a communicator must have the same version.
  int version = 0;
  // Path of the library from which the functions were loaded.
  std::string path;
  // True if the library was already loaded, most likely by a framework that uses it.
  bool loaded_before = false;

  bool aborts_in_groups() const { return version >= 22200; }
};

inline constexpr int kOldestVersion = 21800;
// Convert a version number to text, for example 22809 to "2.28.9".
std::string version_text(int version);

struct Search {
  // Library named by HOROVOD_NCCL_LIBRARY. If it is not empty, no other library is tried.
  std::string chosen;
  // Paths or loader names to try if no library is loaded yet.
  std::vector<std::string> candidates;
};
struct Found {
  // The library that was found, or null. It is never freed, because threads might use it when the process exits.
  const Library* library = nullptr;
  // Reason why no library was found, as one sentence.
  std::string why_not;
};
// Find and load a library, without calling it. Do this at the first device operation, never at import: otherwise, a
// framework imported later would use the library loaded here, even if its own is newer. Each call searches again, so
// keep the result.
Found find(const Search& search);

// Return all names in the table, required or not. Tests check them against a real library.
struct Symbol {
  const char* name;
  bool required;
};
std::span<const Symbol> symbols();

// Convert a call's result to a Status. This reads the library's last error, which is shared by the whole process, so
// call it on the failing thread before any other call. `what` is the function that failed, and `handle` can be null.
// Success and "in progress" give ok.
Status status_of(const Library& library, Result result, const char* what, Handle handle);

// Create an id for one communicator. One of its ranks calls this and sends the id to the others. The device's context
// must be current on the thread.
Status make_id(const Library& library, UniqueId* id);

}  // namespace hvd::nccl
