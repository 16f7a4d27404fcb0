#include "agree/schedule_cursor.h"

#include <algorithm>

#include "agree/schedule_word.h"

namespace hvd {
namespace {

void make_key(uint32_t set, uint8_t frontend, const std::string& name, std::string* key) {
  const uint64_t scope = static_cast<uint64_t>(set) << 8 | frontend;
  key->assign(reinterpret_cast<const char*>(&scope), sizeof scope);
  key->append(name);
}

// Return the number in the name of an unnamed operation, such as 17 for "allreduce.noname.17".
uint64_t number_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? 0 : std::strtoull(name.c_str() + dot + 1, nullptr, 10);
}

}  // namespace

ScheduleCursor::ScheduleCursor(std::shared_ptr<const Schedule> schedule, std::vector<const Request*> requests)
    : schedule_(std::move(schedule)), slots_(schedule_->entries.size()), missing_(schedule_->buckets.size()) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (!requests[i]) continue;
    slots_[i].own = true;
    slots_[i].request = *requests[i];
    const ScheduleEntry& e = schedule_->entries[i];
    if (e.unnamed) {
      unnamed_[stream_of(e.set, e.frontend, e.kind)].entries.push_back(i);
    } else {
      make_key(e.set, e.frontend, e.name, &key_);
      by_name_[key_].entries.push_back(i);
    }
  }
  for (uint32_t b = 0; b < missing_.size(); ++b) {
    for (uint32_t e : schedule_->buckets[b].entries) {
      slots_[e].bucket = b;
      missing_[b] += slots_[e].own;
    }
  }
  for (auto& [key, stream] : unnamed_) {
    std::sort(stream.entries.begin(), stream.entries.end(),
              [&](uint32_t a, uint32_t b) { return number_of(schedule_->entries[a].name) < number_of(schedule_->entries[b].name); });
    for (uint32_t e : stream.entries) slots_[e].stream = &stream;
  }
  // Entries with equal names are already in order of submission: a program can reuse a name only after the earlier operation has completed.
  for (auto& [key, stream] : by_name_) {
    for (uint32_t e : stream.entries) slots_[e].stream = stream.entries.size() > 1 ? &stream : nullptr;
  }
  advance();
}

uint32_t ScheduleCursor::find(const Request& q) const {
  if (q.unnamed) {
    auto it = unnamed_.find(stream_of(q.set, q.frontend, q.kind));
    return it == unnamed_.end() ? kNoEntry : it->second.next();
  }
  make_key(q.set, q.frontend, q.name, &key_);
  auto it = by_name_.find(key_);
  return it == by_name_.end() ? kNoEntry : it->second.next();
}

bool ScheduleCursor::busy(uint32_t entry) const {
  const Stream* stream = slots_[entry].stream;
  const Slot& slot = slots_[stream && !slots_[entry].request.unnamed ? stream->previous() : entry];
  return slot.running || !slot.waiting.empty();
}

bool ScheduleCursor::offer(uint32_t entry, const Request& q, void* token, bool* completed) {
  if (entry == kNoEntry || !slots_[entry].request.same_signature(q)) return false;
  if (Stream* stream = slots_[entry].stream) ++stream->seen;
  add(entry, token, completed);
  return true;
}

void ScheduleCursor::offer_again(uint32_t entry, void* token, bool* completed) { add(entry, token, completed); }

// Hot path: this code runs for every tensor of every step.
void ScheduleCursor::add(uint32_t entry, void* token, bool* completed) {
  Slot& slot = slots_[entry];
  const bool first = slot.waiting.empty();
  slot.waiting.push_back(token);
  const uint64_t before = ready_;
  if (first && --missing_[slot.bucket] == 0) advance();
  *completed = ready_ != before;
}

void ScheduleCursor::advance() {
  if (!anything_mine()) {
    ready_ = kNoPart;
    return;
  }
  // missing_ counts the missing submissions of each bucket for one round only. That suffices: a program waits for its gradients before it
  // starts the next step, so it is at most one round ahead of execution.
  const uint64_t n = schedule_->buckets.size();
  while (ready_ < executed_ + n && missing_[ready_ % n] == 0) ++ready_;
}

const Schedule::Bucket& ScheduleCursor::take(std::vector<void*>* tokens) {
  const uint64_t n = schedule_->buckets.size();
  const Schedule::Bucket& bucket = schedule_->buckets[executed_ % n];
  tokens->clear();
  for (uint32_t e : bucket.entries) {
    Slot& slot = slots_[e];
    if (!slot.own) {
      tokens->push_back(nullptr);
      continue;
    }
    tokens->push_back(slot.waiting.front());
    slot.waiting.erase(slot.waiting.begin());
    slot.running = true;
    missing_[slot.bucket] += slot.waiting.empty();
  }
  ++executed_;
  advance();
  return bucket;
}

const Schedule::Bucket& ScheduleCursor::peek(std::vector<void*>* tokens) const {
  const Schedule::Bucket& bucket = schedule_->buckets[executed_ % schedule_->buckets.size()];
  tokens->clear();
  for (uint32_t e : bucket.entries) tokens->push_back(slots_[e].own && !slots_[e].waiting.empty() ? slots_[e].waiting.front() : nullptr);
  return bucket;
}

bool ScheduleCursor::stuck(const void* token) const {
  if (!anything_mine()) return false;
  const uint64_t n = schedule_->buckets.size();
  // Skip complete buckets, because they are waiting only for other ranks.
  for (uint64_t position = executed_; position < ready_; ++position) {
    for (uint32_t e : schedule_->buckets[position % n].entries) {
      if (!slots_[e].waiting.empty() && slots_[e].waiting.front() == token) return false;
    }
  }
  for (const Slot& slot : slots_) {
    if (std::find(slot.waiting.begin(), slot.waiting.end(), token) != slot.waiting.end()) return true;
  }
  return false;
}

std::vector<void*> ScheduleCursor::outstanding() const {
  std::vector<void*> out;
  for (const Slot& slot : slots_) out.insert(out.end(), slot.waiting.begin(), slot.waiting.end());
  return out;
}

}  // namespace hvd
