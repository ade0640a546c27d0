#include "grammar/text_language.h"

#include <algorithm>

#include "core/check.h"
#include "grammar/pattern.h"

namespace hillstar {
namespace {

struct Format {
  std::string name, pattern;
};

std::vector<Format> MakeFormats() {
  // Years of four digits without a leading zero; 29 February in leap years only.
  const std::string date =
      "(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
      "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
      "|(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)";
  // Without leap seconds, and with an offset, as RFC 3339 asks.
  const std::string time =
      "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?"
      "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
  const std::string hours =
      "(?:[0-9]{1,6}H(?:[0-9]{1,6}M(?:[0-9]{1,6}S)?)?|[0-9]{1,6}M(?:[0-9]{1,6}S)?|[0-9]{1,6}S)";
  const std::string days =
      "(?:[0-9]{1,6}Y(?:[0-9]{1,6}M(?:[0-9]{1,6}D)?)?|[0-9]{1,6}M(?:[0-9]{1,6}D)?|[0-9]{1,6}D)";
  const std::string byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  // The last label has letters only: it is no IPv4 address.
  const std::string host = "(?:[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\\.){1,4}[a-z]{2,12}";
  const std::string atom = "[A-Za-z0-9_+-]{1,32}";
  const std::string part = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
  return {
      {"date", "^" + date + "$"},
      {"time", "^" + time + "$"},
      {"date-time", "^" + date + "T" + time + "$"},
      {"duration", "^P(?:[0-9]{1,6}W|" + days + "(?:T" + hours + ")?|T" + hours + ")$"},
      {"uuid", "^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"},
      {"ipv4", "^(?:" + byte + "\\.){3}" + byte + "$"},
      {"ipv6", "^(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$"},
      {"hostname", "^" + host + "$"},
      {"email", "^" + atom + "(?:\\." + atom + "){0,3}@" + host + "$"},
      {"uri", "^[a-z][a-z0-9+.-]{1,15}://" + host + "(?::[1-9][0-9]{1,3})?(?:/" + part +
                  "*)*(?:\\?(?:" + part + "|[/?])*)?(?:#(?:" + part + "|[/?])*)?$"},
  };
}

const std::vector<Format>& Formats() {
  static const std::vector<Format> formats = MakeFormats();
  return formats;
}

}  // namespace

std::shared_ptr<const Dfa> TextLanguages::OfPattern(const std::string& pattern) {
  std::shared_ptr<const Dfa>& known = by_pattern_[pattern];
  if (known == nullptr) {
    known = std::make_shared<const Dfa>(TextsMatching(pattern, budget_));
  }
  return known;
}

std::shared_ptr<const Dfa> TextLanguages::OfFormat(std::string_view format) {
  for (const Format& known : Formats()) {
    if (known.name == format) return OfPattern(known.pattern);
  }
  CHECK(false);
}

bool IsTextFormat(std::string_view format) {
  return std::ranges::any_of(Formats(), [&](const Format& known) { return known.name == format; });
}

std::string TextFormats() {
  std::string names;
  for (const Format& known : Formats()) {
    names += (names.empty() ? "" : ", ") + known.name;
  }
  return names;
}

}  // namespace hillstar
