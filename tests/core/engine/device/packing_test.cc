#include <doctest/doctest.h>

#include "engine/device/splitting.h"

using namespace hvd;

TEST_CASE("many small tensors are packed one behind the other, large ones and few are not") {
  const std::vector<size_t> bytes{4, 0, 1 << 20, 300, 256, 7};
  const Packing p = plan_packing(bytes, true);
  CHECK(p.packed == std::vector<size_t>{0, 1, 3, 4, 5});
  CHECK(p.apart == std::vector<size_t>{2});
  CHECK(p.offsets == std::vector<size_t>{0, 256, 256, 768, 1024});
  CHECK(p.bytes == 1280);
  for (const Packing& none : {plan_packing(bytes, false), plan_packing(std::vector<size_t>{4, 4, 4}, true)}) {
    CHECK(none.packed.empty());
    CHECK(none.bytes == 0);
  }
  CHECK(plan_packing(bytes, false).apart.size() == 6);
  CHECK(plan_packing(std::vector<size_t>(5, 0), true).bytes == 0);
}

TEST_CASE("the buffer has a limit; what is beyond it stays where it is") {
  const std::vector<size_t> bytes(1000, 256 << 10);
  const Packing p = plan_packing(bytes, true);
  CHECK(p.bytes <= size_t{64} << 20);
  CHECK(p.packed.size() == 256);
  CHECK(p.packed.size() + p.apart.size() == 1000);
}
