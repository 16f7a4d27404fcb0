#include "plan/tuning.h"

#include <charconv>

#include "plan/text.h"

namespace hvd {
namespace {

// Maximum accepted value of the thresholds that have no smaller limit. It is never reached in practice, so it means "no limit".
constexpr size_t kMax = size_t{1} << 40;

constexpr TuningField kFields[] = {
    {"direct_bytes", &Tuning::direct_bytes, 0, 4 << 20},
    // A chunk size above the size of the staging area has no further effect.
    {"chunk_bytes", &Tuning::chunk_bytes, 4 << 10, 64 << 20},
    {"stream_bytes", &Tuning::stream_bytes, 0, kMax},
    {"doubling_bytes", &Tuning::doubling_bytes, 0, kMax},
    {"pair_bytes", &Tuning::pair_bytes, 0, kMax},
    {"slice_doubling_bytes", &Tuning::slice_doubling_bytes, 0, kMax},
    {"slice_pair_bytes", &Tuning::slice_pair_bytes, 0, kMax},
    {"tree_bytes", &Tuning::tree_bytes, 0, kMax},
    {"flat_tree_bytes", &Tuning::flat_tree_bytes, 0, kMax},
};

Status set(std::string_view item, Tuning* tuning) {
  const std::string shown = quoted(item).append(" in the tuning");
  const size_t equals = item.find('=');
  const std::string_view name = trimmed(item.substr(0, equals));
  for (const TuningField& field : kFields) {
    if (field.name != name) continue;
    const std::string_view digits = equals == item.npos ? std::string_view() : trimmed(item.substr(equals + 1));
    size_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < field.low || value > field.high) {
      return Status(Code::invalid_argument, shown + ": the value must be " + std::to_string(field.low) + " to " +
                                                std::to_string(field.high) + " bytes, as in '" + std::string(name) + "=65536'");
    }
    tuning->*field.value = value;
    return {};
  }
  const std::string known = listed(std::span<const TuningField>(kFields), [](const TuningField& f) { return f.name; });
  return Status(Code::invalid_argument, shown + ": the name must be one of " + known + ", got " + quoted(name));
}

}  // namespace

std::span<const TuningField> tuning_fields() { return kFields; }

Status Tuning::parse(std::string_view text, Tuning* out) {
  Tuning result;
  HVD_RETURN_IF_ERROR(each_item(text, [&](std::string_view item) { return set(item, &result); }));
  *out = result;
  return {};
}

std::string Tuning::text() const {
  return listed(std::span<const TuningField>(kFields),
                [this](const TuningField& f) { return std::string(f.name) + "=" + std::to_string(this->*f.value); }, ",");
}

std::vector<int64_t> Tuning::values() const {
  std::vector<int64_t> out;
  for (const TuningField& f : kFields) out.push_back(static_cast<int64_t>(this->*f.value));
  return out;
}

Status Tuning::read(std::span<const int64_t> values, Tuning* out) {
  if (values.size() != std::size(kFields)) {
    return Status(Code::internal,
                  "a tuning must have " + std::to_string(std::size(kFields)) + " values, got " + std::to_string(values.size()));
  }
  Tuning result;
  for (size_t i = 0; i < values.size(); ++i) {
    const TuningField& f = kFields[i];
    if (values[i] < 0 || static_cast<size_t>(values[i]) < f.low || static_cast<size_t>(values[i]) > f.high) {
      return Status(Code::internal, std::string(f.name) + " must be " + std::to_string(f.low) + " to " + std::to_string(f.high) +
                                        " bytes, got " + std::to_string(values[i]));
    }
    result.*f.value = static_cast<size_t>(values[i]);
  }
  *out = result;
  return {};
}

}  // namespace hvd
