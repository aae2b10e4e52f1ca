# Runs the kernels' test for ARM under qemu. A test of its own configures and builds it, in this
# build's folder and only what changed; the runs wait for that one.

# sluice_arm_build(ARCHITECTURE TRIPLE QEMU)
function(sluice_arm_build architecture triple qemu)
  find_program(SLUICE_CXX_${architecture} ${triple}-g++)
  find_program(SLUICE_QEMU_${architecture} ${qemu})
  set(compiler ${SLUICE_CXX_${architecture}})
  set(emulator ${SLUICE_QEMU_${architecture}})
  if(NOT compiler OR NOT emulator OR NOT EXISTS /usr/src/googletest)
    add_test(NAME arm.${architecture}.build
             COMMAND sh -c "echo 'needs ${triple}-g++, ${qemu} and /usr/src/googletest'
                            [ \"$SLUICE_TEST_STRICT\" = 1 ] && exit 1 || exit 77")
    set_tests_properties(arm.${architecture}.build PROPERTIES SKIP_RETURN_CODE 77)
    return()
  endif()
  add_test(NAME arm.${architecture}.build
           COMMAND ${CMAKE_CTEST_COMMAND}
                   --build-and-test ${PROJECT_SOURCE_DIR} ${CMAKE_BINARY_DIR}/${architecture}
                   --build-generator ${CMAKE_GENERATOR} --build-noclean --build-options
                   -DCMAKE_TOOLCHAIN_FILE=${PROJECT_SOURCE_DIR}/cmake/toolchains/${triple}.cmake
                   -DCMAKE_BUILD_TYPE=Release -DSLUICE_KERNEL_TEST=ON)
  set_tests_properties(arm.${architecture}.build PROPERTIES
                       FIXTURES_SETUP arm_${architecture} TIMEOUT 900)
endfunction()

# sluice_arm_run(ARCHITECTURE CPU KERNELS [option of the test]...): `kernels` are those the
# processor has.
function(sluice_arm_run architecture cpu kernels)
  if(NOT SLUICE_QEMU_${architecture})
    return()
  endif()
  add_test(NAME arm.${architecture}.${cpu}
           COMMAND ${SLUICE_QEMU_${architecture}} -cpu ${cpu}
                   ${CMAKE_BINARY_DIR}/${architecture}/tests/arm/test_kernels --gtest_brief=1 ${ARGN})
  set_tests_properties(arm.${architecture}.${cpu} PROPERTIES
                       FIXTURES_REQUIRED arm_${architecture}
                       ENVIRONMENT "SLUICE_TEST_KERNELS=${kernels}" TIMEOUT 300)
endfunction()

sluice_arm_build(arm64 aarch64-linux-gnu qemu-aarch64-static)
sluice_arm_run(arm64 max "neon-dotprod, neon, scalar")
sluice_arm_run(arm64 cortex-a53 "neon, scalar")
sluice_arm_build(arm arm-linux-gnueabihf qemu-arm-static)
sluice_arm_run(arm cortex-a9 "neon, scalar")
sluice_arm_run(arm cortex-a9,neon=off "scalar" --gtest_filter=ChooseKernels.*)
