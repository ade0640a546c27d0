// Exact-answer rate and answer likelihood over a list of questions. Uses the engine from the
// caller's thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/reference_fn.h"
#include "hillstar/engine.h"

namespace hillstar {

struct EvalRow {
  std::string skill, prompt, answer;
  std::string where;  // "FILE, line 5"
};

// One JSON object a line with the members skill, prompt and answer.
// Errors: kBadFile naming the file, which is `source`, and the line.
std::vector<EvalRow> ParseEvalRows(const std::string& jsonl, const std::string& source);

// Rows whose skill is in the comma-separated `skills` ("" for all), at most `limit` a skill (0:
// all). Errors: kUsage for a skill that no row has.
std::vector<EvalRow> SelectEvalRows(std::vector<EvalRow> rows, const std::string& skills,
                                    int64_t limit);

struct EvalSum {
  int64_t rows = 0;
  int64_t exact = 0;
  int64_t answer_tokens = 0;
  double nll = 0;  // nats, of all answer tokens

  double exact_rate() const { return rows > 0 ? double(exact) / double(rows) : 0; }
  double nll_per_token() const { return answer_tokens > 0 ? nll / double(answer_tokens) : 0; }
};

struct EvalReport {
  std::vector<std::string> skills;  // in the order of the rows
  std::map<std::string, EvalSum> by_skill;
  EvalSum all;
};

// An answer is exact if the text before its first end token equals the given answer's text before
// its own. At most `max_tokens` are generated. `progress` is called after each row with the bytes
// of prompts and answers that are done and of all. Errors: Generate's, with the row's file and
// line. A `reference`, if given, answers in the engine's place: exact is then an answer all of
// whose tokens, an end token last, are the likeliest after those before them.
EvalReport Evaluate(Engine& engine, const std::vector<EvalRow>& rows, int64_t max_tokens,
                    const ProgressFn& progress, const ReferenceFn& reference = {});

}  // namespace hillstar
