# Compiles for every Linux with glibc 2.28 or newer, whatever this machine has: for `make wheel`. The compiler is zig's
# clang, a package of pip; it brings the interface of that glibc, and a C++ library that becomes part of ours.
execute_process(COMMAND python -c "import ziglang; print(ziglang.__path__[0])" OUTPUT_VARIABLE ziglang
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND uname -m OUTPUT_VARIABLE processor OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(CMAKE_CXX_COMPILER ${ziglang}/zig c++)
set(CMAKE_CXX_COMPILER_TARGET ${processor}-linux-gnu.2.28)

# Not zig's own unwinder: pthread_exit, with which Python before 3.14 ends threads, unwinds our frames with this one. No
# process is without it, as glibc wants it for that.
find_file(HVD_UNWINDER libgcc_s.so.1 PATHS /lib/${processor}-linux-gnu /usr/lib/${processor}-linux-gnu /lib64 /usr/lib64
          REQUIRED NO_DEFAULT_PATH)
set(CMAKE_MODULE_LINKER_FLAGS_INIT ${HVD_UNWINDER})
