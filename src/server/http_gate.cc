#include "server/http_gate.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

namespace hillstar {
namespace {

bool IsAddress(const std::string& host) {
  std::array<uint8_t, 16> bytes;
  return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

}  // namespace

std::string HostName(std::string_view host) {
  const bool has_brackets = host.starts_with('[');
  const size_t end = std::min(host.find(has_brackets ? ']' : ':'), host.size());
  const std::string_view port = host.substr(std::min(end + has_brackets, host.size()));
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const bool is_port =
      port.empty() || (port[0] == ':' && std::ranges::all_of(port.substr(1), is_digit));
  if (!is_port || (has_brackets && end == host.size())) return "";
  std::string name(host.substr(has_brackets, end - has_brackets));
  if (name.ends_with('.')) name.pop_back();
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return name;
}

HttpGate::HttpGate(Options options) : options_(std::move(options)) {
  for (const std::string& key : options_.keys) digests_.push_back(DigestOf(key));
  options_.keys.clear();
  for (std::string& host : options_.hosts) {
    if (host != "*") host = HostName(host);
  }
}

HttpGate::Digest HttpGate::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

bool HttpGate::IsHostAllowed(std::string_view host) const {
  const std::string name = HostName(host);
  // An address cannot be made to point elsewhere.
  if (name == "localhost" || name.ends_with(".localhost") || IsAddress(name)) return true;
  return std::ranges::any_of(options_.hosts,
                             [&](const std::string& h) { return h == "*" || h == name; });
}

bool HttpGate::IsOriginAllowed(std::string_view origin) const {
  return !origin.empty() && std::ranges::any_of(options_.origins, [&](const std::string& o) {
    return o == "*" || o == origin;
  });
}

// Digests are compared in whole, each with every key's: the time tells nothing of a key.
bool HttpGate::IsKey(std::string_view key) const {
  const Digest given = DigestOf(key);
  bool is_key = false;
  for (const Digest& digest : digests_) {
    is_key |= CRYPTO_memcmp(given.data(), digest.data(), digest.size()) == 0;
  }
  return is_key && !key.empty();
}

// Some clients bring one key of the server's and one of another's.
bool HttpGate::HasKey(const HttpRequest& head) const {
  if (IsKey(head.Header("x-api-key"))) return true;
  const std::string_view authorization = head.Header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; };
  return std::ranges::equal(authorization.substr(0, kBearer.size()), kBearer, {}, lower) &&
         IsKey(authorization.substr(kBearer.size()));
}

HttpRefusal HttpGate::AnswerPreflight(const HttpRequest& head) const {
  HttpRefusal answer{204, MoreHeaders(head)};
  if (!IsOriginAllowed(head.Header("origin"))) return answer;
  answer.headers.push_back({"Access-Control-Allow-Methods", "GET, POST, DELETE"});
  answer.headers.push_back({"Access-Control-Allow-Headers",
                            head.Header("access-control-request-headers").empty()
                                ? "authorization, content-type, x-api-key"
                                : std::string(head.Header("access-control-request-headers"))});
  answer.headers.push_back({"Access-Control-Max-Age", "600"});
  return answer;
}

std::optional<HttpRefusal> HttpGate::Check(const HttpRequest& head) const {
  const bool has_host =
      std::ranges::any_of(head.headers, [](const auto& header) { return header.first == "host"; });
  // Without one comes HTTP/1.0 alone, which no browser speaks.
  if (has_host && !IsHostAllowed(head.Header("host"))) {
    return options_.make_error(
        403, head.path,
        fmt::format("this server does not go by the name {} (--allowed-host)",
                    HostName(head.Header("host"))));
  }
  if (head.method == "OPTIONS") return AnswerPreflight(head);
  if (digests_.empty() || !options_.needs_key(head.path) || HasKey(head)) return std::nullopt;
  HttpRefusal refusal = options_.make_error(
      401, head.path,
      "the request has no valid key: Authorization: Bearer KEY or x-api-key: KEY brings one");
  refusal.headers.push_back({"WWW-Authenticate", "Bearer"});
  for (auto& header : MoreHeaders(head)) refusal.headers.push_back(std::move(header));
  return refusal;
}

HttpHeaders HttpGate::MoreHeaders(const HttpRequest& head) const {
  HttpHeaders headers;
  if (options_.origins.empty()) return headers;
  headers.push_back({"Vary", "Origin"});
  const std::string_view origin = head.Header("origin");
  if (!IsOriginAllowed(origin)) return headers;
  headers.push_back({"Access-Control-Allow-Origin", std::string(origin)});
  headers.push_back({"Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After"});
  return headers;
}

}  // namespace hillstar
