# SPDX-License-Identifier: Apache-2.0
# Installs starpipe and its CMake package; starpipeConfig.cmake.in says how to use the package.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/starpipe")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/starpipe" "${PROJECT_BINARY_DIR}/include/starpipe"
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")

# The docs, and what they use: configurations, studies, scripts, and projects that are built against the package. The
# folders are the same as in the source tree, so the links of the docs and their commands hold here too.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/experiments"
  DESTINATION "${CMAKE_INSTALL_DATADIR}/starpipe" USE_SOURCE_PERMISSIONS PATTERN "__pycache__" EXCLUDE)
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CONTRIBUTING.md"
  "${PROJECT_SOURCE_DIR}/CHANGELOG.md" "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/starpipe")

# The planning library and base have an export set of their own, since their users need no StarPU.
get_property(libraries GLOBAL PROPERTY STARPIPE_INSTALLED_LIBRARIES)
foreach(library IN LISTS libraries)
  if(library MATCHES "^starpipe_(base|plan)$")
    install(TARGETS ${library} EXPORT starpipePlanTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  else()
    install(TARGETS ${library} EXPORT starpipeRuntimeTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()
install(EXPORT starpipePlanTargets NAMESPACE starpipe:: DESTINATION "${package_dir}")
if(TARGET starpipe::runtime)
  install(EXPORT starpipeRuntimeTargets NAMESPACE starpipe:: DESTINATION "${package_dir}")
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/starpipeConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/starpipeConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/starpipeConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/starpipeConfig.cmake" "${PROJECT_BINARY_DIR}/starpipeConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/StarPU.cmake" DESTINATION "${package_dir}")
