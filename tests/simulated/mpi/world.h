// Shared memory of the processes. An exchange is one operation of one communicator: every member stores its
// input and, once all have, takes its result.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "simmpi.h"

namespace simmpi {

// A member's part of an operation.
struct Part {
  std::atomic<uint32_t> posted{0};
  char what[24] = {};  // the function
  int root = -1;
  int64_t value = 0;  // other values that must be equal: element size and kind, and the operation
  size_t bytes = 0;  // in its area
  size_t sends[kMostRanks] = {};  // to each member, for operations that send parts
};

struct Exchange {
  uint64_t context = 0, number = 0;
  std::atomic<uint32_t> used{0}, taken{0};
  Part parts[kMostRanks];  // by rank in the communicator
};

struct Control {
  std::atomic<uint32_t> lock{0}, started{0}, ended{0};
  std::atomic<uint64_t> contexts{0};
  Exchange exchanges[kExchanges];
};
static_assert(sizeof(Control) <= kControlBytes);

class World {
 public:
  static World& get();
  int rank() const { return rank_; }
  int size() const { return size_; }
  Control& control() { return *control_; }

  // The exchange of operation `number` in `context`; the first member to arrive creates it.
  Exchange* join(uint64_t context, uint64_t number);
  // The input of member `rank`.
  std::byte* area(const Exchange* exchange, int rank);
  // Stores this member's input. The part's other fields must be set before.
  void post(Exchange* exchange, int rank, const void* data, size_t bytes);
  static bool complete(const Exchange* exchange, int members);
  // This member has its result; the last one ends the exchange.
  static void leave(Exchange* exchange, int members);

 private:
  World();
  int rank_ = 0, size_ = 1;
  std::byte* memory_ = nullptr;
  Control* control_ = nullptr;
};

}  // namespace simmpi
