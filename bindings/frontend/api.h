// C function table through which native libraries of other frontends (TensorFlow, XLA) use the engine, so that they are
// neither linked nor compiled with the Python module. horovod._core.frontend_api() returns its address. Calls use the
// engine that currently runs in this process (between horovod.init() and horovod.shutdown()); a request is refused
// unless its frontend has called init() too.
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {

// Both structures begin with their size and only grow at the end. A library refuses a table of another version, or with
// fewer bytes than it knows; fields beyond a request's size count as zero.
#define HVD_FRONTEND_API_VERSION 2

// Codes as in src/horovod/_core.pyi: kinds (KIND_*), dtypes (src/horovod/common/dtypes.py), op (hvd.Average ... hvd.Product),
// wire (WIRE_*).
typedef struct HvdRequest {
  uint32_t bytes;           // sizeof(HvdRequest).
  int32_t kind;             // KIND_* for one operation, or HVD_KIND_JOIN.
  int32_t frontend;             // The frontend; each has separate operation names (src/horovod/common/frontends.py).
  const char* name;         // Operation name; "" or null: matched by order.
  const void* in;           // Owned by the caller; must live until the operation is done.
  void* out;                // Ignored for allgather and alltoall, see HvdResult.output.
  const int64_t* shape;     // Shape of the input.
  int32_t dimensions;
  int32_t dtype;
  int32_t op;
  int32_t root;             // global rank of the source; broadcast only
  double prescale, postscale;
  int32_t process_set;
  int32_t wire;
  const int64_t* splits;    // rows for each set rank; alltoall only; splits_count 0: equal parts
  int32_t splits_count;
  int32_t group_size;       // number of group members; 0: no group
  const char* group;
  int32_t device_kind;      // where `in` and `out` are (DEVICE_*); 0: host memory
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
  HVD_MISMATCH = 2,          // Ranks disagree about the operation.
  HVD_SHUTDOWN = 3,
  HVD_PEER_LOST = 4,
  HVD_TIMEOUT = 5,
  HVD_INTERNAL = 6,
  HVD_NOT_INITIALIZED = 7,   // the frontend has never called horovod.init(); HVD_SHUTDOWN: it has left
};

typedef struct HvdResult {
  int32_t code;             // HvdCode.
  const char* message;      // Error text; "" when HVD_OK.
  const int64_t* sizes;     // allgather: first dimensions by set rank; alltoall: received splits; join: the last rank.
  size_t sizes_count;
  const void* output;       // allgather, alltoall: the result; valid during the callback, or until release()
  size_t output_bytes;
} HvdResult;

// Called once, on any thread, possibly before submit() has returned. It must not wait for another operation.
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
  HVD_JOB = 7,  // a number that differs for each job, and each epoch of a job, in this process; any frontend may ask
};
#define HVD_UNKNOWN_PROCESS_SET (-3)

typedef struct HvdFrontendApi {
  uint32_t version;
  uint32_t bytes;

  // For callers that do not wait: submit an operation and return. After HVD_OK `done` will be called. Otherwise it will
  // not, and `message` has the reason (truncated to `message_bytes`).
  int32_t (*submit)(const HvdRequest* request, HvdDone done, void* context, char* message, size_t message_bytes);

  // For callers that wait: start() submits an operation; wait() drives the engine until the operation is done (returns
  // 1) or `seconds` have passed (returns 0). Wait until it is done before freeing its memory, then call release().
  int32_t (*start)(const HvdRequest* request, HvdWork** work, char* message, size_t message_bytes);
  int32_t (*wait)(HvdWork* work, double seconds);
  void (*result)(HvdWork* work, HvdResult* result);  // only once done; valid until release()
  void (*release)(HvdWork* work);

  // Answer an HvdQuestion; -1: the frontend has not called init; HVD_SET_*: HVD_UNKNOWN_PROCESS_SET. `process_set` is
  // used by HVD_SET_* only; HVD_SET_RANK: -2 if this rank is not a member.
  int32_t (*ask)(int32_t frontend, int32_t question, int32_t process_set);

  // Return a name for an unnamed group, to be set in its members' requests. Groups of a kind are matched by the order
  // in which the ranks of a set call this. "" if the frontend is not in the job.
  void (*name_group)(int32_t frontend, int32_t kind, int32_t process_set, char* name, size_t name_bytes);
} HvdFrontendApi;

}  // extern "C"
