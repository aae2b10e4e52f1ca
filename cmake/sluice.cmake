# Compile flags of the whole project, and the function that declares one folder of src/.

add_library(sluice_flags INTERFACE)
target_compile_options(sluice_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion
                       -Wno-sign-conversion -Werror -ffp-contract=off)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports these on correct std::string and intrinsics code at -O3 (GCC bugs 105651, 105593).
  target_compile_options(sluice_flags INTERFACE -Wno-restrict -Wno-stringop-overflow
                         -Wno-maybe-uninitialized)
endif()
target_include_directories(sluice_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # libstdc++ 12 offers std::expected only to compilers that announce C++20 concepts in full;
  # clang 16 implements what <expected> needs but announces an earlier date.
  target_compile_options(sluice_flags INTERFACE -Wno-builtin-macro-redefined -Wno-macro-redefined
                         -D__cpp_concepts=202002L)
endif()
if(SLUICE_SANITIZE)
  target_compile_options(sluice_flags INTERFACE -fsanitize=address,undefined
                         -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g)
  target_link_options(sluice_flags INTERFACE -fsanitize=address,undefined)
endif()
if(SLUICE_FUZZ)
  target_compile_options(sluice_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# sluice_folder(NAME [DEPS target...]) makes the static library sluice_NAME from every .cc file of
# the calling folder. A folder that has no source yet becomes an interface library.
function(sluice_folder name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(sources)
    add_library(sluice_${name} STATIC ${sources})
    target_link_libraries(sluice_${name} PUBLIC sluice_flags ${ARG_DEPS})
  else()
    add_library(sluice_${name} INTERFACE)
    target_link_libraries(sluice_${name} INTERFACE sluice_flags ${ARG_DEPS})
  endif()
endfunction()

# sluice_embed(target function file...) compiles text files into `target`. The folder declares
#   std::span<const sluice::base::EmbeddedFile> sluice::embedded::function();
# and finds each file there under its name without folder.
function(sluice_embed target function)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded_${function}.cc)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DFUNCTION=${function} "-DFILES=${ARGN}"
            -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
