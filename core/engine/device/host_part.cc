#include "engine/device/host_part.h"

#include <algorithm>
#include <atomic>

namespace hvd {

uint64_t new_carrier(const std::vector<OperationPtr>& operations) {
  static std::atomic<uint64_t> last{0};
  const uint64_t number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  for (const OperationPtr& op : operations) op->on_device->carried.store(number, std::memory_order_relaxed);
  return number;
}

OperationPtr host_part(Request request, std::string name, uint64_t carrier) {
  auto op = std::make_shared<Operation>();
  op->request = std::move(request);
  Request& q = op->request;
  q.name = std::move(name);
  q.device = DeviceKind::host;
  q.group.clear();
  q.group_size = 0;
  q.unnamed = false;
  op->carries = carrier;
  op->awaited = true;                      // its caller already waits: negotiate at once
  op->on_done = [](Operation&, void*) {};  // no caller will wait for it, see Lookout
  return op;
}

void submit_host_part(const OperationPtr& part, Submissions* submissions, const Observers& observers) {
  bool wake = false;
  observers.stamp(*part);
  observers.tell_submission(&Observer::submitted, *part);
  if (Status s = submissions->submit(part, &wake); !s.ok()) part->complete(std::move(s));
}

double resting_seconds_after(Clock::time_point begun) {
  constexpr double kLeast = 50e-6, kMost = 1e-3;
  const double age = std::chrono::duration<double>(Clock::now() - begun).count();
  return std::clamp(age / 8, kLeast, kMost);
}

}  // namespace hvd
