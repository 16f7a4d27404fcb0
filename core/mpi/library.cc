#include "mpi/library.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace hvd::mpi {
namespace {

// Table of MPI's functions: X(member, name). All are required.
#define HVD_MPI_FUNCTIONS(X)                        \
  X(initialized, "MPI_Initialized")                 \
  X(finalized, "MPI_Finalized")                     \
  X(init_thread, "MPI_Init_thread")                 \
  X(finalize, "MPI_Finalize")                       \
  X(query_thread, "MPI_Query_thread")               \
  X(get_library_version, "MPI_Get_library_version") \
  X(error_string, "MPI_Error_string")               \
  X(comm_rank, "MPI_Comm_rank")                     \
  X(comm_size, "MPI_Comm_size")                     \
  X(comm_group, "MPI_Comm_group")                   \
  X(comm_get_parent, "MPI_Comm_get_parent")         \
  X(comm_create_group, "MPI_Comm_create_group")     \
  X(comm_free, "MPI_Comm_free")                     \
  X(comm_set_errhandler, "MPI_Comm_set_errhandler") \
  X(comm_create_keyval, "MPI_Comm_create_keyval")   \
  X(comm_set_attr, "MPI_Comm_set_attr")             \
  X(group_incl, "MPI_Group_incl")                   \
  X(group_free, "MPI_Group_free")                   \
  X(test, "MPI_Test")                               \
  X(ibarrier, "MPI_Ibarrier")                       \
  X(ibcast, "MPI_Ibcast")                           \
  X(iallreduce, "MPI_Iallreduce")                   \
  X(iallgather, "MPI_Iallgather")                   \
  X(ialltoallv, "MPI_Ialltoallv")

Status refuse(const std::string& path, const std::string& why) { return {Code::invalid_argument, path + " " + why}; }

Status fill(void* handle, const std::string& asked, Library* l) {
  const Lookup lookup = [handle](const char* name) { return ::dlsym(handle, name); };
  void* ask = lookup("MPI_Get_library_version");
  if (!ask) return refuse(asked, "has no MPI_Get_library_version, so it is not an MPI of version 3 or later");
  Dl_info info{};
  l->path = ::dladdr(ask, &info) != 0 && info.dli_fname ? info.dli_fname : asked;
  const char* missing = nullptr;
#define HVD_MPI_FIND(member, name)                                 \
  l->member = reinterpret_cast<decltype(l->member)>(lookup(name)); \
  if (!l->member && !missing) missing = name;
  HVD_MPI_FUNCTIONS(HVD_MPI_FIND)
#undef HVD_MPI_FIND
  if (missing) return refuse(l->path, std::string("has no ") + missing);
  const Family family = family_of(l->path, lookup);
  HVD_RETURN_IF_ERROR(make_abi(family, lookup, &l->abi).with(l->path));
  std::vector<char> text(kVersionBytes + 1);
  int length = 0;
  if (l->get_library_version(text.data(), &length) != 0) return refuse(l->path, "does not report its version");
  HVD_RETURN_IF_ERROR(check_version(family, l->path, text.data()));
  l->version = short_version(text.data());
  l->open_mpi = of_open_mpi(text.data());
  return {};
}

}  // namespace

std::string Library::error(int result, const char* what) const {
  if (result == 0) return {};
  char text[kErrorBytes + 1] = {};
  int length = 0;
  std::string message = std::string(what) + " failed with error " + std::to_string(result) + " of " + version;
  if (error_string(result, text, &length) == 0 && text[0]) message += ": " + std::string(text);
  return message;
}

Status load(const std::string& path, const Library** out) {
  static auto* const mutex = new std::mutex;
  static auto* const loaded = new std::map<void*, std::unique_ptr<Library>>;
  std::lock_guard lock(*mutex);
  // Keep the symbols local, because global symbols can conflict. Open MPI is opened again with global symbols below,
  // because the plugins of Open MPI 4 need them.
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* message = ::dlerror();
    return Status(Code::invalid_argument, message ? message : path + " cannot be loaded");
  }
  auto& library = (*loaded)[handle];
  if (!library) {
    auto made = std::make_unique<Library>();
    if (Status s = fill(handle, path, made.get()); !s.ok()) {
      loaded->erase(handle);
      return s;
    }
    if (made->abi.family == Family::open_mpi) (void)::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    library = std::move(made);
  }
  *out = library.get();
  return {};
}

}  // namespace hvd::mpi
