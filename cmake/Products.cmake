# SPDX-License-Identifier: Apache-2.0
# Chooses the library of the matrix products on cores, by the option STARPIPE_PRODUCTS: oneDNN where it is found, else
# OpenBLAS. Sets STARPIPE_PRODUCTS_BY to onednn or cblas, and STARPIPE_PRODUCTS_LIBRARY to the library's target; both are
# empty if there is neither. Tests use both libraries: their targets are STARPIPE_PRODUCTS_onednn and STARPIPE_PRODUCTS_cblas.
#
# oneDNN is searched for by its files: its own package in Debian 12 wants OpenCL's headers. dnnl_sgemm, which we call, is fast
# on x86-64 only. A worker's product must stay in the worker's thread; we can tell this to OpenMP, and oneDNN without threads
# does it by itself. So other processors, and oneDNN with TBB or a thread pool, count as not found.
function(starpipe_find_onednn)
  if(TARGET starpipe::onednn)
    return()
  endif()
  find_path(STARPIPE_ONEDNN_INCLUDE oneapi/dnnl/dnnl.h DOC "Folder of oneapi/dnnl/dnnl.h")
  find_library(STARPIPE_ONEDNN_LIBRARY dnnl DOC "oneDNN: libdnnl.so")
  mark_as_advanced(STARPIPE_ONEDNN_INCLUDE STARPIPE_ONEDNN_LIBRARY)
  set(problem "")
  if(NOT STARPIPE_ONEDNN_INCLUDE OR NOT STARPIPE_ONEDNN_LIBRARY)
    set(problem "no oneapi/dnnl/dnnl.h with libdnnl")
  elseif(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    set(problem "it is not used on ${CMAKE_SYSTEM_PROCESSOR}")
  else()
    set(include "${STARPIPE_ONEDNN_INCLUDE}/oneapi/dnnl")
    file(STRINGS "${include}/dnnl_config.h" threads REGEX "^#define DNNL_CPU_THREADING_RUNTIME ")
    string(REGEX REPLACE ".*DNNL_RUNTIME_" "" threads "${threads}")
    file(STRINGS "${include}/dnnl_version.h" numbers REGEX "^#define DNNL_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9;]" "" numbers "${numbers}")
    string(JOIN "." version ${numbers})
    if(NOT threads MATCHES "^(OMP|SEQ)$")
      set(problem "${STARPIPE_ONEDNN_LIBRARY} is built with the threads of ${threads}, not OMP or SEQ")
    elseif(version VERSION_LESS 2.6)
      set(problem "${STARPIPE_ONEDNN_LIBRARY} is version ${version}, older than 2.6")
    endif()
  endif()
  set(STARPIPE_ONEDNN_PROBLEM "${problem}" PARENT_SCOPE)
  set(STARPIPE_ONEDNN_VERSION "${version}" PARENT_SCOPE)
  if(problem STREQUAL "")
    add_library(starpipe::onednn SHARED IMPORTED GLOBAL)
    set_target_properties(starpipe::onednn PROPERTIES IMPORTED_LOCATION "${STARPIPE_ONEDNN_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${STARPIPE_ONEDNN_INCLUDE}")
  endif()
endfunction()

set(STARPIPE_PRODUCTS_onednn starpipe::onednn)
set(STARPIPE_PRODUCTS_cblas PkgConfig::openblas)
starpipe_find_onednn()
set(STARPIPE_PRODUCTS_BY "")
if(STARPIPE_PRODUCTS STREQUAL "onednn" AND NOT TARGET starpipe::onednn)
  message(FATAL_ERROR "STARPIPE_PRODUCTS is onednn, but there is no oneDNN: ${STARPIPE_ONEDNN_PROBLEM}")
elseif(STARPIPE_PRODUCTS STREQUAL "cblas" AND NOT TARGET PkgConfig::openblas)
  message(FATAL_ERROR "STARPIPE_PRODUCTS is cblas, but pkg-config finds no openblas")
elseif(TARGET starpipe::onednn AND NOT STARPIPE_PRODUCTS STREQUAL "cblas")
  set(STARPIPE_PRODUCTS_BY onednn)
  message(STATUS "Matrix products by oneDNN ${STARPIPE_ONEDNN_VERSION} in ${STARPIPE_ONEDNN_LIBRARY}")
elseif(TARGET PkgConfig::openblas)
  set(STARPIPE_PRODUCTS_BY cblas)
  if(NOT STARPIPE_PRODUCTS STREQUAL "cblas")
    set(reason " (no oneDNN: ${STARPIPE_ONEDNN_PROBLEM})")
  endif()
  message(STATUS "Matrix products by OpenBLAS ${openblas_VERSION}${reason}")
elseif(STARPIPE_WITH_RUNTIME)
  message(FATAL_ERROR "The layers on cores need oneDNN or OpenBLAS. No oneDNN: ${STARPIPE_ONEDNN_PROBLEM}. "
    "pkg-config finds no openblas")
endif()

set(STARPIPE_PRODUCTS_LIBRARY "${STARPIPE_PRODUCTS_${STARPIPE_PRODUCTS_BY}}")

# The sources of the other implementation, which starpipe_sources leaves out. The tests name theirs.
set(STARPIPE_OTHER_PRODUCTS "_(onednn|cblas)\\.cpp$")
if(STARPIPE_PRODUCTS_BY)
  set(others onednn cblas)
  list(REMOVE_ITEM others ${STARPIPE_PRODUCTS_BY})
  set(STARPIPE_OTHER_PRODUCTS "_${others}\\.cpp$")
endif()
