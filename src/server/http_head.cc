#include "server/http_head.h"

#include <fmt/format.h>

#include <boost/beast/http/error.hpp>
#include <iterator>

#include "server/http_message.h"

namespace hillstar {
namespace {

namespace http = boost::beast::http;
using Head = http::request_header<>;
using Fault = std::optional<HttpFault>;

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return lower;
}

Fault ReadTarget(const Head& head, const HttpLimits& limits, HttpRequest* request) {
  const std::string_view text = head.target();
  if (text.size() > limits.target_bytes) {
    return HttpFault{414, fmt::format("the request's target has {} bytes; {} are the most",
                                      text.size(), limits.target_bytes)};
  }
  const std::optional<HttpTarget> target = ParseTarget(text);
  if (!target) return HttpFault{400, "the request's target is no path that could be here"};
  request->path = target->path;
  request->query = target->query;
  if (target->host.empty()) return std::nullopt;
  // Of an absolute target; it counts, not the header.
  std::erase_if(request->headers, [](const auto& header) { return header.first == "host"; });
  request->headers.emplace_back("host", target->host);
  return std::nullopt;
}

Fault CheckMethod(const Head& head) {
  const std::string method(head.method_string());
  if (head.method() == http::verb::unknown) return HttpFault{501, "the method is not known here"};
  if (head.method() == http::verb::connect || head.method() == http::verb::trace) {
    return HttpFault{405, method + " is not served"};
  }
  return std::nullopt;
}

Fault CheckHosts(const Head& head) {
  const size_t num_hosts = head.count(http::field::host);
  if (head.version() >= 11 && num_hosts == 0) return HttpFault{400, "the request has no Host"};
  if (num_hosts > 1) return HttpFault{400, "the request has more than one Host"};
  return std::nullopt;
}

// Two servers in a row must not disagree where a body ends.
Fault CheckFraming(const Head& head) {
  const size_t num_codings = head.count(http::field::transfer_encoding);
  if (num_codings == 0) return std::nullopt;
  if (num_codings > 1 || LowerCase(head[http::field::transfer_encoding]) != "chunked") {
    return HttpFault{501, "the only transfer encoding that is understood is chunked"};
  }
  if (head.version() < 11) return HttpFault{400, "HTTP/1.0 has no Transfer-Encoding"};
  if (head.count(http::field::content_length) > 0) {
    return HttpFault{400, "the request has both Content-Length and Transfer-Encoding"};
  }
  return std::nullopt;
}

Fault CheckExpectation(const Head& head) {
  const size_t num_expectations = head.count(http::field::expect);
  if (num_expectations == 0) return std::nullopt;
  if (num_expectations == 1 && LowerCase(head[http::field::expect]) == "100-continue") {
    return std::nullopt;
  }
  return HttpFault{417, "the only expectation that is met is 100-continue"};
}

}  // namespace

Fault ReadHead(const Head& head, const HttpLimits& limits, HttpRequest* request) {
  request->method = std::string(head.method_string());
  for (const auto& field : head) {
    request->headers.emplace_back(LowerCase(field.name_string()), std::string(field.value()));
  }
  request->id = RequestId(request->Header("x-request-id"));
  if (request->headers.size() > limits.headers) {
    return HttpFault{431, fmt::format("the request has {} headers; {} are the most",
                                      request->headers.size(), limits.headers)};
  }
  if (Fault fault = CheckMethod(head)) return fault;
  if (Fault fault = CheckHosts(head)) return fault;
  if (Fault fault = ReadTarget(head, limits, request)) return fault;
  if (Fault fault = CheckFraming(head)) return fault;
  return CheckExpectation(head);
}

Fault FaultOf(const boost::system::error_code& error, const HttpLimits& limits) {
  if (error == http::error::end_of_stream || error == http::error::partial_message) {
    return std::nullopt;
  }
  if (error == http::error::body_limit) return TooLong(limits);
  if (error == http::error::header_limit) {
    return HttpFault{
        431, fmt::format("the request's headers are larger than {} bytes", limits.header_bytes)};
  }
  if (error == http::error::bad_version) {
    return HttpFault{505, "the request is not of HTTP/1.0 or HTTP/1.1"};
  }
  if (error.category() != make_error_code(http::error::bad_version).category()) {
    return std::nullopt;
  }
  return HttpFault{400, "the request is not understood: it breaks HTTP's rules"};
}

HttpFault TooSlow() { return {408, "the request came too slowly"}; }

HttpFault TooLong(const HttpLimits& limits) {
  return {413, fmt::format("the request's body is larger than {} bytes", limits.body_bytes)};
}

}  // namespace hillstar
