#include "transport/segment.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace hvd {
namespace {

constexpr size_t kPage = 4096;
// Magic number of a segment: the bytes "\0hvdseg1".
constexpr uint64_t kMagic = 0x3167657364766800;

constexpr size_t page_up(size_t n) { return (n + kPage - 1) / kPage * kPage; }

size_t rings(const SegmentSpec& s) { return static_cast<size_t>(kRingChannels) * s.local_size * s.local_size; }
size_t wakeup_words_at() { return page_up(sizeof(SegmentHeader)); }
size_t words_at(const SegmentSpec& s) { return page_up(wakeup_words_at() + s.local_size * sizeof(WakeupWord)); }
size_t sets_at(const SegmentSpec& s) { return words_at(s) + s.local_size * Segment::kWordsBytes; }
size_t ring_headers_at(const SegmentSpec& s) { return page_up(sets_at(s) + kMaxProcessSets * s.local_size * sizeof(SetLine)); }
size_t ring_data_at(const SegmentSpec& s) { return page_up(ring_headers_at(s) + rings(s) * sizeof(RingHeader)); }
size_t staging_at(const SegmentSpec& s) { return page_up(ring_data_at(s) + rings(s) * s.ring_bytes); }

size_t arenas_at(const SegmentSpec& s) { return page_up(staging_at(s) + s.local_size * s.staging_bytes); }

}  // namespace

size_t Segment::bytes_needed(const SegmentSpec& s) { return arenas_at(s) + s.local_size * s.arena_bytes; }

Status Segment::map(int fd, const SegmentSpec& wanted, std::shared_ptr<Segment>* out) {
  SegmentSpec spec = wanted;
  spec.arena_bytes = 0;
  size_t bytes = bytes_needed(spec);
  struct stat st{};
  if (fstat(fd, &st) != 0 || static_cast<size_t>(st.st_size) < bytes) {
    return Status(Code::internal,
                  "the shared memory must have at least " + std::to_string(bytes) + " bytes, got " + std::to_string(st.st_size));
  }
  spec.arena_bytes = (static_cast<size_t>(st.st_size) - bytes) / spec.local_size / kPage * kPage;
  const size_t all = bytes_needed(spec);
  void* p = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED && spec.arena_bytes > 0) {
    spec.arena_bytes = 0;
    p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  } else {
    bytes = all;
  }
  if (p == MAP_FAILED) return Status(Code::internal, std::string("mmap of the node's shared memory: ") + strerror(errno));
  // Exclude the sparse arenas from core dumps, which would allocate all of their pages.
  if (spec.arena_bytes > 0) ::madvise(static_cast<std::byte*>(p) + arenas_at(spec), bytes - arenas_at(spec), MADV_DONTDUMP);
  auto* header = static_cast<SegmentHeader*>(p);
  header->magic = kMagic;
  header->local_size = spec.local_size;
  *out = std::shared_ptr<Segment>(new Segment(static_cast<std::byte*>(p), bytes, spec));
  return {};
}

std::shared_ptr<Segment> Segment::in_process(const SegmentSpec& spec) {
  const size_t bytes = bytes_needed(spec);
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  return std::shared_ptr<Segment>(new Segment(static_cast<std::byte*>(p), bytes, spec));
}

Segment::~Segment() { munmap(base_, bytes_); }

WakeupWord& Segment::wakeup(int r) const { return reinterpret_cast<WakeupWord*>(base_ + wakeup_words_at())[r]; }
std::byte* Segment::words(int r) const { return base_ + words_at(spec_) + static_cast<size_t>(r) * kWordsBytes; }
SetLine& Segment::set_line(int slot, int r) const {
  return reinterpret_cast<SetLine*>(base_ + sets_at(spec_))[static_cast<size_t>(slot) * spec_.local_size + r];
}
size_t Segment::ring_index(int from, int to, RingChannel channel) const {
  return (static_cast<size_t>(channel) * spec_.local_size + from) * spec_.local_size + to;
}
RingHeader& Segment::ring(int from, int to, RingChannel channel) const {
  return reinterpret_cast<RingHeader*>(base_ + ring_headers_at(spec_))[ring_index(from, to, channel)];
}
std::byte* Segment::ring_data(int from, int to, RingChannel channel) const {
  return base_ + ring_data_at(spec_) + ring_index(from, to, channel) * spec_.ring_bytes;
}
std::byte* Segment::staging(int r) const { return base_ + staging_at(spec_) + static_cast<size_t>(r) * spec_.staging_bytes; }
std::byte* Segment::arena(int r) const {
  return spec_.arena_bytes == 0 ? nullptr : base_ + arenas_at(spec_) + static_cast<size_t>(r) * spec_.arena_bytes;
}

}  // namespace hvd
