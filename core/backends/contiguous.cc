#include "backends/contiguous.h"

#include <cstring>

namespace hvd {
namespace {

// Slot of Comm::scratch for packed tensors. No algorithm in collectives/ uses this slot.
constexpr int kPackSlot = 6;

}  // namespace

std::byte* pack(Comm& c, const Segments& s, DType d) {
  const bool single = s.pieces.size() == 1 && s.pieces[0].in && s.pieces[0].out;
  if (single) {
    const auto& piece = s.pieces[0];
    if (piece.in != piece.out && s.total) std::memcpy(piece.out, piece.in, s.total * size_of(d));
    return piece.out;
  }
  std::byte* data = c.scratch->get(kPackSlot, s.total * size_of(d));
  s.gather(0, s.total, size_of(d), data);
  return data;
}

void unpack(const Segments& s, DType d, std::byte* data, const Scale& scale) {
  if (!scale.identity()) hvd::scale(d, data, data, s.total, scale);
  const bool single = s.pieces.size() == 1 && s.pieces[0].out == data;
  if (!single) s.scatter(0, s.total, size_of(d), data);
}

}  // namespace hvd
