# Writes a C++ file with the bytes of the page's files:
#   cmake -D FOLDER=web/dist -D OUTPUT=web_files.cc -P cmake/embed_web.cmake
cmake_minimum_required(VERSION 3.25)

set(type_html "text/html; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_svg "image/svg+xml")
set(type_txt "text/plain; charset=utf-8")

file(GLOB_RECURSE paths LIST_DIRECTORIES false RELATIVE ${FOLDER} ${FOLDER}/*)
list(SORT paths)
if(NOT paths)
  message(FATAL_ERROR "${FOLDER} holds no file of the page")
endif()

set(contents "")
set(rows "")
set(index 0)
foreach(path IN LISTS paths)
  cmake_path(GET path EXTENSION LAST_ONLY extension)
  string(REPLACE "." "" extension "${extension}")
  if(NOT DEFINED type_${extension})
    message(FATAL_ERROR "${path}: no content type is known for .${extension}")
  endif()
  # Every byte as \xHH: the next backslash ends it, so that no byte runs into the next.
  file(READ ${FOLDER}/${path} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" escaped "${hex}")
  file(SHA256 ${FOLDER}/${path} hash)
  string(SUBSTRING ${hash} 0 24 hash)
  file(SIZE ${FOLDER}/${path} num_bytes)
  string(APPEND contents "constexpr char kContent${index}[] =\n    \"${escaped}\";\n")
  string(APPEND rows "    {\"/${path}\", \"${type_${extension}}\", {kContent${index}, ${num_bytes}}, "
         "\"\\\"${hash}\\\"\"},\n")
  math(EXPR index "${index} + 1")
endforeach()

file(WRITE ${OUTPUT}.new
"// Made by cmake/embed_web.cmake.
#include \"server/web_files.h\"

namespace hillstar {
namespace {

${contents}
constexpr WebFile kFiles[] = {
${rows}};

}  // namespace

std::span<const WebFile> WebFiles() { return kFiles; }

}  // namespace hillstar
")
file(RENAME ${OUTPUT}.new ${OUTPUT})
