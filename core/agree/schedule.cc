#include "agree/schedule.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/wire.h"

namespace hvd {

Schedule make_schedule(uint64_t id, std::vector<Ready> period, const FuseOptions& options) {
  Schedule s;
  s.id = id;
  for (size_t i = 0; i < period.size(); ++i) {
    const Response& r = period[i].response;
    s.entries.push_back({r.set, r.kind, r.names.front(), period[i].unnamed, r.frontend});
  }
  std::vector<std::vector<size_t>> members;
  std::vector<Response> responses = fuse(period, options, &members);
  // Index of the bucket of each group, keyed by Ready::unit. All responses of a group go to the same bucket.
  std::map<uint64_t, size_t> bucket_of;
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

void encode(const Schedule& s, std::string* out) {
  Writer w(out);
  w.put(s.id);
  w.put(static_cast<uint32_t>(s.entries.size()));
  for (const auto& e : s.entries) {
    w.put(e.set);
    w.put(e.kind);
    w.put(e.name);
    w.put(e.unnamed);
    w.put(e.frontend);
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

// True if the responses of the bucket have exactly the names of its entries.
bool belongs(const Schedule::Bucket& bucket, const std::vector<ScheduleEntry>& entries) {
  size_t at = 0;
  for (const Response& part : bucket.parts) {
    if (!part.error.ok() || part.kind > Kind::barrier || part.names.empty() || part.set != bucket.set()) return false;
    for (const std::string& name : part.names) {
      if (at >= bucket.entries.size()) return false;
      const ScheduleEntry& e = entries[bucket.entries[at++]];
      if (e.set != part.set || e.frontend != part.frontend || e.kind != part.kind || e.name != name) return false;
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
    r.get(&e.frontend);
  }
  // An encoded bucket has at least 56 bytes: 8 for two counts (entries and parts) and 48 for one part.
  s->buckets.resize(r.count(8 + 48));
  std::vector<bool> placed(s->entries.size());
  std::vector<uint32_t> parts;
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
  // Every operation must be in exactly one bucket. At least one bucket must exist, because positions are taken modulo
  // the number of buckets.
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

}  // namespace hvd
