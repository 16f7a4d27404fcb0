// C function table through which native libraries of other frontends (TensorFlow, XLA) use the engine, so that they are
// neither linked nor compiled with the Python module. horovod._core.frontend_api() returns its address. Calls use the
// engine that currently runs in this process, between horovod.init() and horovod.shutdown(). A request is refused
// unless its frontend has called init() too.
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {

// Both structures begin with their size and only grow at the end. A library refuses a table of another version, or one
// with fewer bytes than the library knows. Fields beyond the size of a request count as zero.
#define HVD_FRONTEND_API_VERSION 2

// The codes are those of src/horovod/_core.pyi: KIND_* for kinds, src/horovod/common/dtypes.py for dtypes, hvd.Average
// to hvd.Product for op, and WIRE_* for wire.
typedef struct HvdRequest {
  uint32_t bytes;           // Set to sizeof(HvdRequest).
  int32_t kind;             // KIND_* for one operation, or HVD_KIND_JOIN.
  int32_t frontend;             // Code of the frontend; each has separate operation names (src/horovod/common/frontends.py).
  const char* name;         // Name of the operation; if it is "" or null, the operation is matched by order.
  const void* in;           // Owned by the caller; must live until the operation is done.
  void* out;                // Ignored for allgather and alltoall; see HvdResult.output.
  const int64_t* shape;     // Shape of the input.
  int32_t dimensions;
  int32_t dtype;
  int32_t op;
  int32_t root;             // global rank of the source; only for broadcasts
  double prescale, postscale;
  int32_t process_set;
  int32_t wire;
  const int64_t* splits;    // rows for each set rank, only for alltoall; splits_count 0 means equal parts
  int32_t splits_count;
  int32_t group_size;       // number of group members; 0 means no group
  const char* group;
  int32_t device_kind;      // kind of memory that holds `in` and `out` (DEVICE_*); 0 is host memory
} HvdRequest;
#define HVD_KIND_ALLREDUCE 0
#define HVD_KIND_ALLGATHER 1
#define HVD_KIND_ALLTOALL 3
#define HVD_KIND_BARRIER 5
#define HVD_KIND_JOIN 6
#define HVD_OP_MAX 4

enum HvdCode {
  HVD_OK = 0,
  HVD_INVALID_ARGUMENT = 1,  // Refused at call time.
  HVD_MISMATCH = 2,          // The ranks disagree about the operation.
  HVD_SHUTDOWN = 3,
  HVD_PEER_LOST = 4,
  HVD_TIMEOUT = 5,
  HVD_INTERNAL = 6,
  HVD_NOT_INITIALIZED = 7,   // the frontend has never called horovod.init(); if it has left the job, the code is HVD_SHUTDOWN
};

typedef struct HvdResult {
  int32_t code;             // A value of HvdCode.
  const char* message;      // Error text; "" if the code is HVD_OK.
  const int64_t* sizes;     // For allgather the first dimensions by set rank, for alltoall the received splits, for join the last rank.
  size_t sizes_count;
  const void* output;       // result of an allgather or alltoall, valid during the callback or until release()
  size_t output_bytes;
} HvdResult;

// Called once when the operation is done, on any thread, possibly before submit() has returned. It must not wait for
// another operation.
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
  HVD_JOB = 7,  // a number that identifies the job, and each epoch of it, within this process; any frontend may ask
};
#define HVD_UNKNOWN_PROCESS_SET (-3)

typedef struct HvdFrontendApi {
  uint32_t version;
  uint32_t bytes;

  // For callers that do not wait: submit an operation and return. If the result is HVD_OK, `done` will be called.
  // Otherwise it will not, and `message` receives the reason, cut to `message_bytes`.
  int32_t (*submit)(const HvdRequest* request, HvdDone done, void* context, char* message, size_t message_bytes);

  // For callers that wait: start() submits an operation, and wait() drives the engine until the operation is done
  // (returns 1) or `seconds` have passed (returns 0). Do not free the operation's memory before it is done. Then call
  // release().
  int32_t (*start)(const HvdRequest* request, HvdWork** work, char* message, size_t message_bytes);
  int32_t (*wait)(HvdWork* work, double seconds);
  void (*result)(HvdWork* work, HvdResult* result);  // call it only once the operation is done; the result is valid until release()
  void (*release)(HvdWork* work);

  // Answer an HvdQuestion. Only HVD_SET_* questions use `process_set`. Returns -1 if the frontend has not called init,
  // HVD_UNKNOWN_PROCESS_SET for an unknown set, and -2 for HVD_SET_RANK if this rank is not a member.
  int32_t (*ask)(int32_t frontend, int32_t question, int32_t process_set);

  // Write a name for an unnamed group to `name`, for the requests of its members. Groups of one kind are matched by the
  // order in which the ranks of a set call this. The name is empty if the frontend is not in the job.
  void (*name_group)(int32_t frontend, int32_t kind, int32_t process_set, char* name, size_t name_bytes);
} HvdFrontendApi;

}  // extern "C"
