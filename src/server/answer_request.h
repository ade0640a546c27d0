// What the requests of every API become before they are answered. Plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampler.h"
#include "grammar/grammar.h"
#include "hillstar/engine.h"
#include "tokenizer/answer_reader.h"
#include "tokenizer/chat_format.h"

namespace hillstar {

struct Prompt {
  std::vector<int32_t> ids;
  bool starts_thinking = false;  // ends in an open <think>
};

struct AnswerRequest {
  std::vector<Prompt> prompts;
  int64_t answers_each = 1;  // of every prompt
  SamplingParams sampling;   // answer i of all is drawn with seed + i
  int64_t max_tokens = 0;
  std::vector<std::string> stops;
  std::vector<LogitBias> biases;
  int64_t num_top_logprobs = -1;  // -1: no logprobs
  // Reasoning and tool calls are told apart; end tokens are those of a conversation.
  bool is_chat = false;
  bool reads_calls = false;
  std::vector<ToolDefinition> tools;
  std::shared_ptr<const Grammar> grammar;  // of the answer behind the reasoning; null: any text
  int64_t num_answers() const { return int64_t(prompts.size()) * answers_each; }
};

// What a server answers with where a request is silent.
struct AnswerDefaults {
  SamplingParams sampling;
  std::optional<uint64_t> seed;  // else one for each request
  int64_t max_tokens = 4096;
  ChatOptions chat;
};

}  // namespace hillstar
