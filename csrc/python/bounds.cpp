// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Parallel.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "all_algorithms.h"
#include "base/error.h"
#include "cpu_algo/kernels/peak.h"
#include "ir/candidates.h"
#include "profiler/probe.h"
#include "provider/cpu_device.h"
#include "provider/kernel.h"
#include "python/module.h"

namespace py = pybind11;

namespace torchalgo {
namespace {

PeakKernels peak_kernels(const std::string& isa) {
  return {TORCHALGO_PICK_KERNEL(isa, run_multiply_adds),
          TORCHALGO_PICK_KERNEL(isa, multiply_add_flops)(), TORCHALGO_PICK_KERNEL(isa, run_reads),
          TORCHALGO_PICK_KERNEL(isa, run_copy)};
}

std::pair<double, std::vector<std::pair<std::int64_t, double>>> probed() {
  const Probes probes = probe_peaks(peak_kernels(cpu_device().isa));
  std::vector<std::pair<std::int64_t, double>> bandwidths;
  for (const Bandwidth& at : probes.bandwidths) {
    bandwidths.emplace_back(at.working_set_bytes, at.bytes_per_ns);
  }
  return {probes.flops_per_ns, std::move(bandwidths)};
}

std::pair<double, double> work_of(const std::string& text, const Primitive& primitive) {
  const Algorithm* const algorithm = find_algorithm(all_algorithms(), primitive.name);
  TORCHALGO_CHECK(algorithm != nullptr, "TA4004 least_work: no algorithm has the name '{}'",
                  primitive.name);
  const Work work = least_work(algorithm->prepare(parse_problem(text), primitive, cpu_device()));
  return {work.flops, work.bytes};
}

}  // namespace

void bind_bounds(py::module_& m) {
  m.def("probe_peaks", &probed, py::call_guard<py::gil_scoped_release>());
  m.def("least_work", &work_of, py::arg("problem"), py::arg("primitive"));
  m.def(
      "least_bytes", [](const std::string& problem) { return least_bytes(parse_problem(problem)); },
      py::arg("problem"));
}

}  // namespace torchalgo
