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
  if (host.starts_with('[')) {
    host = host.substr(1, std::min(host.find(']'), host.size()) - 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  if (host.ends_with('.')) host.remove_suffix(1);
  std::string name(host);
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
bool HttpGate::HasKey(const HttpRequest& head) const {
  std::string_view key = head.Header("x-api-key");
  const std::string_view authorization = head.Header("authorization");
  constexpr std::string_view kBearer = "bearer ";
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; };
  if (key.empty() && authorization.size() > kBearer.size() &&
      std::ranges::equal(authorization.substr(0, kBearer.size()), kBearer, {}, lower)) {
    key = authorization.substr(kBearer.size());
  }
  const Digest given = DigestOf(key);
  bool is_right = false;
  for (const Digest& digest : digests_) {
    is_right |= CRYPTO_memcmp(given.data(), digest.data(), digest.size()) == 0;
  }
  return is_right && !key.empty();
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
  if (!IsHostAllowed(head.Header("host"))) {
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
