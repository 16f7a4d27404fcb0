#include "trace/nvtx.h"

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace hvd {
namespace {

// Attributes of a range, with the same layout as nvtxEventAttributes_t version 3.
struct Attributes {
  uint16_t version = 3, size = 48;
  uint32_t category = 0;
  int32_t color_type = 0;
  uint32_t color = 0;
  int32_t payload_type = 0, reserved = 0;
  uint64_t payload = 0;
  // Type of the message (ASCII text).
  int32_t message_type = 1;
  const char* message = nullptr;
};
static_assert(sizeof(Attributes) == 48 && offsetof(Attributes, message_type) == 32 && offsetof(Attributes, message) == 40);

}  // namespace

Status NvtxRanges::open(const std::string& library, std::shared_ptr<NvtxRanges>* out) {
  // Never unload the library, because the profiler uses it.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return Status(Code::invalid_argument, ::dlerror());
  Functions f;
  f.domain_create = reinterpret_cast<void* (*)(const char*)>(::dlsym(handle, "nvtxDomainCreateA"));
  f.push = reinterpret_cast<int (*)(void*, const void*)>(::dlsym(handle, "nvtxDomainRangePushEx"));
  f.pop = reinterpret_cast<int (*)(void*)>(::dlsym(handle, "nvtxDomainRangePop"));
  if (!f.domain_create || !f.push || !f.pop) return Status(Code::invalid_argument, library + " lacks functions of NVTX");
  *out = std::make_shared<NvtxRanges>(f);
  return {};
}

NvtxRanges::NvtxRanges(Functions functions) : functions_(functions), domain_(functions_.domain_create("horovod")) {}

void NvtxRanges::started(const Execution& e) {
  name_.assign(name_of(e.response.kind)).append(1, ' ').append(e.response.names.front());
  if (e.response.names.size() > 1) name_ += " and " + std::to_string(e.response.names.size() - 1) + " more";
  Attributes attributes;
  attributes.message = name_.c_str();
  functions_.push(domain_, &attributes);
}

void NvtxRanges::finished(const Execution&, const Status&) { functions_.pop(domain_); }

}  // namespace hvd
