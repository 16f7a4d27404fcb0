// MPI functions that src/horovod/common/bootstrap/mpi.py uses.
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "glue.h"
#include "mpi/session.h"

namespace hvd::python {
namespace {

struct MpiInfo {
  int rank, size;
  std::string level, version, path, abi;
  bool multiple, ours;
};

MpiInfo describe(const mpi::Session& s) {
  return {s.rank(),
          s.size(),
          std::string(name_of(s.level())),
          s.library().version,
          s.library().path,
          std::string(name_of(s.abi().family)),
          s.level() == mpi::Threads::multiple,
          s.ours()};
}

MpiInfo start_session(const std::string& library, const std::string& launcher, bool one_thread, double patience) {
  mpi::Session* session = nullptr;
  Status status;
  {
    nb::gil_scoped_release unlocked;
    status = mpi::Session::open({library, launcher, one_thread, patience}, &session);
  }
  // Raise ValueError for every error here, because every error means that the job was started incorrectly.
  if (!status.ok()) throw nb::value_error(status.message().c_str());
  return describe(*session);
}

}  // namespace

void define_mpi(nb::module_& m) {
  nb::class_<MpiInfo>(m, "MpiInfo")
      .def_ro("rank", &MpiInfo::rank)
      .def_ro("size", &MpiInfo::size)
      .def_ro("level", &MpiInfo::level)
      .def_ro("version", &MpiInfo::version)
      .def_ro("path", &MpiInfo::path)
      .def_ro("abi", &MpiInfo::abi)
      .def_ro("multiple", &MpiInfo::multiple)
      .def_ro("ours", &MpiInfo::ours);
  m.def("mpi_start", &start_session, nb::arg("library"), nb::arg("launcher"), nb::arg("one_thread"), nb::arg("patience"));
  m.def("mpi_finish", [](double seconds) {
    nb::gil_scoped_release unlocked;
    mpi::Session* session = mpi::Session::current();
    return !session || session->finish(seconds);
  }, nb::arg("seconds"));
}

}  // namespace hvd::python
