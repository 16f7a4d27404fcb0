// Declarations of the parts of XLA's C interface for foreign functions (FFI) that are used here. They are written by
// hand, so that one library works with every jaxlib and can be built without jaxlib. The layouts have not changed from
// jaxlib 0.4.38 (interface 0.1) to 0.10 (0.3). XLA guarantees that fields are only added at the end of a struct;
// `struct_size` shows which ones exist.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace hvd::xla {

struct Extension {
  size_t struct_size;
  int32_t type;
  Extension* next;
};
constexpr int32_t kMetadataExtension = 1;

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major, minor;
};

struct Metadata {
  size_t struct_size;
  Version api_version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

enum DType : int32_t {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kC64 = 15,
  kBF16 = 16,
  kC128 = 18,
};

// XLA buffer, valid only during the call.
struct Buffer {
  size_t struct_size;
  Extension* extensions;
  int32_t dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

// List of arguments or results; holds `size` pointers to Buffer.
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;
  Buffer** buffers;
};

struct Span {
  const char* data;
  size_t size;
};

struct Scalar {
  int32_t dtype;
  void* value;
};

struct Array {
  int32_t dtype;
  size_t size;
  void* data;
};

enum AttributeType : int32_t { kArray = 1, kScalar = 3, kString = 4 };

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int32_t* types;
  Span** names;
  // Pointers to values. Each one is an Array, a Scalar or a Span, depending on its type.
  void** values;
};

// Error that a handler returns to XLA, which destroys it.
struct Error;
struct Context;

// Error codes. They have the same values as absl::StatusCode.
enum ErrorCode : int32_t { kUnknown = 2, kInvalidArgument = 3, kFailedPrecondition = 9, kUnimplemented = 12, kInternal = 13 };

struct ErrorArgs {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int32_t code;
};

struct DeviceOrdinalArgs {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  int32_t device_ordinal;
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorArgs*);
  void* not_used[16];
  // Function that version 0.3 of the interface added. Call it only if has_device_ordinal() returns true.
  Error* (*device_ordinal_get)(DeviceOrdinalArgs*);
};

inline bool has_device_ordinal(const Api* api) {
  return api->struct_size >= offsetof(Api, device_ordinal_get) + sizeof(void*) && api->device_ordinal_get != nullptr;
}

enum Stage : int32_t { kExecute = 3 };

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  // XLA's function table. It can be null when XLA asks for metadata.
  const Api* api;
  Context* context;
  int32_t stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

// Return the size up to the end of `last`. `sizeof` includes padding at the end, which `struct_size` must not include.
template <class T, class M>
size_t size_up_to(const T& object, const M& last) {
  return static_cast<size_t>(reinterpret_cast<const char*>(&last) - reinterpret_cast<const char*>(&object)) + sizeof(M);
}

}  // namespace hvd::xla
