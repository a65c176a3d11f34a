# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
#
# Which requests this version answers: before 1.0 a minor version may break what the last one had.
# CMake's own rule for that is written out only now, since the version is read from a header.
include("${CMAKE_CURRENT_LIST_DIR}/fusedops-headers.cmake")
include(CMakePackageConfigHelpers)

set(fusedops_rule "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/fusedops-config-version.cmake")
write_basic_package_version_file(
  "${fusedops_rule}"
  VERSION ${fusedops_VERSION}
  COMPATIBILITY SameMinorVersion
  ARCH_INDEPENDENT)
include("${fusedops_rule}")
