#include "plan/tuning.h"

#include <doctest/doctest.h>

#include "plan/algorithms.h"

using namespace hvd;

namespace {

Tuning parsed_tuning(std::string_view text) {
  Tuning t;
  const Status s = Tuning::parse(text, &t);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return t;
}

std::string refused_tuning(std::string_view text) {
  Tuning t{.direct_bytes = 1};
  const Status s = Tuning::parse(text, &t);
  CHECK(s.code() == Code::invalid_argument);
  CHECK(t.direct_bytes == 1);  // unchanged
  return s.message();
}

}  // namespace

TEST_CASE("the text of a tuning names every size and gives the same tuning") {
  Tuning all;
  size_t n = 4096;
  for (const TuningField& field : tuning_fields()) all.*field.value = n += 64;
  CHECK(parsed_tuning(all.text()) == all);
  CHECK(all.text().starts_with("direct_bytes=4160,chunk_bytes="));
}

TEST_CASE("the defaults are accepted") {
  for (const TuningField& field : tuning_fields()) {
    CHECK(Tuning().*field.value >= field.low);
    CHECK(Tuning().*field.value <= field.high);
  }
}

TEST_CASE("a wrong size names the part and what is accepted") {
  CHECK(refused_tuning("chunk=1") ==
        "'chunk=1' in the tuning: the name must be one of direct_bytes, chunk_bytes, stream_bytes, doubling_bytes, pair_bytes, "
        "slice_doubling_bytes, slice_pair_bytes, tree_bytes, flat_tree_bytes, got 'chunk'");
  for (const char* wrong : {"chunk_bytes", "chunk_bytes=", "chunk_bytes=1", "chunk_bytes=-5", "chunk_bytes=64K",
                            "chunk_bytes=99999999999999999999999", "chunk_bytes=1e5"}) {
    CHECK(refused_tuning(wrong) ==
          "'" + std::string(wrong) + "' in the tuning: the value must be 4096 to 67108864 bytes, as in 'chunk_bytes=65536'");
  }
}

TEST_CASE("sizes over links move the rows of the table") {
  Topology t;
  std::vector<int> host_of = {0, 1, 2, 3};
  REQUIRE(Topology::make(0, host_of, &t).ok());
  const WorldShape flat = WorldShape::of(t);
  auto chosen = [&](Collective c, size_t bytes, const Tuning& tuning) { return select(c, DType::float32, bytes, flat, {}, tuning); };
  CHECK(chosen(Collective::allreduce, 1 << 20, {}) == Algorithm::pairwise);
  CHECK(chosen(Collective::allreduce, 1 << 20, {.doubling_bytes = 1 << 20}) == Algorithm::recursive_doubling);
  CHECK(chosen(Collective::allreduce, 4, {.doubling_bytes = 0}) == Algorithm::pairwise);
  CHECK(chosen(Collective::broadcast, 2 << 20, {}) == Algorithm::pipelined);
  CHECK(chosen(Collective::broadcast, 2 << 20, {.flat_tree_bytes = 2 << 20}) == Algorithm::tree);
  CHECK(chosen(Collective::broadcast, 4, {.flat_tree_bytes = 0}) == Algorithm::pipelined);
}

TEST_CASE("values of a tuning can be read back, and others are refused") {
  Tuning tuning, read;
  tuning.chunk_bytes = 8192;
  tuning.tree_bytes = 7;
  REQUIRE(Tuning::read(tuning.values(), &read).ok());
  CHECK(read == tuning);
  std::vector<int64_t> values = tuning.values();
  values[1] = -1;
  CHECK(Tuning::read(values, &read).message() == "chunk_bytes must be 4096 to 67108864 bytes, got -1");
  values.pop_back();
  CHECK(Tuning::read(values, &read).message() == "a tuning must have 9 values, got 8");
  CHECK(read == tuning);
}
