// What clients ask of a response that is kept, behind the '?' of the target.
// Source: platform.openai.com/docs/api-reference/responses/get and /input-items. Pure functions;
// any thread. Errors: ApiError of status 400 naming the member.
#pragma once

#include <string_view>

#include "server/api_json.h"
#include "server/response_store.h"

namespace hillstar {

// GET /v1/responses/{id}: only members without effect.
void CheckResponseQuery(std::string_view query);
// GET /v1/responses/{id}/input_items: the list that the query asks for.
OrderedJson ListInputItems(const ResponseTurn& turn, std::string_view query);

}  // namespace hillstar
