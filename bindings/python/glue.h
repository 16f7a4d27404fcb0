// Helpers shared by the files of the Python module.
#pragma once
#include <nanobind/nanobind.h>

#include "base/status.h"
#include "transport/crypto.h"

namespace hvd::python {

namespace nb = nanobind;

// Raise ValueError for a caller's mistake, and horovod.common.exceptions.HorovodInternalError for all other errors.
[[noreturn]] void raise(const Status& status);
inline void check(const Status& status) {
  if (!status.ok()) raise(status);
}

// Return `value` as a key. Raise a ValueError that names the argument if it is not 32 bytes long.
CipherKey cipher_key(const char* argument, const nb::bytes& value);
Status cipher_of(const std::string& name, Cipher* out);

void define_buffer(nb::module_& m);
void define_config(nb::module_& m);
void define_crypto(nb::module_& m);
void define_engine(nb::module_& m);
void define_gradients(nb::module_& m);
void define_mpi(nb::module_& m);
void define_plan(nb::module_& m);
void define_repeats(nb::module_& m);

}  // namespace hvd::python
