#include "server/http_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <random>

namespace hillstar {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> DecodePath(std::string_view text) {
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = char(high * 16 + low);
      if (c == '/' || c == '\\') return std::nullopt;
      i += 2;
    }
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) return std::nullopt;
    path += c;
  }
  return path;
}

bool HasDotSegment(std::string_view path) {
  while (!path.empty()) {
    const size_t end = std::min(path.find('/', 1), path.size());
    const std::string_view segment = path.substr(0, end);
    if (segment == "/." || segment == "/..") return true;
    path.remove_prefix(end);
  }
  return false;
}

bool IsIdPart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

// Without regard to case; `start` is in lower case.
bool StartsWith(std::string_view text, std::string_view start) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; };
  return std::ranges::equal(text.substr(0, start.size()), start, {}, lower);
}

bool Has(const HttpHeaders& headers, std::string_view name) {
  return std::ranges::any_of(headers, [&](const auto& header) { return header.first == name; });
}

// A header's value on one line.
std::string OneLine(std::string value) {
  std::ranges::replace_if(
      value, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }, ' ');
  return value;
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::optional<HttpTarget> ParseTarget(std::string_view target) {
  HttpTarget parsed;
  for (std::string_view scheme : {"http://", "https://"}) {
    if (!StartsWith(target, scheme)) continue;
    target.remove_prefix(scheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    parsed.host = target.substr(0, end);
    if (parsed.host.empty()) return std::nullopt;
    target.remove_prefix(end);
    break;
  }
  const bool is_absolute = !parsed.host.empty();
  if (!target.starts_with('/') && !is_absolute) return std::nullopt;
  target = target.substr(0, target.find('#'));
  const size_t question = target.find('?');
  const auto path = DecodePath(target.substr(0, question));
  if (!path || HasDotSegment(*path)) return std::nullopt;
  parsed.path = path->empty() ? std::string(1, '/') : *path;
  if (question != std::string_view::npos) parsed.query = target.substr(question + 1);
  return parsed;
}

std::string RequestId(std::string_view given) {
  constexpr size_t kMaxIdBytes = 128;
  if (!given.empty() && given.size() <= kMaxIdBytes && std::ranges::all_of(given, IsIdPart)) {
    return std::string(given);
  }
  // Of this program's run, and a number.
  static const uint32_t run = std::random_device()();
  static std::atomic<uint64_t> next{1};
  return fmt::format("{:08x}{:08x}", run, next++);
}

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Status";
  }
}

std::string WriteHead(int status, const HttpHeaders& headers, const HttpHeaders& more,
                      const std::string& request_id, BodyFraming framing, size_t length,
                      bool keeps_alive) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, ReasonPhrase(status));
  const auto add = [&](std::string_view name, const std::string& value) {
    head += fmt::format("{}: {}\r\n", name, OneLine(value));
  };
  for (const auto& [name, value] : headers) add(name, value);
  for (const auto& [name, value] : more) add(name, value);
  if (!Has(headers, "Cache-Control")) add("Cache-Control", "no-store");
  add("X-Content-Type-Options", "nosniff");
  if (!request_id.empty()) {
    add("X-Request-Id", request_id);
    add("Request-Id", request_id);  // where Anthropic's clients look
  }
  if (framing == BodyFraming::kLength) add("Content-Length", std::to_string(length));
  if (framing == BodyFraming::kChunked) add("Transfer-Encoding", "chunked");
  add("Connection", keeps_alive ? "keep-alive" : "close");
  head += "\r\n";
  return head;
}

std::string WriteChunk(std::string_view bytes) {
  return bytes.empty() ? std::string() : fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

}  // namespace hillstar
