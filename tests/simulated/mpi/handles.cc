#include "handles.h"

#if SIMMPI_FAMILY == 1
// As in Open MPI's mpi.h: a handle is the address of an exported variable.
#define SIMMPI_VARIABLE(id, name, ...) __attribute__((visibility("default"))) char name[64] = {};
extern "C" {
SIMMPI_HANDLES(SIMMPI_VARIABLE)
}
#undef SIMMPI_VARIABLE
#endif

namespace simmpi {
namespace {

constexpr int kMost = 4096;

#if SIMMPI_FAMILY == 1
char objects[kMost];
#define SIMMPI_HANDLE(id, name, ...) name,
#elif SIMMPI_FAMILY == 2
constexpr int kFirst = 0x10000000;
#define SIMMPI_HANDLE(id, name, mpich, standard) mpich,
#else
constexpr intptr_t kFirst = 0x10000;
#define SIMMPI_HANDLE(id, name, mpich, standard) reinterpret_cast<void*>(intptr_t{standard}),
#endif

const H handles[kIds] = {SIMMPI_HANDLES(SIMMPI_HANDLE)};

}  // namespace

H handle_of(Id id) { return handles[id]; }

Id id_of(H handle) {
  int id = 0;
  while (id < kIds && handles[id] != handle) ++id;
  return static_cast<Id>(id);
}

#if SIMMPI_FAMILY == 1
H made_handle(int number) { return objects + number; }
int number_of(H handle) {
  const auto distance = static_cast<char*>(handle) - objects;
  return distance > 0 && distance < kMost ? static_cast<int>(distance) : 0;
}
#elif SIMMPI_FAMILY == 2
H made_handle(int number) { return kFirst + number; }
int number_of(H handle) { return handle > kFirst && handle < kFirst + kMost ? handle - kFirst : 0; }
#else
H made_handle(int number) { return reinterpret_cast<void*>(kFirst + number); }
int number_of(H handle) {
  const auto distance = reinterpret_cast<intptr_t>(handle) - kFirst;
  return distance > 0 && distance < kMost ? static_cast<int>(distance) : 0;
}
#endif

}  // namespace simmpi
