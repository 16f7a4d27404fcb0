// What native libraries of other faces (TensorFlow, XLA) may ask of the engine: a table of C functions, so that they are neither linked
// with the Python module nor compiled together with it. horovod._core.face_api() gives its address.
// The engine is the one that runs in this process at the moment (horovod.init() ... horovod.shutdown()); a request is refused unless its
// face has called init() too.
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {

// Both structures grow at the end only and begin with their size: a library refuses a table of another version, or of fewer bytes than it
// knows, and what a request does not reach to is taken for zero.
#define HVD_FACE_API_VERSION 2

// Numbers as in horovod/_core.pyi: kinds (KIND_*), dtypes (horovod/common/dtypes.py), op (hvd.Average ... hvd.Product), wire (WIRE_*).
typedef struct HvdRequest {
  uint32_t bytes;           // sizeof(HvdRequest)
  int32_t kind;             // for one, HVD_KIND_JOIN
  int32_t face;             // each face of a process has names of its own (horovod/common/faces.py)
  const char* name;         // "" or null: matched by order
  const void* in;           // the memory is the caller's and lives until the operation is done
  void* out;                // allgather, alltoall: ignored, see HvdResult.output
  const int64_t* shape;     // of the input
  int32_t dimensions;
  int32_t dtype;
  int32_t op;
  int32_t root;             // broadcast: global rank
  double prescale, postscale;
  int32_t process_set;
  int32_t wire;
  const int64_t* splits;    // alltoall: rows for each set rank; splits_count 0: equal parts
  int32_t splits_count;
  int32_t group_size;       // 0: no group
  const char* group;
  int32_t device_kind;      // where `in` and `out` are (DEVICE_*); 0: memory that the CPU reads
} HvdRequest;
#define HVD_KIND_ALLREDUCE 0
#define HVD_KIND_ALLGATHER 1
#define HVD_KIND_ALLTOALL 3
#define HVD_KIND_BARRIER 5
#define HVD_KIND_JOIN 6
#define HVD_OP_MAX 4

enum HvdCode {
  HVD_OK = 0,
  HVD_INVALID_ARGUMENT = 1,  // refused at call time
  HVD_MISMATCH = 2,          // ranks disagree
  HVD_SHUTDOWN = 3,
  HVD_PEER_LOST = 4,
  HVD_TIMEOUT = 5,
  HVD_INTERNAL = 6,
  HVD_NOT_INITIALIZED = 7,   // the face has never called horovod.init(); HVD_SHUTDOWN: it has left
};

typedef struct HvdResult {
  int32_t code;             // HvdCode
  const char* message;      // "" when HVD_OK
  const int64_t* sizes;     // allgather: first dimensions by set rank; alltoall: received splits; join: the last rank
  size_t sizes_count;
  const void* output;       // allgather, alltoall: the result; valid during the callback, or until release()
  size_t output_bytes;
} HvdResult;

// Called once, from any thread, perhaps before submit() has returned. It must not wait for another operation.
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
  HVD_JOB = 7,  // of any face: a number that is another one in each job, and each epoch of a job, of this process
};
#define HVD_UNKNOWN_PROCESS_SET (-3)

typedef struct HvdFaceApi {
  uint32_t version;
  uint32_t bytes;

  // For callers that go on: announces an operation and returns. HVD_OK: `done` will be called. Otherwise it will not, and the reason is
  // in `message` (truncated to `message_bytes`).
  int32_t (*submit)(const HvdRequest* request, HvdDone done, void* context, char* message, size_t message_bytes);

  // For callers that wait: start() announces an operation; wait() drives the engine until the operation is done or `seconds` have
  // passed (1: done, 0: not yet). A work must be waited for until it is done before its memory goes away, then released.
  int32_t (*start)(const HvdRequest* request, HvdWork** work, char* message, size_t message_bytes);
  int32_t (*wait)(HvdWork* work, double seconds);
  void (*result)(HvdWork* work, HvdResult* result);  // once done; valid until release()
  void (*release)(HvdWork* work);

  // An answer to HvdQuestion; -1: the face has not called init; HVD_SET_*: HVD_UNKNOWN_PROCESS_SET. `process_set` counts for HVD_SET_*
  // only; HVD_SET_RANK: -2 when this rank is no member.
  int32_t (*ask)(int32_t face, int32_t question, int32_t process_set);

  // A name for a group that has none, to be given to its members' requests: groups of a kind are matched by the order in which the ranks
  // of a set ask for it. "" while the face is not in the job.
  void (*name_group)(int32_t face, int32_t kind, int32_t process_set, char* name, size_t name_bytes);
} HvdFaceApi;

}  // extern "C"
