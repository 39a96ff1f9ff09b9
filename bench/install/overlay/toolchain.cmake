# First file CMake reads: horovod_install.py names it in the environment variable CMAKE_TOOLCHAIN_FILE.
# It names no compiler. It only asks CMake to read after_project.cmake at the end of Horovod's own
# `project(horovod …)`, so that Horovod's files can be used exactly as they were published.
set(CMAKE_PROJECT_horovod_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/after_project.cmake")
