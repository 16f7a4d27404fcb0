#include "engine/device/words.h"

#include <map>
#include <mutex>

namespace hvd {

// Registration of the shared memory, which is possible only once per process.
struct Words::Registered {
  std::shared_ptr<Segment> segment;
  std::shared_ptr<Device> device;
  std::byte* on_device = nullptr;

  ~Registered() {
    const Device::Turn turn(*device);
    if (on_device && turn.status().ok()) device->unregister_host(segment->words(0));
  }
  size_t bytes() const { return static_cast<size_t>(segment->spec().local_size) * Segment::kWordsBytes; }
};

Status Words::open(std::shared_ptr<Segment> segment, const std::shared_ptr<Device>& device, int local_rank, std::unique_ptr<Words>* out) {
  static_assert(kMost * sizeof(Counter) <= Segment::kWordsBytes);
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::map<std::pair<Segment*, Device*>, std::weak_ptr<const Registered>>;
  std::lock_guard lock(mutex);
  std::erase_if(all, [](const auto& entry) { return entry.second.expired(); });
  auto& known = all[{segment.get(), device.get()}];
  std::shared_ptr<const Registered> registered = known.lock();
  if (!registered) {
    auto made = std::make_shared<Registered>();
    made->segment = std::move(segment);
    made->device = device;
    HVD_RETURN_IF_ERROR(device->register_host(made->segment->words(0), made->bytes(), &made->on_device));
    registered = std::move(made);
    known = registered;
  }
  out->reset(new Words(std::move(registered), local_rank));
  return {};
}

Words::Counter& Words::counter(int local_rank, size_t word) const {
  return reinterpret_cast<Counter*>(registered_->segment->words(local_rank))[word];
}

std::byte* Words::on_device(int local_rank, size_t word) const {
  const auto* host = reinterpret_cast<std::byte*>(&counter(local_rank, word).reached);
  return registered_->on_device + (host - registered_->segment->words(0));
}

Status Words::tell(size_t word, Device::Stream stream) {
  std::atomic<uint32_t>& told = counter(local_rank_, word).told;
  const uint32_t value = told.load(std::memory_order_relaxed) + 1;
  HVD_RETURN_IF_ERROR(registered_->device->write_word(on_device(local_rank_, word), value, stream));
  told.store(value, std::memory_order_release);
  return {};
}

Status Words::await(int local_rank, size_t word, Device::Stream stream) {
  const uint32_t value = counter(local_rank, word).told.load(std::memory_order_acquire);
  return registered_->device->await_word(on_device(local_rank, word), value, stream);
}

void Words::release(int local_rank, size_t word) const {
  constexpr uint32_t kBeyond = uint32_t{1} << 30;
  Counter& c = counter(local_rank, word);
  c.reached.store(c.told.load(std::memory_order_acquire) + kBeyond, std::memory_order_seq_cst);
}

void Words::release() const {
  for (int rank = 0; rank < registered_->segment->spec().local_size; ++rank) {
    for (size_t word = 0; word < kMost; ++word) release(rank, word);
  }
}

}  // namespace hvd
