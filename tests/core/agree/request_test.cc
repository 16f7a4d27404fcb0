// Encoding: round trips, and rejection of bytes that encode() would not write.
#include "agree/request.h"

#include <doctest/doctest.h>

#include <random>

#include "agree/schedule.h"

using namespace hvd;

namespace {

Request rich_request() {
  Request q;
  q.kind = Kind::alltoall;
  q.set = 7;
  q.frontend = 2;
  q.name = "layer.1/weight";
  q.dtype = DType::bfloat16;
  q.op = ReduceOp::product;
  q.wire = WireFormat::bf16;
  q.device = DeviceKind::cuda;
  q.across_hosts = true;
  q.root = -3;
  q.prescale = 0.25;
  q.postscale = -1e300;
  q.shape = {3, 0, int64_t{1} << 40};
  q.splits = {1, 2};
  q.group = "g";
  q.group_size = 9;
  q.fence = uint64_t{1} << 60;
  return q;
}

Response rich_response() {
  Response r;
  r.kind = Kind::allgather;
  r.set = 3;
  r.frontend = 255;
  r.wire = WireFormat::int8;
  r.device = DeviceKind::cuda;
  r.across_hosts = r.partial = true;
  r.names = {"a", "", std::string(1000, 'x')};
  r.shapes = {{1, 2}, {}, {5}};
  r.sizes = {4, -1};
  r.error = Status(Code::mismatch, "why");
  r.payload = std::string("\0bytes", 6);
  return r;
}

Schedule rich_schedule() {
  Schedule s;
  s.id = 77;
  s.entries = {{0, Kind::allreduce, "a", false, 1}, {3, Kind::barrier, "barrier.noname.4", true}, {0, Kind::allreduce, "b", false, 1}};
  Response two, one;
  two.frontend = 1;
  two.names = {"a", "b"};
  two.shapes = {{1}, {2, 2}};
  one.kind = Kind::barrier;
  one.set = 3;
  one.names = {"barrier.noname.4"};
  one.shapes = {{}};
  s.buckets = {{{two}, {0, 2}}, {{one}, {1}}};
  return s;
}

// A bucket of two parts: two allreduces of one group, of different types.
Schedule group_of_two_types() {
  Schedule s;
  s.id = 78;
  Response floats, bytes;
  for (const char* name : {"a", "b", "c"}) s.entries.push_back({0, Kind::allreduce, name, false});
  floats.names = {"a", "c"};
  floats.shapes = {{1}, {2}};
  bytes.dtype = DType::uint8;
  bytes.names = {"b"};
  bytes.shapes = {{7}};
  s.buckets = {{{floats, bytes}, {0, 2, 1}}};
  return s;
}

template <class T>
bool decodes(const std::string& bytes, std::vector<T>* out) {
  const char* at = bytes.data();
  return decode(&at, bytes.data() + bytes.size(), out) && at == bytes.data() + bytes.size();
}

// Are they read again? Where one is refused, so is the other.
bool accepted(const Request& q, const Response& r) {
  std::string requests, responses;
  encode(std::vector<Request>{q}, &requests);
  encode(std::vector<Response>{r}, &responses);
  std::vector<Request> back;
  std::vector<Response> more;
  const bool good = decodes(requests, &back);
  CHECK(decodes(responses, &more) == good);
  return good;
}

}  // namespace

TEST_CASE("requests come back as they were") {
  const Request q = rich_request();
  Request plain;
  plain.unnamed = true;
  std::string bytes;
  encode(std::vector<Request>{q, plain}, &bytes);
  std::vector<Request> back;
  REQUIRE(decodes(bytes, &back));
  REQUIRE(back.size() == 2);
  CHECK(back[0].same_signature(q));
  CHECK(back[0].fence == q.fence);
  CHECK(back[0].group == "g");
  CHECK(back[0].frontend == 2);
  CHECK(back[1].same_signature(plain));
  CHECK(!back[0].same_signature(back[1]));
}

TEST_CASE("responses come back as they were") {
  const Response r = rich_response();
  std::string bytes;
  encode(std::vector<Response>{r, Response{}}, &bytes);
  std::vector<Response> back;
  REQUIRE(decodes(bytes, &back));
  REQUIRE(back.size() == 2);
  CHECK(back[0].kind == r.kind);
  CHECK(back[0].frontend == 255);
  CHECK(back[0].wire == r.wire);
  CHECK(back[0].device == r.device);
  CHECK(back[0].across_hosts);
  CHECK(back[0].partial);
  CHECK(!back[1].partial);
  CHECK(back[0].names == r.names);
  CHECK(back[0].shapes == r.shapes);
  CHECK(back[0].sizes == r.sizes);
  CHECK(back[0].error.code() == Code::mismatch);
  CHECK(back[0].error.message() == "why");
  CHECK(back[0].payload == r.payload);
  CHECK(back[1].error.ok());
}

TEST_CASE("schedules come back as they were; entries that do not exist are refused") {
  Schedule s = rich_schedule(), back;
  std::string bytes;
  encode(s, &bytes);
  REQUIRE(decode(bytes, &back));
  CHECK(back.id == 77);
  REQUIRE(back.entries.size() == 3);
  CHECK(back.entries[1].unnamed);
  CHECK(back.entries[2].frontend == 1);
  REQUIRE(back.buckets.size() == 2);
  CHECK(back.buckets[0].entries == std::vector<uint32_t>{0, 2});
  CHECK(back.buckets[0].parts[0].shapes == s.buckets[0].parts[0].shapes);
  const Schedule good = s;
  auto refused = [&](auto change) {
    s = good;
    change(s);
    bytes.clear();
    encode(s, &bytes);
    return !decode(bytes, &back);
  };
  CHECK(!refused([](Schedule&) {}));
  CHECK(refused([](Schedule& x) { x.buckets[0].entries[1] = 3; }));
  CHECK(refused([](Schedule& x) { x.buckets[0].entries[1] = 0; }));  // one entry twice, another never
  CHECK(refused([](Schedule& x) { x.buckets.clear(); }));  // positions modulo zero
  CHECK(refused([](Schedule& x) { x = Schedule{}; }));
  CHECK(refused([](Schedule& x) { x.buckets[0].parts[0].names[0] = "another"; }));
  CHECK(refused([](Schedule& x) { x.buckets[1].parts[0].set = 0; }));
  CHECK(refused([](Schedule& x) { x.buckets[1].parts[0].kind = Kind::add_set; }));
  CHECK(refused([](Schedule& x) { x.buckets[0].parts.clear(); }));
  CHECK(refused([](Schedule& x) { x.buckets.push_back(x.buckets[1]); }));
  CHECK(refused([](Schedule& x) { x.entries.push_back({0, Kind::allreduce, "in no bucket"}); }));
  CHECK(refused([](Schedule& x) { x.buckets[0].parts[0].error = Status(Code::invalid_argument, "shapes differ"); }));
  CHECK(refused([](Schedule& x) { x.buckets[1].parts[0].kind = x.entries[1].kind = Kind::join; }));
}

TEST_CASE("a bucket's parts come back in order; they are of its set and have its names") {
  const Schedule good = group_of_two_types();
  Schedule back;
  auto refused = [&](auto change) {
    Schedule s = good;
    change(s.buckets[0]);
    std::string bytes;
    encode(s, &bytes);
    return !decode(bytes, &back);
  };
  REQUIRE(!refused([](Schedule::Bucket&) {}));
  REQUIRE(back.buckets.at(0).parts.size() == 2);
  CHECK(back.buckets[0].parts[0].names == std::vector<std::string>{"a", "c"});
  CHECK(back.buckets[0].parts[1].dtype == DType::uint8);
  CHECK(refused([](Schedule::Bucket& b) { b.parts.pop_back(); }));
  CHECK(refused([](Schedule::Bucket& b) { std::swap(b.parts[0], b.parts[1]); }));
  CHECK(refused([](Schedule::Bucket& b) { b.parts[1].set = 1; }));
  CHECK(refused([](Schedule::Bucket& b) { b.parts[1].names.clear(), b.parts[1].shapes.clear(); }));
  CHECK(refused([](Schedule::Bucket& b) { b.parts.push_back(b.parts[1]); }));
  Schedule two_sets = good;
  two_sets.buckets[0].parts[1].set = two_sets.entries[1].set = 2;
  std::string bytes;
  encode(two_sets, &bytes);
  CHECK(!decode(bytes, &back));
}

TEST_CASE("shapes that no tensor has are refused") {
  auto possible = [](std::vector<int64_t> shape) {
    Request q;
    q.shape = shape;
    Response r;
    r.names = {"a"};
    r.shapes = {shape};
    return accepted(q, r);
  };
  CHECK(possible({}));
  CHECK(possible({int64_t{1} << 40, 1 << 10}));
  CHECK(possible({0, int64_t{1} << 40, int64_t{1} << 40}));
  CHECK(!possible({-1}));
  CHECK(!possible({0, -1}));
  CHECK(!possible({int64_t{1} << 40, int64_t{1} << 40}));
  CHECK(!possible({INT64_MAX, 2}));
  Request empty;
  empty.shape = {int64_t{1} << 40, int64_t{1} << 40, 0};
  CHECK(empty.elements() == 0);
}

TEST_CASE("every truncation is refused") {
  std::string requests, responses, schedule;
  encode(std::vector<Request>{rich_request(), rich_request()}, &requests);
  encode(std::vector<Response>{rich_response()}, &responses);
  encode(rich_schedule(), &schedule);
  std::vector<Request> q;
  std::vector<Response> r;
  for (size_t n = 0; n < requests.size(); ++n) CHECK(!decodes(requests.substr(0, n), &q));
  for (size_t n = 0; n < responses.size(); ++n) CHECK(!decodes(responses.substr(0, n), &r));
  for (size_t n = 0; n < schedule.size(); ++n) {
    Schedule s;
    CHECK(!decode(schedule.substr(0, n), &s));
  }
}

TEST_CASE("random and damaged bytes neither crash nor allocate much") {
  std::mt19937_64 random(5);
  std::string good_requests, good_responses, good_schedule;
  encode(std::vector<Request>{rich_request(), rich_request()}, &good_requests);
  encode(std::vector<Response>{rich_response()}, &good_responses);
  encode(rich_schedule(), &good_schedule);
  size_t accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string noise(random() % 200, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    for (const std::string* base : {&noise, &good_requests, &good_responses, &good_schedule}) {
      std::string bytes = *base;
      for (size_t flips = random() % 4; flips > 0 && !bytes.empty(); --flips) bytes[random() % bytes.size()] = static_cast<char>(random());
      std::vector<Request> q;
      std::vector<Response> r;
      Schedule s;
      const bool good = decodes(bytes, &q);
      accepted += good + decodes(bytes, &r) + decode(bytes, &s);
      for (const Request& one : q) CHECK((!good || one.kind <= Kind::remove_set));
      // Allocated elements are proportional to the bytes received.
      CHECK(q.size() * 48 <= bytes.size());
      CHECK(r.size() * 48 <= bytes.size());
      CHECK(s.buckets.size() * 48 <= bytes.size());
    }
  }
  CHECK(accepted > 0);
  // A length greater than the remaining data.
  std::string huge("\xff\xff\xff\xff", 4);
  huge.resize(4096, '\xff');
  std::vector<Request> q;
  CHECK(!decodes(huge, &q));
  CHECK(q.empty());
}

TEST_CASE("a signature holds everything but fence and an unnamed operation's number") {
  const Request base = rich_request();
  auto differs = [&](auto change) {
    Request other = base;
    change(other);
    CHECK(!base.same_signature(other));
  };
  differs([](Request& q) { q.kind = Kind::allgather; });
  differs([](Request& q) { q.set = 1; });
  differs([](Request& q) { q.name = "x"; });
  differs([](Request& q) { q.dtype = DType::int8; });
  differs([](Request& q) { q.op = ReduceOp::sum; });
  differs([](Request& q) { q.wire = WireFormat::int8; });
  differs([](Request& q) { q.device = DeviceKind::host; });
  differs([](Request& q) { q.across_hosts = false; });
  differs([](Request& q) { q.root = 1; });
  differs([](Request& q) { q.prescale = 1; });
  differs([](Request& q) { q.postscale = 1; });
  differs([](Request& q) { q.shape[0] = 4; });
  differs([](Request& q) { q.splits[0] = 4; });
  differs([](Request& q) { q.group_size = 1; });
  Request later = base;
  later.fence = 1;
  CHECK(base.same_signature(later));
  CHECK(base.signature_hash() == later.signature_hash());
  Request a = base, b = base;
  a.unnamed = b.unnamed = true;
  a.name = "allreduce.noname.1";
  b.name = "allreduce.noname.2";
  CHECK(a.same_signature(b));
  CHECK(a.signature_hash() == b.signature_hash());
}
