// POST /v1/responses: OpenAI's request, read and checked. docs/responses.md lists the members.
// Source: platform.openai.com/docs/api-reference/responses/create. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "server/answer_request.h"
#include "server/api_json.h"
#include "server/response_store.h"

namespace hillstar {

struct ResponsesRequest {
  AnswerRequest answer;
  bool streams = false;
  bool is_stored = true;
  OrderedJson settings;     // members of the response that repeat the request's, by their names
  OrderedJson input_items;  // of this request, each with an id
  ResponseStore::Turns earlier;  // of "previous_response_id"
};

// `id` is the response's, of which ids of items are made. Errors: ApiError of status 400, or 404
// for a response or an item that is not kept.
ResponsesRequest ReadResponses(const OrderedJson& body, const std::string& id, const Engine& engine,
                               const AnswerDefaults& defaults, const ResponseStore& store);

// The id behind an item's prefix: "resp_12ab", 3 -> "12ab_3".
std::string ItemIdEnd(const std::string& response_id, std::string_view place);

}  // namespace hillstar
