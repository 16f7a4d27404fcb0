#include "mpi/abi.h"

namespace hvd::mpi {
namespace {

struct Named {
  Handle Abi::* member;
  // Open MPI's variable whose address is the handle.
  const char* exported;
  uint32_t mpich;
  uint32_t standard;
};

constexpr Named kHandles[] = {
    {&Abi::world, "ompi_mpi_comm_world", 0x44000000, 0x101},    {&Abi::self, "ompi_mpi_comm_self", 0x44000001, 0x102},
    {&Abi::comm_null, "ompi_mpi_comm_null", 0x04000000, 0x100}, {&Abi::errors_return, "ompi_mpi_errors_return", 0x54000001, 0x143},
    {&Abi::byte, "ompi_mpi_byte", 0x4c00010d, 0x247},           {&Abi::int8, "ompi_mpi_int8_t", 0x4c000137, 0x240},
    {&Abi::int16, "ompi_mpi_int16_t", 0x4c000238, 0x248},       {&Abi::int32, "ompi_mpi_int32_t", 0x4c000439, 0x250},
    {&Abi::int64, "ompi_mpi_int64_t", 0x4c00083a, 0x258},       {&Abi::uint8, "ompi_mpi_uint8_t", 0x4c00013b, 0x241},
    {&Abi::uint16, "ompi_mpi_uint16_t", 0x4c00023c, 0x249},     {&Abi::float32, "ompi_mpi_float", 0x4c00040a, 0x210},
    {&Abi::float64, "ompi_mpi_double", 0x4c00080b, 0x214},      {&Abi::max, "ompi_mpi_op_max", 0x58000001, 0x23},
    {&Abi::min, "ompi_mpi_op_min", 0x58000002, 0x22},           {&Abi::sum, "ompi_mpi_op_sum", 0x58000003, 0x21},
    {&Abi::product, "ompi_mpi_op_prod", 0x58000004, 0x24},
};

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// Return the word that follows `start` in the text. Words end at white space or a comma.
std::string word_after(std::string_view text, std::string_view start) {
  const size_t at = text.find(start);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + start.size());
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  return std::string(text.substr(0, text.find_first_of(" \t\n\r,")));
}

}  // namespace

std::string_view name_of(Family family) {
  constexpr std::string_view names[] = {"Open MPI", "MPICH", "the standard ABI of MPI"};
  return names[static_cast<size_t>(family)];
}

std::string_view name_of(Threads level) {
  constexpr std::string_view names[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"};
  return names[static_cast<size_t>(level)];
}

Handle Abi::type_of(DType d) const {
  switch (d) {
    case DType::uint8: return uint8;
    case DType::int8: return int8;
    case DType::uint16: return uint16;
    case DType::int16: return int16;
    case DType::int32: return int32;
    case DType::int64: return int64;
    case DType::float32: return float32;
    case DType::float64: return float64;
    default: return 0;
  }
}

Handle Abi::op_of(ReduceOp op) const {
  switch (op) {
    case ReduceOp::sum: return sum;
    case ReduceOp::min: return min;
    case ReduceOp::max: return max;
    case ReduceOp::product: return product;
    default: return 0;
  }
}

Family family_of(const std::string& path, const Lookup& lookup) {
  if (lookup("ompi_mpi_comm_world")) return Family::open_mpi;
  return has(std::string_view(path).substr(path.rfind('/') + 1), "mpi_abi") ? Family::standard : Family::mpich;
}

bool of_open_mpi(const std::string& version) { return has(version, "Open MPI") || has(version, "Spectrum MPI"); }

bool fits(const std::string& launcher, bool open_mpi) { return open_mpi ? launcher != "MPICH" : launcher != "Open MPI"; }

Status check_version(Family family, const std::string& path, const std::string& version) {
  const bool open_mpi = of_open_mpi(version);
  const bool mpich = has(version, "MPICH") || has(version, "Intel(R) MPI") || has(version, "MVAPICH") || has(version, "ParaStation MPI");
  // Any library can implement the standard ABI, so the version string does not matter for it.
  if (family == Family::standard || (family == Family::open_mpi ? open_mpi : mpich)) return {};
  return Status(Code::invalid_argument, path + " looks like " + std::string(name_of(family)) + " but says that it is '" +
                                            version.substr(0, version.find('\n')) +
                                            "'; known are Open MPI, MPICH and what is made of them, and the standard ABI (libmpi_abi)");
}

std::string short_version(const std::string& version) {
  if (const std::string word = word_after(version, "Open MPI v"); !word.empty()) return "Open MPI " + word;
  if (const std::string word = word_after(version, "MPICH Version:"); !word.empty()) return "MPICH " + word;
  return version.substr(0, version.find('\n')).substr(0, 80);
}

Status make_abi(Family family, const Lookup& lookup, Abi* out) {
  Abi abi;
  abi.family = family;
  for (const Named& named : kHandles) {
    if (family != Family::open_mpi) {
      abi.*named.member = family == Family::mpich ? named.mpich : named.standard;
      continue;
    }
    void* address = lookup(named.exported);
    if (!address) return Status(Code::internal, std::string("this Open MPI does not export ") + named.exported);
    abi.*named.member = reinterpret_cast<Handle>(address);
  }
  if (family == Family::mpich) abi.status_ignore = reinterpret_cast<void*>(uintptr_t{1});
  if (family == Family::standard) {
    for (int level = 1; level < 4; ++level) abi.levels[level] = 512 << level;
  }
  *out = abi;
  return {};
}

Threads level_of(const Abi& abi, int given) {
  int level = 3;
  while (level > 0 && abi.levels[level] > given) --level;
  return static_cast<Threads>(level);
}

}  // namespace hvd::mpi
