// The part of NCCL's interface that the simulator implements: names, numbers and layouts; written
// independently of core/nccl, so that an error in either is detected.
#pragma once
#include <cstddef>
#include <cstdint>

// Functions newer than this are left out of the library; ncclGetVersion returns SIMNCCL_VERSION from the
// environment, or this.
#ifndef SIMNCCL_BUILT_AS
#define SIMNCCL_BUILT_AS 22809
#endif

using ncclResult_t = int;
using ncclDataType_t = int;
using ncclRedOp_t = int;
using ncclScalarResidence_t = int;
using ncclComm_t = struct ncclComm*;
using cudaStream_t = void*;

enum : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum : int {
  ncclInt8,
  ncclUint8,
  ncclInt32,
  ncclUint32,
  ncclInt64,
  ncclUint64,
  ncclFloat16,
  ncclFloat32,
  ncclFloat64,
  ncclBfloat16,
  ncclFloat8e4m3,
  ncclFloat8e5m2,
  ncclNumTypes
};
enum : int { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps };
enum : int { ncclScalarDevice, ncclScalarHostImmediate };

struct ncclUniqueId {
  char internal[128];
};

// The fields of 2.18; later versions append to them.
struct ncclConfig_t {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
};

#define SIMNCCL_API extern "C" __attribute__((visibility("default")))
SIMNCCL_API ncclResult_t ncclGetVersion(int* version);
SIMNCCL_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
SIMNCCL_API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank);
SIMNCCL_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config);
SIMNCCL_API ncclResult_t ncclCommFinalize(ncclComm_t comm);
SIMNCCL_API ncclResult_t ncclCommDestroy(ncclComm_t comm);
SIMNCCL_API ncclResult_t ncclCommAbort(ncclComm_t comm);
SIMNCCL_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
SIMNCCL_API const char* ncclGetErrorString(ncclResult_t result);
SIMNCCL_API const char* ncclGetLastError(ncclComm_t comm);
SIMNCCL_API ncclResult_t ncclGroupStart();
SIMNCCL_API ncclResult_t ncclGroupEnd();
SIMNCCL_API ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
SIMNCCL_API ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t, ncclRedOp_t, int root, ncclComm_t,
                                    cudaStream_t);
SIMNCCL_API ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t, int root, ncclComm_t, cudaStream_t);
SIMNCCL_API ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t, ncclComm_t, cudaStream_t);
SIMNCCL_API ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
SIMNCCL_API ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
SIMNCCL_API ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t, int peer, ncclComm_t, cudaStream_t);
SIMNCCL_API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t, ncclScalarResidence_t, ncclComm_t);
SIMNCCL_API ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t);
SIMNCCL_API ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t bytes, void** handle);
SIMNCCL_API ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);
