// Fuzz target for negotiation messages. Every message that can be decoded must survive encoding and decoding unchanged.
// The first byte selects the type of message.
#include "agree/schedule_cursor.h"
#include "fuzz.h"

using namespace hvd;

namespace {

template <class T>
void back_and_forth(const char* begin, const char* end) {
  std::vector<T> items, again;
  const char* at = begin;
  if (!decode(&at, end, &items)) return;
  std::string bytes, more;
  encode(items, &bytes);
  const char* second = bytes.data();
  fuzz::require(decode(&second, bytes.data() + bytes.size(), &again) && second == bytes.data() + bytes.size());
  encode(again, &more);
  fuzz::require(bytes == more);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const char* begin = reinterpret_cast<const char*>(data) + 1;
  const char* end = begin + size - 1;
  switch (data[0] % 3) {
    case 0: back_and_forth<Request>(begin, end); break;
    case 1: back_and_forth<Response>(begin, end); break;
    default: {
      auto schedule = std::make_shared<Schedule>();
      if (!decode(std::string(begin, end), schedule.get())) break;
      std::string bytes, more;
      encode(*schedule, &bytes);
      Schedule again;
      fuzz::require(decode(bytes, &again));
      encode(again, &more);
      fuzz::require(bytes == more);
      // Without any requests of its own, a rank takes part in no operation of the schedule, but it must still be able
      // to follow the schedule.
      ScheduleCursor cursor(schedule, std::vector<const Request*>(schedule->entries.size(), nullptr));
      fuzz::require(cursor.find(Request{}) == ScheduleCursor::kNoEntry);
    }
  }
  return 0;
}
