# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
#
# find_package(fusedops): the headers, as the target fusedops::fusedops. They depend on no other
# package; kernels for a GPU need the language CUDA of the project that includes them.
include("${CMAKE_CURRENT_LIST_DIR}/fusedops-headers.cmake")

if(NOT TARGET fusedops::fusedops)
  add_library(fusedops::fusedops INTERFACE IMPORTED)
  target_include_directories(fusedops::fusedops INTERFACE "${fusedops_INCLUDE_DIR}")
  target_compile_features(fusedops::fusedops INTERFACE ${fusedops_COMPILE_FEATURES})
  target_link_libraries(fusedops::fusedops INTERFACE ${fusedops_LINK_LIBRARIES})
endif()
