#include "nccl/library.h"

#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <string_view>

namespace hvd::nccl {
namespace {

// Table of NCCL's functions: X(member, name, required).
#define HVD_NCCL_FUNCTIONS(X)                                   \
  X(get_version, "ncclGetVersion", true)                        \
  X(get_unique_id, "ncclGetUniqueId", true)                     \
  X(comm_init_rank_config, "ncclCommInitRankConfig", true)      \
  X(comm_finalize, "ncclCommFinalize", true)                    \
  X(comm_destroy, "ncclCommDestroy", true)                      \
  X(comm_abort, "ncclCommAbort", true)                          \
  X(comm_get_async_error, "ncclCommGetAsyncError", true)        \
  X(get_error_string, "ncclGetErrorString", true)               \
  X(get_last_error, "ncclGetLastError", true)                   \
  X(group_start, "ncclGroupStart", true)                        \
  X(group_end, "ncclGroupEnd", true)                            \
  X(all_reduce, "ncclAllReduce", true)                          \
  X(reduce, "ncclReduce", true)                                 \
  X(broadcast, "ncclBroadcast", true)                           \
  X(all_gather, "ncclAllGather", true)                          \
  X(reduce_scatter, "ncclReduceScatter", true)                  \
  X(send, "ncclSend", true)                                     \
  X(recv, "ncclRecv", true)                                     \
  X(red_op_create_premul_sum, "ncclRedOpCreatePreMulSum", true) \
  X(red_op_destroy, "ncclRedOpDestroy", true)                   \
  X(comm_split, "ncclCommSplit", false)                         \
  X(comm_register, "ncclCommRegister", false)                   \
  X(comm_deregister, "ncclCommDeregister", false)               \
  X(comm_shrink, "ncclCommShrink", false)                       \
  X(comm_revoke, "ncclCommRevoke", false)

#define HVD_NCCL_SYMBOL(member, name, required) Symbol{name, required},
constexpr Symbol kSymbols[] = {HVD_NCCL_FUNCTIONS(HVD_NCCL_SYMBOL)};
#undef HVD_NCCL_SYMBOL

// Return the path of the library that contains `function`.
std::string path_of(void* function, const std::string& asked) {
  Dl_info info{};
  return ::dladdr(function, &info) != 0 && info.dli_fname ? info.dli_fname : asked;
}

// Fill the table. Return why the library cannot be used, or "" if it can. Check the version first: an old library can
// lack many names, and its version explains the failure better.
std::string fill(void* handle, const std::string& asked, Library* l) {
  void* ask = ::dlsym(handle, "ncclGetVersion");
  if (!ask) return asked + " has no ncclGetVersion, so it is not NCCL";
  l->path = path_of(ask, asked);
  l->get_version = reinterpret_cast<Result (*)(int*)>(ask);
  if (const Result r = l->get_version(&l->version); r != kSuccess)
    return l->path + " does not report its version (error " + std::to_string(r) + ")";
  if (l->version < kOldestVersion) {
    return l->path + " is NCCL " + version_text(l->version) + ", but " + version_text(kOldestVersion) + " or later is needed";
  }
  const char* missing = nullptr;
#define HVD_NCCL_FIND(member, name, required)                               \
  l->member = reinterpret_cast<decltype(l->member)>(::dlsym(handle, name)); \
  if (required && !l->member && !missing) missing = name;
  HVD_NCCL_FUNCTIONS(HVD_NCCL_FIND)
#undef HVD_NCCL_FIND
  if (missing) return l->path + " (NCCL " + version_text(l->version) + ") has no " + missing;
  return {};
}

// Never unload the library, because threads may use it even during the exit of the process.
const Library* keep(std::unique_ptr<Library> library) {
  static auto* const mutex = new std::mutex;
  static auto* const all = new std::vector<std::unique_ptr<Library>>;
  std::lock_guard lock(*mutex);
  return all->emplace_back(std::move(library)).get();
}

// Open a library. Its handle is never closed, because NCCL's threads may still be running the library's code.
const Library* try_one(const std::string& name, int flags, std::string* reasons) {
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  std::string reason;
  if (handle) {
    auto library = std::make_unique<Library>();
    library->loaded_before = (flags & RTLD_NOLOAD) != 0;
    reason = fill(handle, name, library.get());
    if (reason.empty()) return keep(std::move(library));
  } else if ((flags & RTLD_NOLOAD) == 0) {
    const char* detail = ::dlerror();
    reason = detail ? detail : name + " cannot be loaded";
  }
  if (!reason.empty() && reasons->find(reason) == std::string::npos) *reasons += (reasons->empty() ? "" : "; ") + reason;
  return nullptr;
}

}  // namespace

std::span<const Symbol> symbols() { return kSymbols; }

std::string version_text(int version) {
  // Up to NCCL 2.8, the version number was 1000 * major + 100 * minor + patch.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int rest = version >= 10000 ? version % 10000 : version % 1000;
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." + std::to_string(rest % 100);
}

Found find(const Search& search) {
  std::string reasons;
  if (!search.chosen.empty()) {
    // If the process has already loaded this file, dlopen() returns the loaded library.
    if (const Library* l = try_one(search.chosen, 0, &reasons)) return {l, {}};
    return {nullptr, reasons};
  }
  if (const Library* l = try_one("libnccl.so.2", RTLD_NOLOAD, &reasons)) return {l, {}};
  for (const std::string& candidate : search.candidates) {
    if (const Library* l = try_one(candidate, 0, &reasons)) return {l, {}};
  }
  if (reasons.empty()) reasons = "NCCL is not loaded in this process, and no path to it is known";
  return {nullptr, reasons};
}

Status status_of(const Library& library, Result result, const char* what, Handle handle) {
  if (result == kSuccess || result == kInProgress) return {};
  const char* last = library.get_last_error(handle);
  const char* name = library.get_error_string(result);
  std::string text = std::string(what) + " failed with NCCL error " + std::to_string(result);
  if (name && *name) text += std::string(" (") + name + ")";
  if (last && *last) {
    std::string_view detail = last;
    while (!detail.empty() && (detail.back() == '\n' || detail.back() == ' ')) detail.remove_suffix(1);
    if (!detail.empty()) text += ": " + std::string(detail);
  }
  const Code code = result == kRemote ? Code::peer_lost : result == kTimeout ? Code::timeout : Code::internal;
  return {code, std::move(text)};
}

Status make_id(const Library& library, UniqueId* id) { return status_of(library, library.get_unique_id(id), "ncclGetUniqueId", nullptr); }

}  // namespace hvd::nccl
