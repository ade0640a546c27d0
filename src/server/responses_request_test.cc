// What /v1/responses takes, what it refuses and how, and what the conversation becomes.
#include "server/responses_request.h"

#include <gtest/gtest.h>

#include "engine/fake_engine.h"
#include "server/api_error.h"
#include "server/response_items.h"
#include "server/response_query.h"

namespace hillstar {
namespace {

constexpr const char* kId = "resp_0123";

FakeModel Nothing() {
  return [](std::span<const int32_t>) { return std::vector<float>(264, 0.0f); };
}

OrderedJson Items(const char* text) { return OrderedJson::parse(text); }

class ResponsesRequestTest : public testing::Test {
 protected:
  ResponsesRequestTest() : engine_(Nothing()) {
    defaults_.chat.thinking = false;
    defaults_.sampling.temperature = 0.7;
    defaults_.seed = 1;
  }
  ResponsesRequest Read(const OrderedJson& body) {
    return ReadResponses(body, kId, engine_, defaults_, store_);
  }
  // The prompt as the fake template renders it.
  std::string PromptOf(const OrderedJson& body) {
    return engine_.tokenizer().Decode(Read(body).answer.prompts.at(0).ids, false);
  }
  OrderedJson Settings(const OrderedJson& body) { return Read(body).settings; }
  void ExpectRefused(const OrderedJson& body, const std::string& param, int status = 400) {
    try {
      Read(body);
      ADD_FAILURE() << body << " is taken";
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param(), param) << body << ": " << error.what();
      EXPECT_EQ(error.status(), status) << body;
    }
  }
  // The request {"input": "x"} with one member more.
  void ExpectRefused(const std::string& member, const char* value, const std::string& param) {
    ExpectRefused({{"input", "x"}, {member, OrderedJson::parse(value)}}, param);
  }

  FakeEngine engine_;
  AnswerDefaults defaults_;
  ResponseStore store_;
};

TEST_F(ResponsesRequestTest, ATextIsTheUsers) {
  EXPECT_EQ(PromptOf({{"input", "Hello"}}), "<|user|>Hello<|assistant|><think></think>");
  EXPECT_EQ(PromptOf({{"input", "Hello"}, {"instructions", "Be brief."}}),
            "<|system|>Be brief.<|user|>Hello<|assistant|><think></think>");
}

TEST_F(ResponsesRequestTest, MessagesHaveTextOrParts) {
  const char* items = R"([
    {"role": "developer", "content": "Be brief."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hel"},
                                                    {"type": "input_text", "text": "lo"}]},
    {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
     "content": [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []},
                 {"type": "refusal", "refusal": " no"}]},
    {"role": "user", "content": "Bye"}])";
  EXPECT_EQ(PromptOf({{"input", Items(items)}}),
            "<|system|>Be brief.<|user|>Hello<|assistant|>Hi no<|user|>Bye<|assistant|>"
            "<think></think>");
}

TEST_F(ResponsesRequestTest, MembersMeanWhatTheyMean) {
  const ResponsesRequest read = Read(OrderedJson::parse(R"({
    "input": "x", "temperature": 0.25, "top_p": 0.5, "max_output_tokens": 7, "stream": true,
    "store": false, "reasoning": {"effort": "high", "summary": "auto"}, "top_logprobs": 3,
    "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
    "stream_options": {"include_obfuscation": true}})"));
  EXPECT_EQ(read.answer.sampling.temperature, 0.25);
  EXPECT_EQ(read.answer.sampling.top_p, 0.5);
  EXPECT_EQ(read.answer.max_tokens, 7);
  EXPECT_EQ(read.answer.num_top_logprobs, 3);
  EXPECT_TRUE(read.answer.is_chat);
  EXPECT_TRUE(read.answer.prompts[0].starts_thinking);
  EXPECT_TRUE(read.streams);
  EXPECT_FALSE(read.is_stored);
  const ResponsesRequest silent = Read({{"input", "x"}});
  EXPECT_EQ(silent.answer.sampling.temperature, 0.7);
  EXPECT_EQ(silent.answer.max_tokens, defaults_.max_tokens);
  EXPECT_EQ(silent.answer.num_top_logprobs, -1);
  EXPECT_FALSE(silent.answer.prompts[0].starts_thinking);
  EXPECT_FALSE(silent.streams);
  EXPECT_TRUE(silent.is_stored);
}

TEST_F(ResponsesRequestTest, SettingsOfASilentRequestAreTheDefaults) {
  OrderedJson settings = Settings({{"input", "x"}});
  const OrderedJson expected = OrderedJson::parse(R"({
    "background": false, "frequency_penalty": 0.0, "instructions": null,
    "max_output_tokens": null, "max_tool_calls": null, "metadata": {},
    "parallel_tool_calls": true, "presence_penalty": 0.0, "previous_response_id": null,
    "prompt_cache_key": null, "reasoning": {"effort": null, "summary": null},
    "safety_identifier": null, "service_tier": "default", "store": true, "temperature": 0.7,
    "text": {"format": {"type": "text"}, "verbosity": "medium"}, "tool_choice": "auto",
    "tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled"})");
  EXPECT_EQ(nlohmann::json(settings), nlohmann::json(expected));
}

TEST_F(ResponsesRequestTest, SettingsRepeatTheRequest) {
  const OrderedJson request = OrderedJson::parse(R"({
    "input": "x", "instructions": "Be brief.", "max_output_tokens": 9, "metadata": {"a": "b"},
    "parallel_tool_calls": true, "prompt_cache_key": "key", "reasoning": {"effort": "low"},
    "safety_identifier": "s", "store": false, "temperature": 0.25, "tool_choice": "none",
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    "top_p": 0.5, "truncation": "disabled", "user": "u"})");
  const OrderedJson settings = Settings(request);
  for (const char* name :
       {"instructions", "max_output_tokens", "metadata", "prompt_cache_key", "safety_identifier",
        "store", "temperature", "tool_choice", "top_p", "truncation", "user"}) {
    EXPECT_EQ(settings.at(name), request.at(name)) << name;
  }
  EXPECT_EQ(settings.at("reasoning").at("effort"), "low");
  EXPECT_EQ(settings.at("tools").at(0), OrderedJson::parse(R"({"type": "function", "name": "f",
      "description": null, "parameters": {"type": "object"}, "strict": false})"));
}

TEST_F(ResponsesRequestTest, ToolsAreOfferedAsTheChoiceHasIt) {
  OrderedJson request = OrderedJson::parse(R"({"input": "x", "tools": [
    {"type": "function", "name": "f", "description": "F", "parameters": {"type": "object"}},
    {"type": "function", "name": "g", "parameters": null, "strict": false}]})");
  ResponsesRequest read = Read(request);
  ASSERT_EQ(read.answer.tools.size(), 2u);
  EXPECT_TRUE(read.answer.reads_calls);
  EXPECT_EQ(read.answer.tools[0].parameters_json, R"({"type":"object"})");
  EXPECT_EQ(read.answer.tools[1].name, "g");
  request["tool_choice"] = OrderedJson::parse(
      R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]})");
  read = Read(request);
  ASSERT_EQ(read.answer.tools.size(), 1u);
  EXPECT_EQ(read.answer.tools[0].name, "g");
  EXPECT_EQ(read.settings.at("tools").size(), 2u);
  request["tool_choice"] = "none";
  EXPECT_FALSE(Read(request).answer.reads_calls);
}

TEST_F(ResponsesRequestTest, RefusesByName) {
  ExpectRefused({{"model", "m"}}, "input");
  ExpectRefused({{"input", ""}}, "input");
  ExpectRefused({{"input", OrderedJson::array()}}, "input");
  ExpectRefused({{"input", 7}}, "input");
  struct Case {
    const char *member, *value, *param;
  };
  constexpr Case kCases[] = {
      {"max_output_tokens", "0", "max_output_tokens"},
      {"max_output_tokens", "\"1\"", "max_output_tokens"},
      {"temperature", "101", "temperature"},
      {"top_p", "1.5", "top_p"},
      {"top_logprobs", "21", "top_logprobs"},
      {"top_logprobs", "1", "top_logprobs"},
      {"stream", "1", "stream"},
      {"store", "\"no\"", "store"},
      {"instructions", "7", "instructions"},
      {"model", "7", "model"},
      {"user", "7", "user"},
      {"background", "true", "background"},
      {"conversation", "\"c\"", "conversation"},
      {"prompt", "{\"id\": \"p\"}", "prompt"},
      {"max_tool_calls", "3", "max_tool_calls"},
      {"context_management", "[{\"type\": \"compaction\"}]", "context_management"},
      {"moderation", "{\"model\": \"m\"}", "moderation"},
      {"truncation", "\"auto\"", "truncation"},
      {"include", "[\"file_search_call.results\"]", "include[0]"},
      {"include", "[\"reasoning.encrypted_content\", \"x\"]", "include[1]"},
      {"reasoning", "{\"effort\": \"huge\"}", "reasoning.effort"},
      {"reasoning", "{\"summary\": \"long\"}", "reasoning.summary"},
      {"reasoning", "{\"mode\": \"pro\"}", "reasoning.mode"},
      {"text", "{\"verbosity\": \"low\"}", "text.verbosity"},
      {"text", "{\"format\": {\"type\": \"xml\"}}", "text.format.type"},
      {"text", "{\"format\": {\"type\": \"json_schema\", \"name\": \"n\"}}", "text.format.schema"},
      {"text", "{\"format\": {\"type\": \"json_schema\", \"schema\": {}}}", "text.format.name"},
      {"text", "{\"format\": {\"type\": \"text\", \"x\": 1}}", "text.format.x"},
      {"text", "{\"style\": 1}", "text.style"},
      {"metadata", "{\"a\": 1}", "metadata"},
      {"metadata", "[]", "metadata"},
      {"stream_options", "{\"include_usage\": true}", "stream_options.include_usage"},
      {"messages", "[]", "messages"},
      {"max_tokens", "5", "max_tokens"},
      {"response_format", "{}", "response_format"},
      {"stop", "\"x\"", "stop"},
      {"tools", "[{\"type\": \"web_search\"}]", "tools[0].type"},
      {"tools", "[{\"type\": \"function\"}]", "tools[0].name"},
      {"tools", "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", "tools[0].name"},
      {"tools", "[{\"type\": \"function\", \"name\": \"a b\"}]", "tools[0].name"},
      {"tools", "[{\"type\": \"function\", \"name\": \"f\", \"parameters\": 1}]",
       "tools[0].parameters"},
      {"tools", "[{\"type\": \"function\", \"name\": \"f\", \"x\": 1}]", "tools[0].x"},
      {"tool_choice", "\"required\"", "tool_choice"},
      {"tool_choice", "\"any\"", "tool_choice"},
      {"tool_choice", "{\"type\": \"web_search_preview\"}", "tool_choice.type"},
      {"tool_choice", "{\"type\": \"function\"}", "tool_choice.name"},
      {"tool_choice",
       "{\"type\": \"allowed_tools\", \"mode\": \"auto\", \"tools\": [{\"type\": \"function\", "
       "\"name\": \"f\"}]}",
       "tool_choice.tools[0].name"},
  };
  for (const Case& c : kCases) ExpectRefused(c.member, c.value, c.param);
}

TEST_F(ResponsesRequestTest, RefusesItemsByTheirPlace) {
  const auto refuse = [&](const char* items, const std::string& param, int status = 400) {
    ExpectRefused({{"input", Items(items)}}, param, status);
  };
  refuse(R"([7])", "input[0]");
  refuse(R"([{"role": "king", "content": "x"}])", "input[0].role");
  refuse(R"([{"content": "x"}])", "input[0].role");
  refuse(R"([{"role": "user"}])", "input[0].content");
  refuse(R"([{"role": "user", "content": ""}])", "input[0].content");
  refuse(R"([{"role": "user", "content": null}])", "input[0].content");
  refuse(R"([{"role": "user", "content": 7}])", "input[0].content");
  refuse(R"([{"role": "user", "content": "x", "size": 1}])", "input[0].size");
  refuse(R"([{"role": "user", "content": [{"type": "input_image", "image_url": "file:///x"}]}])",
         "input[0].content[0].type");
  refuse(R"([{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}])",
         "input[0].content[0].type");
  refuse(R"([{"role": "user", "content": [{"type": "input_text", "text": "x", "size": 1}]}])",
         "input[0].content[0].size");
  refuse(R"([{"role": "user", "content": [{"type": "input_text"}]}])", "input[0].content[0].text");
  refuse(R"([{"role": "user", "content": "x"}, {"type": "web_search_call", "id": "w"}])",
         "input[1].type");
  refuse(R"([{"type": "function_call_output", "call_id": "c", "output": "1"}])",
         "input[0].call_id");
  refuse(R"([{"type": "function_call", "call_id": "c", "name": "f"}])", "input[0].arguments");
  refuse(R"([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "c"}])",
         "input[1].output");
  refuse(R"([{"type": "reasoning", "content": [{"type": "text", "text": "x"}]}])",
         "input[0].content[0].type");
  refuse(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])", "input");
  refuse(R"([{"type": "item_reference", "id": "msg_0123_0"}])", "input[0].id", 404);
  refuse(R"([{"id": "nothing"}])", "input[0].id", 404);
}

TEST_F(ResponsesRequestTest, APromptThatIsTooLongIsOfTheInput) {
  try {
    Read({{"input", std::string(5000, 'x')}});
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.code(), "context_length_exceeded");
    EXPECT_EQ(error.param(), "input");
  }
}

// A conversation of two turns as the store keeps it, and its third turn.
TEST_F(ResponsesRequestTest, GoesOnFromAKeptResponse) {
  ResponsesRequest first = Read({{"input", "One"}, {"instructions", "Gone later."}});
  const auto answer = [](const char* id, const char* text) {
    OrderedJson item{{"type", "message"}, {"role", "assistant"}, {"content", text}, {"id", id}};
    return OrderedJson{{"output", OrderedJson::array({item})}}.dump();
  };
  store_.Add("resp_a", {}, {first.input_items.dump(), answer("msg_a_0", "1")});
  const OrderedJson second_body = {{"input", "Two"}, {"previous_response_id", "resp_a"}};
  const ResponsesRequest second = Read(second_body);
  EXPECT_EQ(second.settings.at("previous_response_id"), "resp_a");
  EXPECT_EQ(second.input_items.size(), 1u);
  ASSERT_EQ(second.earlier.size(), 1u);
  EXPECT_EQ(PromptOf(second_body),
            "<|user|>One<|assistant|>1<|user|>Two<|assistant|><think></think>");
  store_.Add("resp_b", second.earlier, {second.input_items.dump(), answer("msg_b_0", "2")});
  EXPECT_TRUE(store_.Remove("resp_a"));
  EXPECT_EQ(PromptOf({{"input", "Three"}, {"previous_response_id", "resp_b"}}),
            "<|user|>One<|assistant|>1<|user|>Two<|assistant|>2<|user|>Three<|assistant|>"
            "<think></think>");
  EXPECT_EQ(PromptOf({{"input", Items(R"([{"type": "item_reference", "id": "msg_b_0"},
                                          {"role": "user", "content": "Three"}])")}}),
            "<|assistant|>2<|user|>Three<|assistant|><think></think>");
  ExpectRefused({{"input", Items(R"([{"type": "item_reference", "id": "msg_b_0"},
                                     {"type": "item_reference", "id": "msg_b_0"}])")}},
                "input[1].id", 404);
  ExpectRefused({{"input", OrderedJson::array()}, {"previous_response_id", "resp_b"}}, "input");
  ExpectRefused({{"input", "x"}, {"previous_response_id", "resp_a"}}, "previous_response_id", 404);
}

std::vector<ChatMessage> MessagesOf(const char* items) {
  ItemReader reader([](const std::string&) { return OrderedJson(nullptr); });
  for (const OrderedJson& item : Items(items)) reader.Read(item, "input", "0");
  return reader.TakeMessages();
}

TEST(ItemReader, AnAssistantsItemsAreOneMessage) {
  const std::vector<ChatMessage> messages = MessagesOf(R"([
    {"role": "user", "content": "Add and tell."},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "short"}],
     "content": [{"type": "reasoning_text", "text": "long"}], "encrypted_content": null},
    {"role": "assistant", "content": "I do."},
    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{\"a\":1}"},
    {"type": "function_call", "call_id": "c2", "name": "tell", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c2", "output": "told"},
    {"type": "function_call_output", "call_id": "c1",
     "output": [{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "2"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "well"}]},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Thanks."}])");
  ASSERT_EQ(messages.size(), 6u);
  EXPECT_EQ(messages[1].role, "assistant");
  EXPECT_EQ(messages[1].reasoning_content, "long");
  EXPECT_EQ(messages[1].content, "I do.");
  ASSERT_EQ(messages[1].tool_calls.size(), 2u);
  EXPECT_EQ(messages[1].tool_calls[0].name, "add");
  EXPECT_EQ(messages[1].tool_calls[0].arguments_json, "{\"a\":1}");
  EXPECT_EQ(messages[2].role, "tool");
  EXPECT_EQ(messages[2].content, "42");  // in the order of the calls
  EXPECT_EQ(messages[3].content, "told");
  EXPECT_EQ(messages[4].reasoning_content, "well");
  EXPECT_EQ(messages[4].content, "Done.");
  EXPECT_EQ(messages[5].content, "Thanks.");
}

TEST(ItemReader, MessagesInARowAreNotGluedTogether) {
  const std::vector<ChatMessage> messages = MessagesOf(R"([
    {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": ""},
    {"type": "function_call", "call_id": "c", "name": "g", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "2"},
    {"role": "user", "content": "u"}])");
  ASSERT_EQ(messages.size(), 6u);
  EXPECT_EQ(messages[0].content, "a");
  EXPECT_EQ(messages[1].content, "b");
  EXPECT_EQ(messages[1].tool_calls.at(0).name, "f");
  EXPECT_EQ(messages[3].tool_calls.at(0).name, "g");
  EXPECT_EQ(messages[4].content, "2");
  EXPECT_EQ(messages[5].content, "u");
}

TEST(ItemReader, ItemsAreKeptWithAllTheirMembers) {
  ItemReader reader([](const std::string&) { return OrderedJson(nullptr); });
  const auto read = [&](const char* item) {
    return nlohmann::json(reader.Read(OrderedJson::parse(item), "input", "7"));
  };
  const auto json = [](const char* text) { return nlohmann::json::parse(text); };
  EXPECT_EQ(read(R"({"role": "user", "content": "x"})"),
            json(R"({"type": "message", "role": "user", "id": "msg_7", "status": "completed",
                     "content": [{"type": "input_text", "text": "x"}]})"));
  EXPECT_EQ(read(R"({"role": "assistant", "content": "x", "id": "own"})"),
            json(R"({"type": "message", "role": "assistant", "id": "own", "status": "completed",
                     "content": [{"type": "output_text", "text": "x", "annotations": []}]})"));
  EXPECT_EQ(read(R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})"),
            json(R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}",
                     "id": "fc_7", "status": "completed"})"));
  EXPECT_EQ(read(R"({"type": "function_call_output", "call_id": "c", "output": "1"})"),
            json(R"({"type": "function_call_output", "call_id": "c", "output": "1",
                     "id": "fco_7", "status": "completed"})"));
  EXPECT_EQ(read(R"({"type": "reasoning", "summary": []})"),
            json(R"({"type": "reasoning", "summary": [], "content": [], "id": "rs_7",
                     "status": "completed"})"));
}

ResponseTurn TurnOf(int num_items) {
  OrderedJson items = OrderedJson::array();
  for (int i = 0; i < num_items; ++i) items.push_back({{"id", std::to_string(i)}});
  return {items.dump(), "{}"};
}

std::string IdsOf(const OrderedJson& list) {
  std::string ids;
  for (const OrderedJson& item : list.at("data")) ids += item.at("id").get<std::string>() + " ";
  return ids;
}

TEST(ResponseQuery, ListsInputItemsPageByPage) {
  const ResponseTurn turn = TurnOf(5);
  OrderedJson list = ListInputItems(turn, "");
  EXPECT_EQ(IdsOf(list), "4 3 2 1 0 ");
  EXPECT_EQ(list.at("object"), "list");
  EXPECT_EQ(list.at("first_id"), "4");
  EXPECT_EQ(list.at("last_id"), "0");
  EXPECT_EQ(list.at("has_more"), false);
  list = ListInputItems(turn, "order=asc&limit=2");
  EXPECT_EQ(IdsOf(list), "0 1 ");
  EXPECT_EQ(list.at("has_more"), true);
  EXPECT_EQ(IdsOf(ListInputItems(turn, "order=asc&limit=2&after=1")), "2 3 ");
  list = ListInputItems(turn, "limit=2&after=0");
  EXPECT_EQ(IdsOf(list), "");
  EXPECT_TRUE(list.at("first_id").is_null());
  EXPECT_EQ(ListInputItems(TurnOf(25), "").at("data").size(), 20u);
}

TEST(ResponseQuery, RefusesByName) {
  const ResponseTurn turn = TurnOf(5);
  const auto refuse = [&](const char* query, const std::string& param) {
    try {
      ListInputItems(turn, query);
      ADD_FAILURE() << query;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param(), param) << query;
      EXPECT_EQ(error.status(), 400) << query;
    }
  };
  refuse("limit=0", "limit");
  refuse("limit=101", "limit");
  refuse("limit=", "limit");
  refuse("limit", "limit");
  refuse("order=up", "order");
  refuse("after=9", "after");
  refuse("x=1", "x");
  CheckResponseQuery("");
  CheckResponseQuery("stream=false&include[]=reasoning.encrypted_content&&");
  EXPECT_THROW(CheckResponseQuery("stream=true"), ApiError);
  EXPECT_THROW(CheckResponseQuery("starting_after=3"), ApiError);
}

}  // namespace
}  // namespace hillstar
