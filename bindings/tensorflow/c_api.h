// Declarations of the parts of TensorFlow's C API that are used here. They are written by hand, and the functions are
// looked up at run time in the TensorFlow that this process has loaded. One library therefore works with every
// TensorFlow version from 2.13 on.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_AsyncOpKernelDoneCallback TF_AsyncOpKernelDoneCallback;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_DimensionHandle TF_DimensionHandle;
typedef struct TF_StringView {
  const char* data;
  size_t len;
} TF_StringView;
typedef int TF_DataType;
typedef int TF_Code;
typedef void (*TF_Compute)(void*, TF_OpKernelContext*);
typedef void (*TF_ComputeAsync)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
}

namespace hvd::tensorflow {

enum : TF_DataType {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kHalf = 19
};
enum : TF_Code { kOk = 0, kUnknown = 2, kInvalidArgument = 3, kFailedPrecondition = 9, kAborted = 10, kInternal = 13 };

// Table of TensorFlow's functions: X(result, name without TF_, arguments).
#define HVD_TF_FUNCTIONS(X)                                                                                                            \
  X(TF_Status*, NewStatus, ())                                                                                                         \
  X(void, DeleteStatus, (TF_Status*))                                                                                                  \
  X(void, SetStatus, (TF_Status*, TF_Code, const char*))                                                                               \
  X(TF_Code, GetCode, (const TF_Status*))                                                                                              \
  X(const char*, Message, (const TF_Status*))                                                                                          \
  X(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                                                                    \
  X(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                                                 \
  X(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                                                          \
  X(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                                                         \
  X(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                                                        \
  X(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                                           \
  X(void, OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*)))    \
  X(TF_ShapeHandle*, NewShapeHandle, ())                                                                                               \
  X(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                                                        \
  X(int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                                                              \
  X(void, ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                                \
  X(void, ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))                               \
  X(void, ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))                                               \
  X(int, ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                                                 \
  X(int64_t, ShapeInferenceContextRank, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                                                  \
  X(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                                                         \
  X(TF_ShapeHandle*, ShapeInferenceContextVectorFromSize, (TF_ShapeInferenceContext*, size_t))                                         \
  X(void, ShapeInferenceContextSubshape, (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t, int64_t, TF_ShapeHandle*, TF_Status*))  \
  X(void, ShapeInferenceContextConcatenateShapes,                                                                                      \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))                                        \
  X(TF_KernelBuilder*, NewKernelBuilder, (const char*, const char*, void* (*)(TF_OpKernelConstruction*), TF_Compute, void (*)(void*))) \
  X(void, KernelBuilder_HostMemory, (TF_KernelBuilder*, const char*))                                                                  \
  X(void, RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                                                         \
  X(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                                               \
  X(int, NumInputs, (TF_OpKernelContext*))                                                                                             \
  X(TF_Tensor*, AllocateOutput, (TF_OpKernelContext*, int, TF_DataType, const int64_t*, int, size_t, TF_Status*))                      \
  X(TF_Tensor*, ForwardInputOrAllocateOutput, (TF_OpKernelContext*, const int*, int, int, const int64_t*, int, int*, TF_Status*))      \
  X(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                                                  \
  X(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                                        \
  X(void, OpKernelConstruction_GetAttrInt32, (TF_OpKernelConstruction*, const char*, int32_t*, TF_Status*))                            \
  X(void, OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))                            \
  X(void, OpKernelConstruction_GetAttrFloat, (TF_OpKernelConstruction*, const char*, float*, TF_Status*))                              \
  X(void, OpKernelConstruction_GetAttrBool, (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*))                       \
  X(void, OpKernelConstruction_GetAttrSize, (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*))                   \
  X(void, OpKernelConstruction_GetAttrString, (TF_OpKernelConstruction*, const char*, char*, size_t, TF_Status*))                      \
  X(bool, OpKernelConstruction_HasAttr, (TF_OpKernelConstruction*, const char*, TF_Status*))                                           \
  X(TF_StringView, OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                                                           \
  X(TF_DataType, TensorType, (const TF_Tensor*))                                                                                       \
  X(int, NumDims, (const TF_Tensor*))                                                                                                  \
  X(int64_t, Dim, (const TF_Tensor*, int))                                                                                             \
  X(void*, TensorData, (const TF_Tensor*))                                                                                             \
  X(void, DeleteTensor, (TF_Tensor*))

// Functions that some TensorFlow versions lack. They run kernels asynchronously and distinguish loop iterations.
#define HVD_TF_OPTIONAL_FUNCTIONS(X)                                                                   \
  X(TF_KernelBuilder*, NewAsyncKernelBuilder,                                                          \
    (const char*, const char*, void* (*)(TF_OpKernelConstruction*), TF_ComputeAsync, void (*)(void*))) \
  X(void, RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                               \
  X(uint64_t, GetFrameId, (TF_OpKernelContext*))                                                       \
  X(int64_t, GetIterId, (TF_OpKernelContext*))

struct CApi {
#define HVD_TF_DECLARE(result, name, arguments) result(*name) arguments = nullptr;
  HVD_TF_FUNCTIONS(HVD_TF_DECLARE)
  HVD_TF_OPTIONAL_FUNCTIONS(HVD_TF_DECLARE)
#undef HVD_TF_DECLARE
};

// Return the functions of the loaded TensorFlow. They are null until find_c_api() has succeeded.
const CApi& tf();
// Look up the functions. Return "" on success, or the name of the first function that is missing.
const char* find_c_api();

// Owner of a TF_Status, which is deleted at the end of the scope.
class TfStatus {
 public:
  TfStatus() : it_(tf().NewStatus()) {}
  ~TfStatus() { tf().DeleteStatus(it_); }
  TfStatus(const TfStatus&) = delete;
  bool ok() const { return tf().GetCode(it_) == kOk; }
  const char* message() const { return tf().Message(it_); }
  operator TF_Status*() const { return it_; }

 private:
  TF_Status* it_;
};

}  // namespace hvd::tensorflow
