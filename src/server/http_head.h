// What the head of a request says, and why it is refused where it breaks HTTP's rules or the
// limits. Pure functions over what Beast has parsed; any thread.
#pragma once

#include <boost/beast/http/message.hpp>
#include <optional>
#include <string>

#include "server/http_server.h"

namespace hillstar {

// Why a request is not served.
struct HttpFault {
  int status = 400;
  std::string sentence;
};

// Fills in all of `request` that a head tells. What was found before a fault stays in `request`.
std::optional<HttpFault> ReadHead(const boost::beast::http::request_header<>& head,
                                  const HttpLimits& limits, HttpRequest* request);

// What Beast's error means; nothing where the client has gone.
std::optional<HttpFault> FaultOf(const boost::system::error_code& error, const HttpLimits& limits);
HttpFault TooSlow();
HttpFault TooLong(const HttpLimits& limits);

}  // namespace hillstar
