// Reductions that cannot use the callers' values directly: integer sums that must not wrap, and the contribution of a
// rank that has called join().
#include <algorithm>
#include <cstring>
#include <limits>

#include "collectives/exact_sum.h"
#include "engine/execute.h"

namespace hvd {
namespace {

// Number of elements that are converted at a time to the 64-bit words of an exact sum. The limit bounds the scratch
// memory.
constexpr size_t kBlock = 256u << 10;
constexpr int kElements = 10, kWords = 11, kResult = 12, kNeutral = 13;

template <class T>
std::byte* fill(Comm& comm, size_t n, T value) {
  auto* const data = reinterpret_cast<T*>(comm.scratch->get(kNeutral, n * sizeof(T)));
  std::fill_n(data, n, value);
  return reinterpret_cast<std::byte*>(data);
}

template <class T>
std::byte* fill_numbers(Comm& comm, size_t n, ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  constexpr T kMax = Limits::has_infinity ? Limits::infinity() : Limits::max();
  constexpr T kLeast = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return fill(comm, n, op == ReduceOp::product ? T{1} : op == ReduceOp::min ? kMax : kLeast);
}

std::byte* fill_halves(Comm& comm, size_t n, ReduceOp op, uint16_t one, uint16_t infinity) {
  const auto minus = static_cast<uint16_t>(infinity | 0x8000);
  return fill(comm, n, op == ReduceOp::product ? one : op == ReduceOp::min ? infinity : minus);
}

}  // namespace

bool needs_neutral(const Response& r) {
  return r.kind == Kind::allreduce && (r.op == ReduceOp::min || r.op == ReduceOp::max || r.op == ReduceOp::product);
}

// Return elements that do not change the result: for a minimum, min(x, neutral) = x for every x. There are as many as in the longest tensor
// of the response.
const std::byte* Executor::neutral(Comm& comm, const Response& r) {
  size_t n = 0;
  for (const auto& shape : r.shapes) n = std::max(n, elements_of(shape));
  switch (r.dtype) {
    case DType::uint8: return fill_numbers<uint8_t>(comm, n, r.op);
    case DType::int8: return fill_numbers<int8_t>(comm, n, r.op);
    case DType::uint16: return fill_numbers<uint16_t>(comm, n, r.op);
    case DType::int16: return fill_numbers<int16_t>(comm, n, r.op);
    case DType::int32: return fill_numbers<int32_t>(comm, n, r.op);
    case DType::int64: return fill_numbers<int64_t>(comm, n, r.op);
    case DType::float16: return fill_halves(comm, n, r.op, 0x3c00, 0x7c00);
    case DType::bfloat16: return fill_halves(comm, n, r.op, 0x3f80, 0x7f80);
    case DType::float32: return fill_numbers<float>(comm, n, r.op);
    case DType::float64: return fill_numbers<double>(comm, n, r.op);
    default: return fill<uint8_t>(comm, n, r.op == ReduceOp::max ? 0 : 1);
  }
}

// Reduce the tensors of the current operation in wider words, so that sums of integers do not overflow.
Status Executor::allreduce_exactly(Comm& among, const Response& r, const Scale& after) {
  size_t total = 0;
  for (const Segments::Piece& piece : pieces_) total += piece.count;
  const Segments segments{pieces_, total};
  const size_t element = size_of(r.dtype), each = words_of(r.dtype), most = std::min(total, kBlock);
  std::byte* const elements = among.scratch->get(kElements, most * element);
  std::byte* const memory = among.scratch->get(kWords, most * each * sizeof(int64_t));
  auto* const words = reinterpret_cast<int64_t*>(memory);
  for (size_t first = 0; first < total; first += most) {
    const size_t n = std::min(most, total - first);
    segments.gather(first, n, element, elements);
    to_words(r.dtype, words, elements, n, r.prescale);
    const Segments::Piece piece{memory, memory, n * each};
    HVD_RETURN_IF_ERROR(backend_->allreduce(among, {{&piece, 1}, n * each}, DType::int64, ReduceOp::sum, {}));
    from_words(r.dtype, elements, words, n, after);
    segments.scatter(first, n, element, elements);
  }
  return {};
}

// Reduce-scatter without overflow in integer sums. `counts` holds the number of elements that each rank receives. The data are processed in
// blocks, each of which contains elements for all ranks.
Status Executor::reducescatter_exactly(Comm& comm, const Response& r, const Operation& op, const std::vector<size_t>& counts) {
  const size_t element = size_of(r.dtype), each = words_of(r.dtype), n = counts.size(), me = static_cast<size_t>(comm.rank);
  const size_t largest = *std::max_element(counts.begin(), counts.end()), most = std::min(largest, std::max<size_t>(kBlock / n, 1));
  auto* const words = reinterpret_cast<int64_t*>(comm.scratch->get(kWords, most * n * each * sizeof(int64_t)));
  std::byte* const result = comm.scratch->get(kResult, most * each * sizeof(int64_t));
  std::vector<size_t> block(n);
  for (size_t first = 0; first < largest; first += most) {
    int64_t* to = words;
    for (size_t rank = 0, begin = 0; rank < n; begin += counts[rank++]) {
      const size_t some = counts[rank] > first ? std::min(most, counts[rank] - first) : 0;
      block[rank] = some * each;
      to_words(r.dtype, to, op.in + (begin + first) * element, some, r.prescale);
      to += block[rank];
    }
    const auto* const in = reinterpret_cast<const std::byte*>(words);
    HVD_RETURN_IF_ERROR(backend_->reducescatter(comm, in, result, block, DType::int64, ReduceOp::sum, {}));
    const size_t own = block[me] / each;
    if (own > 0) from_words(r.dtype, op.out + first * element, reinterpret_cast<const int64_t*>(result), own, scale_after(r, comm.size));
  }
  return {};
}

}  // namespace hvd
