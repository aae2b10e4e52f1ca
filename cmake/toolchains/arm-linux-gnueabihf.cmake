# 32-bit ARM from Debian's cross compiler, tuned for the Cortex-A9. Without NEON, which the kernels
# take on function by function and which is chosen at run time.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR armv7l)
set(CMAKE_CXX_COMPILER arm-linux-gnueabihf-g++)
set(CMAKE_CXX_FLAGS_INIT "-march=armv7-a+fp -mtune=cortex-a9")
