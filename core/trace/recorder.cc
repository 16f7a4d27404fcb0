#include "trace/recorder.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace hvd {
namespace {

using Entry = FlightRecorder::Entry;

Entry entry_of(FlightRecorder::What what, uint64_t at) {
  Entry entry{};
  entry.what = what;
  entry.begin = entry.end = at;
  return entry;
}

void set_name(Entry& entry, std::string_view name) {
  const size_t length = std::min(name.size(), Entry::kName);
  std::memcpy(entry.name.data(), name.data(), length);
  entry.name_length = static_cast<uint8_t>(length);
}

void set_shape(Entry& entry, const std::vector<int64_t>& shape) {
  entry.dimensions = static_cast<uint8_t>(std::min<size_t>(shape.size(), UINT8_MAX));
  std::copy_n(shape.begin(), std::min(shape.size(), Entry::kShape), entry.shape.begin());
}

// Copy the fields of a Request or Response to an entry.
template <class Asked>
void set_kind(Entry& entry, const Asked& asked) {
  entry.kind = asked.kind;
  entry.dtype = asked.dtype;
  entry.op = asked.op;
  entry.frontend = asked.frontend;
  entry.set = asked.set;
}

void set_response(Entry& entry, const Response& response) {
  set_kind(entry, response);
  if (!response.names.empty()) set_name(entry, response.names.front());
  if (!response.shapes.empty()) set_shape(entry, response.shapes.front());
  entry.count = static_cast<uint32_t>(response.names.size());
}

}  // namespace

FlightRecorder::FlightRecorder(size_t entries) : slots_(std::max<size_t>(entries, 2)) {}

void FlightRecorder::write(Entry& entry) {
  const uint64_t number = next_.load(std::memory_order_relaxed);
  entry.number = number;
  const Words words = std::bit_cast<Words>(entry);
  Slot& slot = slots_[number % slots_.size()];
  slot.version.store(2 * number + 1, std::memory_order_relaxed);
  // Store each word with release order: a reader that sees it then also sees the odd version, which marks the entry as incomplete. A fence
  // would do the same, but ThreadSanitizer does not support fences.
  for (size_t i = 0; i < words.size(); ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.version.store(2 * number + 2, std::memory_order_release);
  next_.store(number + 1, std::memory_order_release);
}

bool FlightRecorder::read(uint64_t number, Entry* entry) const {
  const Slot& slot = slots_[number % slots_.size()];
  const uint64_t version = 2 * number + 2;
  if (slot.version.load(std::memory_order_acquire) != version) return false;
  Words words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != version) return false;
  *entry = std::bit_cast<Entry>(words);
  return true;
}

std::vector<Entry> FlightRecorder::last(size_t most) const {
  const uint64_t end = next_.load(std::memory_order_acquire);
  const uint64_t kept = std::min<uint64_t>({end, slots_.size(), most});
  std::vector<Entry> out;
  out.reserve(kept);
  Entry entry;
  for (uint64_t number = end - kept; number < end; ++number) {
    if (read(number, &entry)) out.push_back(entry);
  }
  return out;
}

void FlightRecorder::requested(std::span<const Request> requests) {
  const uint64_t now = ticks();
  for (const Request& q : requests) {
    Entry entry = entry_of(What::requested, now);
    set_kind(entry, q);
    set_name(entry, q.name);
    set_shape(entry, q.shape);
    entry.count = 1;
    if (q.kind <= Kind::barrier) entry.bytes = q.bytes();
    write(entry);
  }
}

void FlightRecorder::started(const Execution&) { started_ = ticks(); }

void FlightRecorder::finished(const Execution& execution, const Status& status) {
  Entry entry = entry_of(status.ok() ? What::carried_out : What::broke_off, ticks());
  entry.begin = started_;
  entry.bytes = execution.bytes;
  entry.schedule = schedule_;
  entry.guarded = execution.guarded;
  set_response(entry, execution.response);
  entry.position = executed_[entry.set]++;
  write(entry);
}

void FlightRecorder::failed(const Response& response) {
  Entry entry = entry_of(What::failed, ticks());
  set_response(entry, response);
  write(entry);
}

void FlightRecorder::schedule_begun(const Schedule& schedule) {
  schedule_ = schedule.id;
  Entry entry = entry_of(What::schedule_begun, ticks());
  entry.schedule = schedule.id;
  entry.count = static_cast<uint32_t>(schedule.buckets.size());
  write(entry);
}

void FlightRecorder::schedule_ended(const Schedule& schedule, uint64_t) {
  schedule_ = 0;
  Entry entry = entry_of(What::schedule_ended, ticks());
  entry.schedule = schedule.id;
  write(entry);
}

void FlightRecorder::ended(const Status& why) {
  Entry entry = entry_of(What::ended, ticks());
  set_name(entry, why.message());
  write(entry);
}

const char* name_of(FlightRecorder::What what) {
  constexpr const char* kNames[] = {"announced", "carried out", "broke off", "failed", "schedule begun", "schedule ended", "ended"};
  return kNames[static_cast<size_t>(what)];
}

}  // namespace hvd
