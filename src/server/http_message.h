// The texts of HTTP messages: what a target means, how an answer's head is written. Pure functions;
// any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/http_server.h"

namespace hillstar {

struct HttpTarget {
  std::string path;   // decoded
  std::string query;  // as it came
  std::string host;   // of the absolute form, "" of others
};
// Nothing for what is no path of a file or a route: dot segments, encoded slashes, control bytes,
// NUL, broken escapes, "*" or an authority alone.
std::optional<HttpTarget> ParseTarget(std::string_view target);

// The client's id where it is at most 128 letters, digits, '.', '_' and '-'; else a new one.
std::string RequestId(std::string_view given);

enum class BodyFraming { kLength, kChunked, kUntilClose, kNone };
// Status line and headers up to the empty line. `length` counts with kLength only.
std::string WriteHead(int status, const HttpHeaders& headers, const HttpHeaders& more,
                      const std::string& request_id, BodyFraming framing, size_t length,
                      bool keeps_alive);
std::string WriteChunk(std::string_view bytes);
const char* ReasonPhrase(int status);

}  // namespace hillstar
