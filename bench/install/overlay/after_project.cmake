# Read once, right after `project(horovod CXX)`: what Horovod 0.28.1 fixed in 2023 and today's torch needs otherwise.

# Horovod writes CMAKE_CXX_STANDARD 14 in two places. Leave the number, change what it means to the compiler.
set(CMAKE_CXX14_STANDARD_COMPILE_OPTION "-std=c++$ENV{BENCH_CXX_STANDARD}")

# Horovod and its Gloo rely on headers that include others; libstdc++ 13 (GCC 13) no longer does, and std::string and
# uint8_t are unknown there.
foreach(header cstdint string memory stdexcept functional algorithm)
  string(APPEND CMAKE_CXX_FLAGS " -include ${header}")
endforeach()

# An assignment to a const member in the flatbuffers that Horovod brings, which nobody calls: GCC 14 refuses it.
set(stl_emulation "${CMAKE_CURRENT_SOURCE_DIR}/third_party/flatbuffers/include/flatbuffers/stl_emulation.h")
file(READ "${stl_emulation}" text)
string(REPLACE "count_ = other.count_;" "" text "${text}")
file(WRITE "${stl_emulation}" "${text}")

# Optimised and without debug symbols, which would make the library twenty times as large.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG")

# Whoever loads Horovod has imported torch, so torch's libraries are in memory: no path to them is written down.
if(NOT APPLE)
  set(CMAKE_SKIP_RPATH ON)
endif()

# FindPytorch.cmake beside this file goes before Horovod's own.
list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")

# A build for CPUs must not notice an nvcc or a /usr/local/cuda that happens to be there.
if(NOT DEFINED ENV{HOROVOD_GPU_OPERATIONS})
  set(CMAKE_CUDA_COMPILER NOTFOUND)
  set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit TRUE)
endif()
