# Writes OUTPUT, a C++ source that holds the text of FILES; see sluice_embed in sluice.cmake.
set(entries "")
foreach(path ${FILES})
  get_filename_component(name ${path} NAME)
  file(READ ${path} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" escaped "${hex}")
  # Short literals, joined by the compiler: compilers limit the length of one.
  string(REGEX REPLACE "((\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?(\\\\x[0-9a-f][0-9a-f])?)" "\"\\1\"\n" lines "${escaped}")
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(APPEND entries "    {\"${name}\", std::string_view(\"\"\n${lines}, ${size})},\n")
endforeach()
file(WRITE ${OUTPUT} "// Generated from ${FUNCTION}'s files by cmake/embed.cmake.
#include <span>

#include \"base/embedded.h\"

namespace sluice::embedded {
std::span<const base::EmbeddedFile> ${FUNCTION}();
std::span<const base::EmbeddedFile> ${FUNCTION}() {
  static constexpr base::EmbeddedFile kFiles[] = {
${entries}  };
  return kFiles;
}
}  // namespace sluice::embedded
")
