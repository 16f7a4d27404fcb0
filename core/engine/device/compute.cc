#include "engine/device/compute.h"

#include <algorithm>
#include <string>
#include <vector>

namespace hvd {
namespace {

uint64_t address(const std::byte* p) { return reinterpret_cast<uint64_t>(p); }
kernels::Scaling scaling(const Scale& scale) { return kernels::scaling_of(scale.factor, scale.divisor); }

}  // namespace

Status Compute::reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                       uint64_t begin, uint64_t end, const Scale& scale, Device::Stream stream) {
  if (begin == end || destinations.empty()) return {};
  if (sources.empty() || sources.size() > kMax || destinations.size() > kMax || !reduces(op)) {
    return Status(Code::internal, "a reduction must have 1 to " + std::to_string(kMax) + " sources and at most as many destinations, got " +
                                      std::to_string(sources.size()) + " and " + std::to_string(destinations.size()));
  }
  kernels::ReduceParameters p{};
  std::ranges::transform(sources, p.sources, address);
  std::ranges::transform(destinations, p.destinations, address);
  p.source_count = static_cast<uint32_t>(sources.size());
  p.destination_count = static_cast<uint32_t>(destinations.size());
  p.begin = begin;
  p.end = end;
  p.scaling = scaling(scale);
  p.op = *kernels::op_of(op);
  return device_->launch(kernels::reduce_of(dtype), &p, kernels::geometry(end - begin, size_of(dtype), device_->multiprocessors()), stream);
}

Status Compute::scale(DType dtype, std::byte* to, const std::byte* from, uint64_t elements, const Scale& scale, Device::Stream stream) {
  if (elements == 0 || (scale.identity() && to == from)) return {};
  const kernels::ScaleParameters p{address(from), address(to), elements, scaling(scale)};
  return device_->launch(kernels::scale_of(dtype), &p, kernels::geometry(elements, size_of(dtype), device_->multiprocessors()), stream);
}

Status Compute::pack(DType from, DType to, std::span<const Move> moves, const Scale& scale, Device::Stream stream) {
  // Without conversion and scaling, a kernel copies plain bytes.
  const bool plain = from == to && scale.identity();
  const auto kernel = plain ? kernels::pack_bytes_of() : kernels::pack_of(from, to);
  if (!kernel) {
    return Status(Code::internal, "no kernel packs " + std::string(name_of(from)) + " as " + std::string(name_of(to)));
  }
  std::vector<kernels::Move> all;
  all.reserve(moves.size());
  for (const Move& move : moves) {
    if (move.elements == 0 || (plain && move.from == move.to)) continue;
    all.push_back({address(move.from), address(move.to), plain ? move.elements * size_of(from) : move.elements});
  }
  const size_t element = plain ? 1 : std::max(size_of(from), size_of(to));
  kernels::PackParameters p;
  for (std::span<const kernels::Move> left = all; !left.empty();) {
    left = left.subspan(kernels::fill(&p, left, element, device_->multiprocessors()));
    p.scaling = scaling(scale);
    HVD_RETURN_IF_ERROR(device_->launch(*kernel, &p, kernels::geometry(p), stream));
  }
  return {};
}

}  // namespace hvd
