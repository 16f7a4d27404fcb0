#include "transport/arena.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

using namespace hvd;

namespace {

constexpr size_t kPage = 4096;
SegmentSpec spec(size_t arena_bytes) { return {2, 4096, 65536, arena_bytes}; }

// A segment in a file, as processes share it.
struct File {
  int fd;
  explicit File(size_t bytes) : fd(memfd_create("test", MFD_CLOEXEC)) { REQUIRE(ftruncate(fd, static_cast<off_t>(bytes)) == 0); }
  ~File() { ::close(fd); }
  size_t resident() const {
    struct stat st{};
    fstat(fd, &st);
    return static_cast<size_t>(st.st_blocks) * 512;
  }
};

}  // namespace

TEST_CASE("arena: blocks are apart, zeroed, page aligned, and used again") {
  auto segment = Segment::in_process(spec(16 * kPage));
  auto arena = std::make_shared<Arena>(segment, 1);
  auto a = arena->allocate(1), b = arena->allocate(2 * kPage), c = arena->allocate(kPage);
  REQUIRE((a && b && c));
  CHECK(a->bytes() == 1);
  CHECK(b->data() - a->data() == kPage);
  CHECK(c->data() - b->data() == 2 * kPage);
  CHECK(arena->used() == 4 * kPage);
  std::memset(b->data(), 7, b->bytes());
  std::byte* was = b->data();
  b.reset();
  CHECK(arena->used() == 2 * kPage);
  b = arena->allocate(kPage + 1);
  CHECK(b->data() == was);
  for (size_t i = 0; i < b->bytes(); ++i) REQUIRE(b->data()[i] == std::byte{0});
}

TEST_CASE("arena: full, and whole again after everything came back in any order") {
  auto segment = Segment::in_process(spec(8 * kPage));
  auto arena = std::make_shared<Arena>(segment, 0);
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}}) {
    std::vector<std::shared_ptr<Arena::Block>> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(arena->allocate(2 * kPage));
    CHECK(arena->allocate(1) == nullptr);
    for (int i : order) blocks[i].reset();
    auto all = arena->allocate(8 * kPage);
    CHECK(all != nullptr);
  }
  CHECK(arena->allocate(8 * kPage + 1) == nullptr);
  CHECK(arena->allocate(0) == nullptr);
  CHECK(arena->allocate(SIZE_MAX) == nullptr);
}

TEST_CASE("segment: what the file has beyond the rest are arenas; every mapping sees them") {
  const size_t plain = Segment::bytes_needed(spec(0));
  File file(Segment::bytes_needed(spec(4 * kPage)));
  std::shared_ptr<Segment> one, other;
  REQUIRE(Segment::map(file.fd, spec(0), &one).ok());
  REQUIRE(Segment::map(file.fd, spec(0), &other).ok());
  CHECK(one->spec().arena_bytes == 4 * kPage);
  auto block = std::make_shared<Arena>(one, 1)->allocate(kPage);
  block->data()[5] = std::byte{42};
  CHECK(other->arena(1)[5] == std::byte{42});
  CHECK(other->arena(1) - other->arena(0) == 4 * kPage);

  File small(plain);
  REQUIRE(Segment::map(small.fd, spec(4 * kPage), &one).ok());
  CHECK(one->arena(0) == nullptr);
}

TEST_CASE("arena: memory that is given back leaves the process") {
  File file(Segment::bytes_needed(spec(256 * kPage)));
  std::shared_ptr<Segment> segment;
  REQUIRE(Segment::map(file.fd, spec(0), &segment).ok());
  auto arena = std::make_shared<Arena>(segment, 0);
  const size_t before = file.resident();
  auto block = arena->allocate(200 * kPage);
  CHECK(file.resident() == before);
  std::memset(block->data(), 1, block->bytes());
  CHECK(file.resident() >= before + 200 * kPage);
  const pid_t child = ::fork();
  if (child == 0) {
    block.reset();  // a copy: the memory stays the parent's
    ::_exit(0);
  }
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(block->data()[0] == std::byte{1});
  block.reset();
  CHECK(file.resident() == before);
}
