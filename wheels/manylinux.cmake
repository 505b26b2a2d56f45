# Compiles for every Linux with glibc 2.28 or newer, whatever this machine has: for `make wheel`. The compiler is zig's
# clang, a package of pip; it brings the interface of that glibc, and a C++ library that becomes part of ours. For the
# processor of this machine, or the one that a file which includes this one has set.
execute_process(COMMAND python -c "import ziglang; print(ziglang.__path__[0])" OUTPUT_VARIABLE ziglang
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT processor)
  execute_process(COMMAND uname -m OUTPUT_VARIABLE processor OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
set(CMAKE_CXX_COMPILER ${ziglang}/zig c++)
set(CMAKE_CXX_COMPILER_TARGET ${processor}-linux-gnu.2.28)

# The same bytes in whatever folder this is.
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
set(CMAKE_CXX_FLAGS_INIT -ffile-prefix-map=${root}=.)

# Not zig's own unwinder: pthread_exit, with which Python before 3.14 ends threads, unwinds our frames with libgcc_s. No
# process is without it, as glibc wants it for that. Linked is a library of the same names, without contents.
set(unwinder ${root}/build/unwinder-${processor}/libgcc_s.so.1)
if(NOT EXISTS ${unwinder})
  get_filename_component(folder ${unwinder} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${ziglang}/zig cc --target=${CMAKE_CXX_COMPILER_TARGET} -shared -nostdlib -w -o ${unwinder}
                  -Wl,-soname,libgcc_s.so.1 -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/unwinder.map
                  ${CMAKE_CURRENT_LIST_DIR}/unwinder.c COMMAND_ERROR_IS_FATAL ANY)
endif()
# Stripped by the linker: another program for that would have to know the processor.
set(CMAKE_MODULE_LINKER_FLAGS_INIT "${unwinder} -s")
