// The timeline's text.
#include "trace/timeline_text.h"

#include <doctest/doctest.h>

#include "json_reader.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

Request request_of(const std::string& name, Kind kind = Kind::allreduce) {
  Request q;
  q.name = name;
  q.kind = kind;
  q.shape = {2, 3};
  return q;
}

std::string lines(const std::string& text) { return "[" + text.substr(0, text.size() - std::min<size_t>(2, text.size())) + "]"; }

TEST_CASE("the life of a tensor as text") {
  TimelineText text({1, 2, "host", 1'000'000, 5, 77});
  std::string out;
  const std::vector<Request> requests{request_of("allreduce.x")};
  const auto tensors = TimelineTensors::of(requests);
  text.ready(1'001'500, 0, *tensors, &out);
  text.ready(1'002'000, 1, *tensors, &out);
  text.agreed(1'003'000, *tensors, &out);
  text.started(1'004'000, {9, 24, 0, "ring", {}}, *tensors, &out);
  text.entered(1'004'500, Phase::carry, *tensors, &out);
  text.finished(1'009'000, true, *tensors, &out);
  CHECK(out ==
        "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"allreduce.x\"}},\n"
        "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":1}},\n"
        "{\"ph\":\"B\",\"pid\":1,\"ts\":1.500,\"name\":\"NEGOTIATE_ALLREDUCE\"},\n"
        "{\"ph\":\"X\",\"pid\":1,\"ts\":1.500,\"name\":\"0\",\"dur\":0},\n"
        "{\"ph\":\"X\",\"pid\":1,\"ts\":2.000,\"name\":\"1\",\"dur\":0},\n"
        "{\"ph\":\"E\",\"pid\":1,\"ts\":3.000},\n"
        "{\"ph\":\"B\",\"pid\":1,\"ts\":3.000,\"name\":\"ALLREDUCE\",\"args\":{\"number\":9,\"algorithm\":\"ring\",\"bytes\":24,"
        "\"tensors\":1}},\n"
        "{\"ph\":\"B\",\"pid\":1,\"ts\":3.000,\"name\":\"QUEUE\"},\n"
        "{\"ph\":\"E\",\"pid\":1,\"ts\":4.000},\n"
        "{\"ph\":\"B\",\"pid\":1,\"ts\":4.500,\"name\":\"GLOO_ALLREDUCE\"},\n"
        "{\"ph\":\"E\",\"pid\":1,\"ts\":9.000},\n"
        "{\"ph\":\"E\",\"pid\":1,\"ts\":9.000,\"args\":{\"dtype\":\"float32\",\"shape\":\"[2, 3]\"}},\n");
  // In a schedule: since it was submitted. Clocks read by two threads may appear to go back.
  out.clear();
  text.started(1'020'000, {10, 24, 4, "shm", {1'012'000}}, *tensors, &out);
  text.finished(1'019'000, true, *tensors, &out);
  CHECK(out.find("\"ts\":12.000,\"name\":\"ALLREDUCE\",\"args\":{\"number\":10,") != std::string::npos);
  CHECK(out.find("\"E\",\"pid\":1,\"ts\":20.000,\"args\"") != std::string::npos);
  CHECK(JsonReader::read(lines(out)));
}

TEST_CASE("any name is valid text, and nothing is left open where events are missing") {
  TimelineText text({0, 1, "h\"ost\n", 0, 0, 0});
  std::string out;
  text.begin(&out);
  const std::string names[] = {"a\"b\\c", "two\nlines\ttab", "Gewichte.größe.重み", std::string("zero\0byte", 9), "\xff\xfe", ""};
  std::vector<Request> requests;
  for (const std::string& name : names) requests.push_back(request_of(name));
  const auto tensors = TimelineTensors::of(requests);
  text.ready(10, 0, *tensors, &out);
  text.failed(20, *tensors, "a \"reason\"\n", &out);
  text.started(30, {}, *tensors, &out);
  text.entered(31, Phase::copy_in, *tensors, &out);
  text.lost(40, 5, &out);
  text.finished(50, true, *tensors, &out);  // of operations that are no longer known
  text.schedule_begun(60, 1, 2, 3, &out);
  text.schedule_round(61, 0, &out);
  text.step(62, 7, &out);
  text.paused(70, &out);
  text.cycle(80, &out);
  text.ended(90, "\"why\"", &out);
  const auto json = JsonReader::read(lines(out));
  REQUIRE(json);
  std::map<std::string, int> seen;
  std::map<double, int> depth;
  for (const Json& e : json->items) {
    if (e["name"].text == "process_name") ++seen[e["args"]["name"].text];
    depth[e["pid"].number] += e["ph"].text == "B" ? 1 : e["ph"].text == "E" ? -1 : 0;
  }
  for (const auto& [pid, open] : depth) CHECK(open == 0);
  for (size_t i = 0; i < 4; ++i) CHECK(seen[names[i]] == 1);
  CHECK(seen["\xEF\xBF\xBD\xEF\xBF\xBD"] == 1);
}

}  // namespace
