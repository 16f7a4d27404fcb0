// Fuzz target for messages between ranks that are handled without Python: rank 0's questions about hangs, and clock
// readings of other ranks. The first byte selects the type of message.
#include "fuzz.h"
#include "trace/answer.h"
#include "trace/clock.h"

using namespace hvd;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view note(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    const auto question = Question::parse(note);
    if (!question) return 0;
    const auto again = Question::parse(question->text());
    fuzz::require(again && again->number == question->number && again->full == question->full && again->brief == question->brief);
    return 0;
  }
  if (const auto answer = ClockOffset::answer(note, 1'000'000)) {
    ClockOffset asked;
    asked.hear(*answer, 2'000'000);
  }
  ClockOffset offset;
  for (int64_t at = 0; at < 2 * ClockOffset::kInARow; ++at) {
    const auto known = offset.hear(note, at * 1'000'000);
    fuzz::require(!known || known->error > 0);
  }
  return 0;
}
