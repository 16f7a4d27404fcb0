// C function table through which the native libraries of other frontends (TensorFlow, XLA) use the engine. They are
// neither linked nor compiled with the Python module. horovod._core.frontend_api() returns the table's address. Calls
// use the engine that is currently running in this process, between horovod.init() and horovod.shutdown(). A request is
// rejected unless its frontend has also called init().
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {

// Both structures begin with their size, and new fields are only added at the end. A library rejects a function table
// that has another version or fewer bytes than the library expects. Fields beyond the size of a request count as zero.
#define HVD_FRONTEND_API_VERSION 2

// Kinds and wire formats use the codes KIND_* and WIRE_* of src/horovod/_core.pyi. Dtypes use the codes of
// src/horovod/common/dtypes.py. `op` uses the values of hvd.Average through hvd.Product.
typedef struct HvdRequest {
  // Size of this structure: sizeof(HvdRequest).
  uint32_t bytes;
  // Kind of operation (KIND_*), or HVD_KIND_JOIN.
  int32_t kind;
  // Numeric id of the frontend (src/horovod/common/frontends.py). Each frontend has its own namespace for operation names.
  int32_t frontend;
  // Name of the operation. If it is "" or null, ranks match the operation by order.
  const char* name;
  // Input memory, owned by the caller. It must live until the operation is done.
  const void* in;
  // Output memory. Ignored for allgather and alltoall; see HvdResult.output.
  void* out;
  // Shape of the input tensor.
  const int64_t* shape;
  int32_t dimensions;
  int32_t dtype;
  int32_t op;
  // Global rank of the source. Only used for broadcasts.
  int32_t root;
  double prescale, postscale;
  int32_t process_set;
  int32_t wire;
  // Number of rows to send to each rank of the process set. Only used for alltoall. If splits_count is 0, all ranks get
  // equal parts.
  const int64_t* splits;
  int32_t splits_count;
  // Number of operations in the group, or 0 for no group.
  int32_t group_size;
  const char* group;
  // Kind of memory that holds `in` and `out` (DEVICE_*). 0 is host memory.
  int32_t device_kind;
} HvdRequest;
#define HVD_KIND_ALLREDUCE 0
#define HVD_KIND_ALLGATHER 1
#define HVD_KIND_ALLTOALL 3
#define HVD_KIND_BARRIER 5
#define HVD_KIND_JOIN 6
#define HVD_OP_MAX 4

enum HvdCode {
  HVD_OK = 0,
  // The request was rejected, for example because of an invalid argument.
  HVD_INVALID_ARGUMENT = 1,
  // The ranks disagree about the operation.
  HVD_MISMATCH = 2,
  HVD_SHUTDOWN = 3,
  HVD_PEER_LOST = 4,
  HVD_TIMEOUT = 5,
  HVD_INTERNAL = 6,
  // The frontend has never called horovod.init(). HVD_SHUTDOWN is used instead if it has left the job.
  HVD_NOT_INITIALIZED = 7,
};

typedef struct HvdResult {
  // Result code (HvdCode).
  int32_t code;
  // Text of the error, or "" if the code is HVD_OK.
  const char* message;
  // Sizes of the result. For an allgather: the first dimension of the input on each rank of the process set. For an
  // alltoall: the received splits. For a join: the last rank.
  const int64_t* sizes;
  size_t sizes_count;
  // Output of an allgather or alltoall, valid during the callback or until release().
  const void* output;
  size_t output_bytes;
} HvdResult;

// Callback for the completion of an operation. It is called once, on any thread, possibly before submit() has returned.
// It must not wait for another operation.
typedef void (*HvdDone)(void* context, const HvdResult* result);

typedef struct HvdWork HvdWork;

enum HvdQuestion {
  HVD_RANK = 0,
  HVD_SIZE = 1,
  HVD_LOCAL_RANK = 2,
  HVD_LOCAL_SIZE = 3,
  HVD_SET_SIZE = 4,
  HVD_SET_INCLUDED = 5,
  HVD_SET_RANK = 6,
  // Number that identifies the job and its current epoch within this process. Any frontend can query it.
  HVD_JOB = 7,
};
#define HVD_UNKNOWN_PROCESS_SET (-3)

typedef struct HvdFrontendApi {
  uint32_t version;
  uint32_t bytes;

  // Submit an operation without waiting for it. HVD_OK means that `done` will be called. Any other code means that it will not; `message`
  // then receives the reason, cut to `message_bytes`.
  int32_t (*submit)(const HvdRequest* request, HvdDone done, void* context, char* message, size_t message_bytes);

  // start() submits an operation, and wait() waits for it: it returns 1 once the operation is done, or 0 after `seconds`. The operation's
  // memory must live until then. Finally, call release().
  int32_t (*start)(const HvdRequest* request, HvdWork** work, char* message, size_t message_bytes);
  int32_t (*wait)(HvdWork* work, double seconds);
  // Get the result. Call this only once the operation is done. The result is valid until release().
  void (*result)(HvdWork* work, HvdResult* result);
  void (*release)(HvdWork* work);

  // Return the answer to an HvdQuestion. Only HVD_SET_* questions use `process_set`. Return -1 if the frontend has not called
  // init, HVD_UNKNOWN_PROCESS_SET for an unknown set, and -2 for HVD_SET_RANK if this rank is not in the set.
  int32_t (*ask)(int32_t frontend, int32_t question, int32_t process_set);

  // Generate a name for an unnamed group of operations; each request of the group must carry it. Ranks get equal names if they create their
  // groups in the same order. `name` becomes empty if the frontend is not in the job.
  void (*name_group)(int32_t frontend, int32_t kind, int32_t process_set, char* name, size_t name_bytes);
} HvdFrontendApi;

}  // extern "C"
