#include "kernels/launch.h"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace hvd;
using namespace hvd::kernels;

TEST_CASE("every kernel has its name and place") {
  CHECK(all().size() == 3 * kDTypeCount + 5);
  std::set<std::string> names;
  for (const Kernel& k : all()) names.insert(k.name);
  CHECK(names.size() == all().size());
  CHECK(std::string(all()[reduce_of(DType::bfloat16)].name) == "reduce_bfloat16");
  CHECK(std::string(all()[scale_of(DType::boolean)].name) == "scale_boolean");
  CHECK(std::string(all()[pack_of(DType::uint8)].name) == "pack_uint8");
  CHECK(std::string(all()[*pack_of(DType::float32, DType::float16)].name) == "pack_float32_to_float16");
  CHECK(pack_of(DType::float32, DType::float32) == pack_of(DType::float32));
  CHECK_FALSE(pack_of(DType::float64, DType::float16));
  CHECK(std::string(all()[pack_bytes_of()].name) == "pack_bytes");
}

TEST_CASE("the PTX has an entry for each kernel, ends in a zero, and asks for no more than it needs") {
  CHECK(kPtx[kPtxBytes - 1] == '\0');
  CHECK(strlen(kPtx) == kPtxBytes - 1);
  const std::string ptx = kPtx;
  CHECK(ptx.find("\n.version 8.1\n") != std::string::npos);
  CHECK(ptx.find("\n.target sm_70\n") != std::string::npos);
  for (const Kernel& k : all()) {
    // One parameter, of the size that the host passes.
    const std::string name = k.name;
    const auto entry = ptx.find(".visible .entry " + name + "(");
    REQUIRE_MESSAGE(entry != std::string::npos, name);
    const std::string head = ptx.substr(entry, ptx.find(')', entry) - entry);
    CHECK_MESSAGE(head.find(" " + name + "_param_0[" + std::to_string(k.parameter_bytes) + "]") != std::string::npos, head);
    CHECK(head.find("_param_1") == std::string::npos);
  }
  // Instructions that would give other bits than the CPU, or keep vectors out of registers.
  for (const char* word : {"fma.", "mad.rn", ".ftz", ".approx", "min.f", "max.f", ".local", "cvt.rn.f16", "cvt.f32.f16"}) {
    CHECK_MESSAGE(ptx.find(word) == std::string::npos, word);
  }
  // Plain add.f32 and mul.f32 could be contracted by the driver's compiler.
  for (const char* word : {"add.f", "sub.f", "mul.f"}) CHECK_MESSAGE(ptx.find(word) == std::string::npos, word);
}

TEST_CASE("slices are whole lines, follow one another and leave nothing out") {
  for (size_t bytes : {1, 2, 4, 8}) {
    for (uint64_t elements : {0, 1, 127, 128, 129, 5000, 100000}) {
      for (uint64_t parts : {1, 2, 3, 8}) {
        uint64_t at = 0;
        for (uint64_t part = 0; part < parts; ++part) {
          const Slice slice = slice_of(elements, bytes, part, parts);
          CHECK(slice.begin == at);
          CHECK(slice.end >= slice.begin);
          CHECK((slice.begin == elements || slice.begin * bytes % 512 == 0));
          at = slice.end;
        }
        CHECK(at == elements);
      }
    }
  }
  CHECK(slice_of(1024, 4, 1, 4).begin == 256);
}

TEST_CASE("pieces are cut into chunks that fill the device and are at most 64 KiB") {
  auto p = std::make_unique<PackParameters>();
  const Move small[] = {{16, 32, 100}, {64, 128, 0}, {256, 512, 2049}};
  CHECK(fill(p.get(), small, 4, 132) == 3);
  CHECK(p->chunk == 1024);
  CHECK(p->piece_count == 3);
  CHECK(p->pieces[1].first_chunk == 1);
  CHECK(p->pieces[2].first_chunk == 1);
  CHECK(p->chunks == 4);
  CHECK(geometry(*p).blocks == 4);
  const Move large[] = {{16, 32, uint64_t{1} << 30}};
  CHECK(fill(p.get(), large, 8, 132) == 1);
  CHECK(p->chunk == kMostChunkBytes / 8);
  CHECK(p->chunks == 1 << 17);
  const std::vector<Move> many(600, Move{16, 32, 1});
  CHECK(fill(p.get(), many, 1, 132) == kMostPieces);
  CHECK(fill(p.get(), {}, 1, 132) == 0);
  CHECK(geometry(*p).blocks == 1);
}
