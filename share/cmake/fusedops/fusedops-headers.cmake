# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
#
# Where the headers are, their version, and what it takes to compile and link them. The way from
# here to them is the same in the source tree, in the Python package and below an installed prefix,
# so that none of these files is generated and an edited header is live.
get_filename_component(fusedops_INCLUDE_DIR "${CMAKE_CURRENT_LIST_DIR}/../../../include" ABSOLUTE)

# The version that C++ sees is the one that CMake gives.
set(fusedops_VERSION)
file(STRINGS "${fusedops_INCLUDE_DIR}/fusedops/core/config.cuh" fusedops_line
     REGEX "^#define FUSEDOPS_VERSION [0-9]+")
if(NOT fusedops_line MATCHES "FUSEDOPS_VERSION ([0-9]+)")
  message(FATAL_ERROR "${fusedops_INCLUDE_DIR}/fusedops/core/config.cuh must define "
                      "FUSEDOPS_VERSION as a number: reinstall fusedops")
endif()
foreach(fusedops_unit IN ITEMS 10000 100 1)
  math(EXPR fusedops_part "${CMAKE_MATCH_1} / ${fusedops_unit} % 100")
  list(APPEND fusedops_VERSION ${fusedops_part})
endforeach()
string(REPLACE ";" "." fusedops_VERSION "${fusedops_VERSION}")
unset(fusedops_line)
unset(fusedops_unit)
unset(fusedops_part)

# CUDA has a standard of its own, which cannot be asked for where that language is not enabled; that
# may happen after this.
set(fusedops_COMPILE_FEATURES $<$<BOOL:$<CXX_COMPILER_ID>>:cxx_std_17>
                              $<$<BOOL:$<CUDA_COMPILER_ID>>:cuda_std_17>)

# On a CPU rows are shared among std::threads, which without this an older glibc never starts. Not
# find_package(Threads): that needs C or C++ enabled before this.
set(fusedops_LINK_LIBRARIES pthread)
