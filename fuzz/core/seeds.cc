// Writer of the initial corpus, which consists of valid messages between ranks. Usage: fuzz_seeds CORPUS_DIRECTORY
#include <filesystem>
#include <fstream>

#include "agree/schedule.h"
#include "base/wire.h"
#include "engine/control.h"
#include "trace/answer.h"
#include "trace/clock.h"

using namespace hvd;

namespace {

std::filesystem::path root;

void write(const std::string& target, const std::string& name, const std::string& bytes) {
  std::filesystem::create_directories(root / target);
  std::ofstream(root / target / name, std::ios::binary) << bytes;
}

std::string frame(FrameType type, int32_t origin, const std::string& payload) {
  std::string out;
  Writer w(&out);
  w.put(static_cast<uint32_t>(payload.size()));
  w.put(origin);
  w.put(static_cast<uint32_t>(type));
  return out + payload;
}

template <class... T>
std::string packed(T... values) {
  std::string out;
  Writer w(&out);
  (w.put(values), ...);
  return out;
}

Request request(Kind kind, const char* name, std::vector<int64_t> shape) {
  Request q;
  q.kind = kind;
  q.name = name;
  q.shape = std::move(shape);
  return q;
}

// Return the requests that driver.cc also uses.
std::vector<Request> requests(int rank) {
  std::vector<Request> all = {request(Kind::allreduce, "a", {2, 3}),
                              request(Kind::allreduce, "b", {5}),
                              request(Kind::allgather, "g", {rank + 1, 2}),
                              request(Kind::alltoall, "t", {6}),
                              request(Kind::broadcast, "c", {3}),
                              request(Kind::reducescatter, "r", {4}),
                              request(Kind::barrier, "barrier.noname.0", {})};
  all[3].splits = {1, 2, 3};
  all[6].unnamed = true;
  return all;
}

Response response(const Request& q) {
  Response r;
  r.kind = q.kind;
  r.names = {q.name};
  r.shapes = {q.shape};
  if (q.kind == Kind::allgather) r.sizes = {1, 2, 3};
  if (q.kind == Kind::alltoall) r.sizes = {1, 2, 3, 1, 2, 3, 1, 2, 3};
  return r;
}

std::string requested(int rank, const std::vector<Request>& list) {
  std::string payload = packed(uint64_t{0});
  encode(list, &payload);
  return frame(FrameType::request, rank, payload);
}

std::string decided(const std::vector<Response>& list) {
  std::string payload = packed(uint64_t{0});
  encode(list, &payload);
  return frame(FrameType::responses, 0, payload);
}

}  // namespace

int main(int, char** arguments) {
  root = arguments[1];
  std::vector<Response> responses;
  Schedule schedule;
  schedule.id = 1;
  for (const Request& q : requests(1)) {
    responses.push_back(response(q));
    schedule.entries.push_back({0, q.kind, q.name, q.unnamed, 0});
    schedule.buckets.push_back({{responses.back()}, {static_cast<uint32_t>(schedule.entries.size() - 1)}});
  }
  Response two = responses[0];
  two.names.push_back("b");
  two.shapes.push_back({5});
  Response failed = responses[0];
  failed.error = Status(Code::mismatch, "ranks disagree");
  Request add = request(Kind::add_set, "add_process_set.noname.0", {});
  add.splits = {0, 2};
  add.unnamed = true;
  Response added = response(add);
  added.sizes = {1, 1, 0, 1};
  Response adopted;
  adopted.kind = Kind::adopt_schedule;
  encode(schedule, &adopted.payload);

  std::string bytes(1, '\0');
  encode(requests(1), &bytes);
  write("messages", "requests", bytes);
  bytes = '\1';
  encode(responses, &bytes);
  write("messages", "responses", bytes);
  write("messages", "schedule", '\2' + adopted.payload);

  const std::string root_of_two("\0\x80", 2), child("\1\0", 2);
  const std::string bye = packed(uint64_t{3}, Code::shutdown, std::string("has left"));
  const std::string lost = packed(uint64_t{3}, Code::peer_lost, std::string("was lost"), int32_t{1});
  for (size_t i = 0; i < responses.size(); ++i) {
    write("driver", "announce-" + std::to_string(i), root_of_two + requested(1, {requests(1)[i]}) + requested(2, {requests(2)[i]}));
    write("driver", "respond-" + std::to_string(i), child + decided({responses[i]}));
  }
  write("driver", "announce-all", root_of_two + requested(1, requests(1)) + requested(2, requests(2)));
  write("driver", "announce-set", root_of_two + requested(1, {add}) + requested(2, {add}));
  write("driver", "join", root_of_two + requested(1, {request(Kind::join, "", {})}) + requested(2, {request(Kind::join, "", {})}));
  write("driver", "ready",
        root_of_two + frame(FrameType::ready, 1, packed(uint64_t{1}, uint64_t{5})) +
            frame(FrameType::revoke, 2, packed(uint64_t{1}, true)) + frame(FrameType::settled, 2, packed(uint64_t{0})));
  write("driver", "bye", root_of_two + frame(FrameType::bye, 1, bye) + frame(FrameType::abort, 2, lost));
  write("driver", "respond-all", child + decided(responses) + decided(responses) + decided(responses));
  write("driver", "respond-fused", child + decided({two, failed}));
  write("driver", "respond-set", child + decided({added}));
  write("driver", "respond-schedule",
        child + decided(responses) + decided({adopted}) + frame(FrameType::go, 0, packed(uint64_t{1}, uint64_t{7})) +
            frame(FrameType::revoked, 0, packed(uint64_t{1}, uint64_t{7})));
  // Operations with different dtypes cannot share a response, so this group needs a bucket with two responses.
  Response bytes_part = responses[0];
  bytes_part.names = {"c"};
  bytes_part.dtype = DType::uint8;
  Schedule group;
  group.id = 2;
  for (const std::string& name : {std::string("b"), two.names.front(), std::string("c")})
    group.entries.push_back({0, two.kind, name, false, 0});
  group.buckets.push_back({{two, bytes_part}, {1, 0, 2}});
  Response grouped;
  grouped.kind = Kind::adopt_schedule;
  encode(group, &grouped.payload);
  write("messages", "schedule-of-a-group", '\2' + grouped.payload);
  write("driver", "respond-group", child + decided({two, bytes_part}) + decided({grouped}));
  write("driver", "respond-stalled", child + frame(FrameType::stalled, 0, packed(uint64_t{0}, std::vector<std::string>{"0/a", "0/b"})));
  write("driver", "respond-bye", child + frame(FrameType::bye, 2, bye) + frame(FrameType::ack, 0, ""));

  bytes = '\x01';
  for (size_t length : {3, 0, 70}) {
    std::string record = packed(static_cast<uint32_t>(length)) + std::string(length, '\4');
    bytes += record + std::string(16, static_cast<char>(length & 3));
  }
  write("secure_link", "records", bytes);
  write("notes", "question", '\0' + Question{42, {0, 3, 17}, {5}}.text());
  write("notes", "question-without-ranks", '\0' + std::string("1;;"));
  const std::string clock = packed(int64_t{500'000});
  write("notes", "clock-asked", '\1' + clock);
  write("notes", "clock-told", '\1' + *ClockOffset::answer(clock, 700'000));
  write("secure_link", "too-long", '\2' + packed(uint32_t{70000}) + std::string(100, 'x'));
}
