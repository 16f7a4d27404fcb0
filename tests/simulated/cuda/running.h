// Work on a stream's thread, and the memory that it uses meanwhile.
#pragma once

#include "memory.h"

namespace simcuda {

// kKernel: may use only memory that its device can reach. kExternal: of another library, such as the
// simulated NCCL.
enum class Work { kOwn, kKernel, kExternal };

// Host address to access part of a place; checks that it still exists. Without the lock.
std::byte* touch(const Place& place, size_t bytes, Access access);

// Memory that this thread accesses counts as used until the end of the scope.
class Running {
 public:
  Running(Stream* stream, const char* name, Work work);
  ~Running();
  void use(const Place& place, size_t bytes, Access access);  // needs the lock

  Stream* const stream;
  const char* const name;
  const Work work;

 private:
  struct Use {
    Place place;
    size_t bytes;
    Access access;
    uint64_t before;  // digest of the bytes, for work that does not declare writes
  };
  bool tells_writes(const Use& use) const;
  bool counts_for_races(const Use& use) const;
  std::vector<Use> uses_;
};

}  // namespace simcuda
