// Table of MPI functions, loaded from a library at run time. No code here links with MPI or includes its header, so one
// build works with any MPI and on machines without MPI. Arguments follow the MPI standard, except that every handle is
// a Handle (see abi.h).
#pragma once
#include <string>

#include "base/status.h"
#include "mpi/abi.h"

namespace hvd::mpi {

using DeleteAttribute = int (*)(Handle comm, int key, void* value, void* extra);
using CopyAttribute = int (*)(Handle comm, int key, void* extra, void* in, void* out, int* flag);

struct Library {
  int (*initialized)(int*) = nullptr;
  int (*finalized)(int*) = nullptr;
  int (*init_thread)(int* argc, char*** argv, int required, int* provided) = nullptr;
  int (*finalize)() = nullptr;
  int (*query_thread)(int*) = nullptr;
  int (*get_library_version)(char*, int*) = nullptr;
  int (*error_string)(int code, char*, int*) = nullptr;
  int (*comm_rank)(Handle, int*) = nullptr;
  int (*comm_size)(Handle, int*) = nullptr;
  int (*comm_group)(Handle, Handle* group) = nullptr;
  int (*comm_get_parent)(Handle*) = nullptr;
  int (*comm_create_group)(Handle, Handle group, int tag, Handle* made) = nullptr;
  int (*comm_free)(Handle*) = nullptr;
  int (*comm_set_errhandler)(Handle, Handle) = nullptr;
  int (*comm_create_keyval)(CopyAttribute, DeleteAttribute, int* key, void* extra) = nullptr;
  int (*comm_set_attr)(Handle, int key, void* value) = nullptr;
  int (*group_incl)(Handle, int count, const int* ranks, Handle* made) = nullptr;
  int (*group_free)(Handle*) = nullptr;
  int (*test)(Handle* request, int* done, void* status) = nullptr;
  int (*ibarrier)(Handle, Handle* request) = nullptr;
  int (*ibcast)(void*, int count, Handle type, int root, Handle, Handle* request) = nullptr;
  int (*iallreduce)(const void*, void*, int count, Handle type, Handle op, Handle, Handle* request) = nullptr;
  int (*iallgather)(const void*, int count, Handle type, void*, int count_of_each, Handle, Handle, Handle* request) = nullptr;
  int (*ialltoallv)(const void*, const int* counts, const int* places, Handle type, void*, const int* their_counts, const int* their_places,
                    Handle, Handle, Handle* request) = nullptr;

  Abi abi;
  std::string path;
  // Short text with the name and version of the library.
  std::string version;
  // True if the library is Open MPI or a derivative.
  bool open_mpi = false;

  // Return the error text for the result of a call, or "" for success (0). `what` is the name of the function.
  std::string error(int result, const char* what) const;
};

// Load the library at `path`, or return it if it is already loaded. It is never unloaded, because it may have started
// threads and installed signal handlers. If the file cannot be loaded, is not an MPI library, or is of an unknown
// family, the error is invalid_argument and names the file.
Status load(const std::string& path, const Library** out);

}  // namespace hvd::mpi
