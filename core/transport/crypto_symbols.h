#pragma once
// Helpers shared by the wrappers of encryption libraries: symbol lookup, and casts to byte pointers.
#include <dlfcn.h>

#include <cstddef>

namespace hvd {

template <class F>
bool find_symbol(void* handle, const char* name, F* out) {
  *out = reinterpret_cast<F>(::dlsym(handle, name));
  return *out != nullptr;
}

inline const unsigned char* raw(const std::byte* p) { return reinterpret_cast<const unsigned char*>(p); }
inline unsigned char* raw(std::byte* p) { return reinterpret_cast<unsigned char*>(p); }

}  // namespace hvd
