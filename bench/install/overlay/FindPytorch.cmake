# What Horovod wants to know about torch. horovod_install.py has asked torch already and passes the answers in the
# environment: BENCH_TORCH_VERSION, _ABI (TRUE or FALSE), _INCLUDE, _LIB and _LIBRARIES (lists with `;`).

set(Pytorch_VERSION "$ENV{BENCH_TORCH_VERSION}")
set(Pytorch_CXX11 "$ENV{BENCH_TORCH_ABI}")
set(Pytorch_INCLUDE_DIRS "$ENV{BENCH_TORCH_INCLUDE}")
set(Pytorch_LIBRARY_DIRS "$ENV{BENCH_TORCH_LIB}")

# GPU support follows what was asked for, not what torch or the machine could do.
set(Pytorch_ROCM FALSE)
set(Pytorch_CUDA FALSE)
if(DEFINED ENV{HOROVOD_GPU_OPERATIONS})
  set(Pytorch_CUDA TRUE)
endif()

set(Pytorch_LIBRARIES "")
set(_torch_libraries "$ENV{BENCH_TORCH_LIBRARIES}")
foreach(_name IN LISTS _torch_libraries)
  find_library(Pytorch_${_name}_LIBRARY NAMES ${_name} PATHS "${Pytorch_LIBRARY_DIRS}" NO_DEFAULT_PATH)
  if(NOT Pytorch_${_name}_LIBRARY)
    message(FATAL_ERROR "torch's library ${_name} is not in ${Pytorch_LIBRARY_DIRS}")
  endif()
  list(APPEND Pytorch_LIBRARIES "${Pytorch_${_name}_LIBRARY}")
endforeach()

# Strings have two memory layouts in libstdc++: Horovod must use the one that torch was built with.
if(Pytorch_CXX11)
  set(Pytorch_COMPILE_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")
else()
  set(Pytorch_COMPILE_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=0")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  Pytorch REQUIRED_VARS Pytorch_VERSION Pytorch_LIBRARIES VERSION_VAR Pytorch_VERSION)
