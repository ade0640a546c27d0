// Who may ask: keys, the name that the server is called by, and pages of other origins. Looks at a
// request's head alone. Immutable; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_server.h"

namespace hillstar {

class HttpGate {
 public:
  struct Options {
    std::vector<std::string> keys;     // none: no key is needed
    std::vector<std::string> hosts;    // names besides localhost and addresses; "*": all
    std::vector<std::string> origins;  // whose pages may read answers; "*": all
    // Whether a path wants a key.
    std::function<bool(std::string_view path)> needs_key;
    // The body and headers of a refusal.
    std::function<HttpRefusal(int status, std::string_view path, const std::string& sentence)>
        make_error;
  };
  explicit HttpGate(Options options);

  // What the head is answered with where it does not come through: 403 for a name that is not the
  // server's (a page that had its own name point here), 401 without a key, and the answers to
  // browsers that ask on behalf of a page (OPTIONS).
  std::optional<HttpRefusal> Check(const HttpRequest& head) const;
  // What lets a page of another origin read the answer.
  HttpHeaders MoreHeaders(const HttpRequest& head) const;

 private:
  using Digest = std::array<uint8_t, 32>;

  bool IsHostAllowed(std::string_view host) const;
  bool IsOriginAllowed(std::string_view origin) const;
  bool IsKey(std::string_view key) const;
  bool HasKey(const HttpRequest& head) const;
  HttpRefusal AnswerPreflight(const HttpRequest& head) const;
  static Digest DigestOf(std::string_view key);

  Options options_;
  std::vector<Digest> digests_;
};

// The name in a Host header: without port, brackets and the dot at the end, in lower case. "" for
// what is no name and port.
std::string HostName(std::string_view host);

}  // namespace hillstar
