// Work that runs on a stream's thread, and the memory that it uses meanwhile.
#pragma once

#include "memory.h"

namespace simcuda {

// kKernel: uses only what its device can reach. kExternal: of another library, such as the simulated NCCL.
enum class Work { kOwn, kKernel, kExternal };

// Where to touch part of a place; checks that it is still there. Without the lock.
std::byte* touch(const Place& place, size_t bytes, Access access);

// What this thread touches until the end of the scope, it uses until then.
class Running {
 public:
  Running(Stream* stream, const char* name, Work work);
  ~Running();
  void use(const Place& place, size_t bytes, Access access);  // with the lock

  Stream* const stream;
  const char* const name;
  const Work work;

 private:
  struct Use {
    Place place;
    size_t bytes;
    Access access;
    uint64_t before;  // digest of the bytes, for those that do not say whether they write
  };
  bool tells_writes(const Use& use) const;
  bool counts_for_races(const Use& use) const;
  std::vector<Use> uses_;
};

}  // namespace simcuda
