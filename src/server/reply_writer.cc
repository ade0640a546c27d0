#include "server/reply_writer.h"

#include <fmt/format.h>

namespace hillstar {

std::string StreamEvent(const OrderedJson& data, std::string_view name) {
  const std::string event = name.empty() ? "" : fmt::format("event: {}\n", name);
  return fmt::format("{}data: {}\n\n", event, JsonText(data));
}

void StartStream(HttpReply& reply, std::string keep_alive) {
  reply.Start(200, {{"Content-Type", "text/event-stream"}, {"X-Accel-Buffering", "no"}},
              {kKeepAliveInterval, std::move(keep_alive)});
}

void SendJson(HttpReply& reply, int status, const OrderedJson& body) {
  reply.Send(status, {{"Content-Type", "application/json"}}, JsonText(body));
}

void FailOpenAi(const ReplyContext& context, bool has_started, const ApiError& error) {
  const std::string body = ErrorBody(ApiStyle::kOpenAi, error, context.request_id);
  HttpReply& reply = *context.reply;
  if (!has_started) {
    return reply.Send(error.status(), {{"Content-Type", "application/json"}}, body);
  }
  reply.Write("data: " + body + "\n\n");
  reply.End();
}

std::string ObjectId(std::string_view prefix, const std::string& request_id) {
  return fmt::format("{}{}", prefix, request_id);
}

}  // namespace hillstar
