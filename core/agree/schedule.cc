#include "agree/schedule.h"

#include <algorithm>
#include <iterator>

#include "base/wire.h"

namespace hvd {

// ---- wire -----------------------------------------------------------------------------------------------------------------
void encode(const Schedule& s, std::string* out) {
  Writer w(out);
  w.put(s.id);
  w.put(static_cast<uint32_t>(s.entries.size()));
  for (const auto& e : s.entries) {
    w.put(e.set);
    w.put(e.kind);
    w.put(e.name);
    w.put(e.unnamed);
    w.put(e.face);
  }
  std::vector<Response> responses;
  w.put(static_cast<uint32_t>(s.buckets.size()));
  for (const auto& b : s.buckets) {
    w.put(b.entries);
    w.put(static_cast<uint32_t>(b.parts.size()));
    responses.insert(responses.end(), b.parts.begin(), b.parts.end());
  }
  encode(responses, out);
}

namespace {

// Are the names of its parts those of the bucket's entries?
bool belongs(const Schedule::Bucket& bucket, const std::vector<ScheduleEntry>& entries) {
  size_t at = 0;
  for (const Response& part : bucket.parts) {
    if (!part.error.ok() || part.kind > Kind::barrier || part.names.empty() || part.set != bucket.set()) return false;
    for (const std::string& name : part.names) {
      if (at >= bucket.entries.size()) return false;
      const ScheduleEntry& e = entries[bucket.entries[at++]];
      if (e.set != part.set || e.face != part.face || e.kind != part.kind || e.name != name) return false;
    }
  }
  return at == bucket.entries.size();
}

}  // namespace

bool decode(const std::string& bytes, Schedule* s) {
  Reader r(bytes.data(), bytes.data() + bytes.size());
  r.get(&s->id);
  s->entries.resize(r.count(11));
  for (auto& e : s->entries) {
    r.get(&e.set);
    r.get(&e.kind, Kind::barrier);
    r.get(&e.name);
    r.get(&e.unnamed);
    r.get(&e.face);
  }
  s->buckets.resize(r.count(8 + 48));  // its entries and the number of its parts here, the parts below
  std::vector<bool> placed(s->entries.size());
  std::vector<uint32_t> parts;  // how many each bucket has
  size_t total = 0;
  for (auto& b : s->buckets) {
    r.get(&b.entries);
    r.get(&parts.emplace_back(0));
    if (parts.back() == 0 || parts.back() > b.entries.size()) {
      r.fail();
      break;
    }
    total += parts.back();
    for (uint32_t e : b.entries) {
      if (e >= placed.size() || placed[e]) {
        r.fail();
        break;
      }
      placed[e] = true;
    }
  }
  // Each operation in one bucket, and at least one: positions are counted modulo their number.
  if (!r.ok() || s->buckets.empty() || std::find(placed.begin(), placed.end(), false) != placed.end()) return false;
  std::vector<Response> responses;
  const char* at = r.at();
  if (!decode(&at, bytes.data() + bytes.size(), &responses) || responses.size() != total) return false;
  auto next = std::make_move_iterator(responses.begin());
  for (size_t i = 0; i < parts.size(); next += parts[i++]) {
    s->buckets[i].parts.assign(next, next + parts[i]);
    if (!belongs(s->buckets[i], s->entries)) return false;
  }
  return true;
}

// ---- detector -------------------------------------------------------------------------------------------------------------
void ScheduleDetector::reset() { log_.clear(); }

// Operations after which short periods are considered again; the program may have become another one.
constexpr size_t kRecovery = 128;
// A schedule that has lasted for fewer operations than this may have been part of a longer period.
constexpr uint64_t kBrief = 1024;

void ScheduleDetector::note_revoked(uint64_t rounds, size_t operations) {
  constexpr uint64_t kLasting = 16;
  constexpr int kPatience = 8;
  reset();
  if (rounds >= kLasting) {
    failures_ = 0;
    least_ = 1;
    // Something that comes again and again in between, such as a barrier after every twenty equal calls, makes each of these schedules
    // pay for itself but hides the period that would last. Only every now and then, lest a program without one pays for the search.
    const bool brief = rounds * operations < kBrief;
    brief_ = brief ? brief_ + 1 : 0;
    if (!brief) patience_ = kBriefPatience;
    if (brief_ < patience_) return;
    brief_ = 0;
    patience_ = std::min(2 * patience_, 64 * kBriefPatience);
    least_ = operations + 1;
    recover_ = kRecovery;
    return;
  }
  brief_ = 0;
  least_ = operations + 1;
  recover_ = kRecovery;
  if (++failures_ <= kPatience) return;
  hold_ = size_t{16} << std::min(failures_ - kPatience, 10);
  least_ = 1;
}

void ScheduleDetector::feed(const Ready& ready, uint64_t identity) {
  if (capacity_ == 0) return;
  if (hold_ > 0) --hold_;
  if (recover_ > 0 && --recover_ == 0) least_ = 1;
  const uint64_t prefix = (log_.empty() ? 0 : log_.back().prefix) + identity;
  log_.push_back({identity, prefix, ready});
  if (log_.size() > 2 * capacity_ + 2) {
    log_.pop_front();
  }
}

// What one period looks like, apart from races between ranks: for each process set, the operations between two waits of the program as
// a sorted list, and these lists in order. Unnamed operations keep their order.
ScheduleDetector::Shape ScheduleDetector::shape_of(size_t from, size_t count) const {
  Shape shape;
  std::map<uint32_t, uint64_t> fence;
  for (size_t i = from; i < from + count; ++i) {
    const Token& t = log_[i];
    const uint32_t set = t.ready.response.set;
    auto& sections = shape.sections[set];
    const uint64_t waits = t.ready.fence >> kWeakFenceBits;
    if (sections.empty() || fence[set] != waits) sections.emplace_back();
    fence[set] = waits;
    sections.back().push_back(t.identity);
    if (t.ready.unnamed) shape.unnamed.push_back(t.identity);
  }
  for (auto& [set, sections] : shape.sections) {
    for (auto& section : sections) std::sort(section.begin(), section.end());
  }
  return shape;
}

// Are the last p operations a shorter period, too short to be proposed, several times over?
bool ScheduleDetector::repeats_within(size_t p) const {
  const size_t n = log_.size();
  auto sum = [&](size_t from, size_t to) {
    uint64_t total = 0;
    for (size_t i = from; i < to; ++i) total += log_[i].identity;
    return total;
  };
  for (size_t d = 1; d < least_ && 2 * d <= p; ++d) {
    if (p % d) continue;
    const uint64_t first = sum(n - p, n - p + d);
    bool same = true;
    for (size_t at = n - p + d; at < n && same; at += d) same = sum(at, at + d) == first;
    if (same) return true;
  }
  return false;
}

// Does some name stand for different operations in the last p? Ranks follow a schedule by names, and know one request by each.
bool ScheduleDetector::ambiguous(size_t p) const {
  std::map<std::string, uint64_t> known;
  for (size_t i = log_.size() - p; i < log_.size(); ++i) {
    const Token& t = log_[i];
    if (t.ready.unnamed) continue;
    const auto [it, fresh] =
        known.try_emplace(key_of(t.ready.response.set, t.ready.response.face, t.ready.response.names.front()), t.identity);
    if (!fresh && it->second != t.identity) return true;
  }
  return false;
}

// Where the program had waited for what was before, and not within a group.
bool ScheduleDetector::may_begin(size_t at) const {
  const Ready &before = log_[at - 1].ready, &here = log_[at].ready;
  return before.fence != here.fence && !(here.grouped() && before.unit == here.unit);
}

size_t ScheduleDetector::period_length() const {
  const size_t n = log_.size();
  if (hold_ > 0 || n < 3) return 0;
  auto prefix = [&](size_t i) { return i == 0 ? log_[0].prefix - log_[0].identity : log_[i - 1].prefix; };  // sum of the first i
  for (size_t p = least_; 2 * p + 1 <= n && p <= capacity_; ++p) {
    if (prefix(n) - prefix(n - p) != prefix(n - p) - prefix(n - 2 * p)) continue;
    if (may_begin(n - p) && may_begin(n - 2 * p) && !repeats_within(p) && shape_of(n - p, p) == shape_of(n - 2 * p, p))
      return ambiguous(p) ? 0 : p;
  }
  return 0;
}

std::vector<Ready> ScheduleDetector::period() const {
  const size_t p = period_length();
  std::vector<Ready> out;
  for (size_t i = log_.size() - p; i < log_.size(); ++i) out.push_back(log_[i].ready);
  return out;
}

Schedule make_schedule(uint64_t id, std::vector<Ready> period, const FuseOptions& options) {
  Schedule s;
  s.id = id;
  for (size_t i = 0; i < period.size(); ++i) {
    const Response& r = period[i].response;
    s.entries.push_back({r.set, r.kind, r.names.front(), period[i].unnamed, r.face});
  }
  std::vector<std::vector<size_t>> members;
  std::vector<Response> responses = fuse(period, options, &members);
  // A group that needs several responses is fused with nothing else, so each of these is of that group alone.
  std::map<uint64_t, size_t> bucket_of;  // by unit
  for (size_t i = 0; i < responses.size(); ++i) {
    const Ready& first = period[members[i].front()];
    const auto [at, fresh] = bucket_of.try_emplace(first.unit, s.buckets.size());
    if (fresh || !first.grouped()) s.buckets.emplace_back();
    Schedule::Bucket& bucket = fresh || !first.grouped() ? s.buckets.back() : s.buckets[at->second];
    bucket.parts.push_back(std::move(responses[i]));
    bucket.entries.insert(bucket.entries.end(), members[i].begin(), members[i].end());
  }
  return s;
}

// ---- cursor ---------------------------------------------------------------------------------------------------------------
namespace {

void make_key(uint32_t set, uint8_t face, const std::string& name, std::string* key) {
  const uint64_t scope = static_cast<uint64_t>(set) << 8 | face;
  key->assign(reinterpret_cast<const char*>(&scope), sizeof scope);
  key->append(name);
}

// "allreduce.noname.17" -> 17: unnamed entries are matched in the order in which they were submitted.
uint64_t number_of(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? 0 : std::strtoull(name.c_str() + dot + 1, nullptr, 10);
}

}  // namespace

ScheduleCursor::ScheduleCursor(std::shared_ptr<const Schedule> schedule, std::vector<const Request*> requests)
    : schedule_(std::move(schedule)), slots_(schedule_->entries.size()), missing_(schedule_->buckets.size()) {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (!requests[i]) continue;
    slots_[i].mine = true;
    slots_[i].request = *requests[i];
    const ScheduleEntry& e = schedule_->entries[i];
    if (e.unnamed) {
      unnamed_[stream_of(e.set, e.face, e.kind)].entries.push_back(i);
    } else {
      make_key(e.set, e.face, e.name, &key_);
      by_name_[key_].entries.push_back(i);
    }
  }
  for (uint32_t b = 0; b < missing_.size(); ++b) {
    for (uint32_t e : schedule_->buckets[b].entries) {
      slots_[e].bucket = b;
      missing_[b] += slots_[e].mine;
    }
  }
  for (auto& [key, stream] : unnamed_) {
    std::sort(stream.entries.begin(), stream.entries.end(),
              [&](uint32_t a, uint32_t b) { return number_of(schedule_->entries[a].name) < number_of(schedule_->entries[b].name); });
    for (uint32_t e : stream.entries) slots_[e].stream = &stream;
  }
  // A name is used again only when its last use is over, so these come in the order in which they were negotiated.
  for (auto& [key, stream] : by_name_) {
    for (uint32_t e : stream.entries) slots_[e].stream = stream.entries.size() > 1 ? &stream : nullptr;
  }
  advance();
}

uint32_t ScheduleCursor::find(const Request& q) const {
  if (q.unnamed) {
    auto it = unnamed_.find(stream_of(q.set, q.face, q.kind));
    return it == unnamed_.end() ? kNoEntry : it->second.next();
  }
  make_key(q.set, q.face, q.name, &key_);
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

// The only thing that happens for every tensor of every step.
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
  // At most one round ahead of what has been executed; that is all a program that waits for its gradients can be. So what waits in a
  // slot is for the position looked at: earlier rounds of its bucket have been taken.
  const uint64_t n = schedule_->buckets.size();
  while (ready_ < executed_ + n && missing_[ready_ % n] == 0) ++ready_;
}

const Schedule::Bucket& ScheduleCursor::take(std::vector<void*>* tokens) {
  const uint64_t n = schedule_->buckets.size();
  const Schedule::Bucket& bucket = schedule_->buckets[executed_ % n];
  tokens->clear();
  for (uint32_t e : bucket.entries) {
    Slot& slot = slots_[e];
    if (!slot.mine) {
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
  for (uint32_t e : bucket.entries) tokens->push_back(slots_[e].mine && !slots_[e].waiting.empty() ? slots_[e].waiting.front() : nullptr);
  return bucket;
}

bool ScheduleCursor::stuck(const void* token) const {
  if (!anything_mine()) return false;
  const uint64_t n = schedule_->buckets.size();
  // Buckets that are ready here only wait for peers.
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
