#include "cli/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/request.h"
#include "engine/generate.h"
#include "engine/sampler.h"
#include "formats/json_scan.h"
#include "model/config.h"
#include "numerics/likelihood.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

// `where` names file and line.
std::string MemberOf(const Json& object, const char* name, const std::string& where) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) {
    throw Error(ErrorCode::kBadFile, fmt::format("{}: the object has no text \"{}\"", where, name));
  }
  return found->get<std::string>();
}

EvalRow ParseEvalRow(const std::string& text, const std::string& source, int64_t line) {
  const std::string where = fmt::format("{}, line {}", source, line);
  const Json json = ParseJson(text, where, text.size());
  if (!json.is_object()) {
    throw Error(ErrorCode::kBadFile, fmt::format("{} is not a JSON object", where));
  }
  return {MemberOf(json, "skill", where), MemberOf(json, "prompt", where),
          MemberOf(json, "answer", where), where};
}

std::set<std::string> SplitNames(const std::string& list) {
  std::set<std::string> names;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) names.insert(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

class RowEvaluator {
 public:
  RowEvaluator(Engine& engine, int64_t max_tokens, const ReferenceFn& reference)
      : engine_(engine),
        max_tokens_(max_tokens),
        reference_(reference),
        sequence_(engine.NewSequence()) {}

  EvalSum Evaluate(const EvalRow& row) {
    const Tokenizer& tokenizer = engine_.tokenizer();
    const std::vector<int32_t> prompt = RawPromptIds(tokenizer, row.prompt);
    const std::vector<int32_t> answer = tokenizer.Encode(row.answer, AddedTokens::kParse);
    if (answer.empty()) throw Error(ErrorCode::kBadFile, "the answer is empty");
    for (const int32_t id : answer) {  // the engine does not see the last one
      if (id < engine_.config().vocab_size) continue;
      throw Error(ErrorCode::kBadRequest,
                  fmt::format("the answer's token \"{}\" has the id {}, outside the model's "
                              "vocabulary of {}",
                              tokenizer.TokenBytes(id), id, engine_.config().vocab_size));
    }
    EvalSum sum;
    sum.rows = 1;
    sum.answer_tokens = int64_t(answer.size());
    if (reference_) {
      EvaluateReference(prompt, answer, sum);
    } else {
      sum.exact = IsExact(prompt, answer) ? 1 : 0;
      sum.nll = AnswerNll(prompt, answer);
    }
    return sum;
  }

 private:
  bool IsExact(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
    const Tokenizer& tokenizer = engine_.tokenizer();
    const std::vector<int32_t>& ends = engine_.config().eos_ids;
    const auto first_end = std::ranges::find_first_of(answer, ends);
    const std::string want = tokenizer.Decode({answer.begin(), first_end}, /*skip_special=*/false);
    GenerateRequest request;
    request.prompt_ids = prompt;
    request.sampling.temperature = 0;
    request.max_tokens = max_tokens_;
    request.context_tokens = engine_.context_tokens();
    request.end_ids = ends;
    std::string got;
    request.on_token = [&](int32_t id) {
      if (id >= tokenizer.vocab_size()) return false;  // padding: no text at all
      got += tokenizer.TokenBytes(id);
      return want.starts_with(got);  // nothing that follows can make it equal again
    };
    const GenerateResult result = Generate(*sequence_, tokenizer, request);
    return result.end_id >= 0 && got == want;
  }

  double AnswerNll(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
    sequence_->Truncate(int64_t(prompt.size()) - 1);
    std::vector<int32_t> inputs = {prompt.back()};
    inputs.insert(inputs.end(), answer.begin(), answer.end() - 1);
    const std::span<const float> logits = sequence_->Append(inputs, LogitsMode::kAll);
    const size_t vocab = logits.size() / inputs.size();
    double nll = 0;
    for (size_t i = 0; i < answer.size(); ++i) {
      nll += NegativeLogLikelihood(logits.subspan(i * vocab, vocab), answer[i]);
    }
    return nll;
  }

  void EvaluateReference(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer,
                         EvalSum& sum) {
    const std::vector<int32_t>& ends = engine_.config().eos_ids;
    const auto num_answered = std::ranges::find_first_of(answer, ends) - answer.begin();
    std::vector<int32_t> ids = prompt;
    ids.insert(ids.end(), answer.begin(), answer.end());
    int64_t num_likeliest = 0;  // of the answered tokens and the end that follows
    reference_(ids, [&](int64_t first, std::span<const float> logits) {
      const auto vocab = size_t(engine_.config().vocab_size);
      for (size_t at = 0; at < logits.size(); at += vocab) {
        const int64_t i = first + int64_t(at / vocab) + 1 - int64_t(prompt.size());
        if (i < 0 || i > int64_t(answer.size())) continue;
        const auto row = logits.subspan(at, vocab);
        const int32_t best = Argmax(row);
        if (i < int64_t(answer.size())) sum.nll += NegativeLogLikelihood(row, answer[size_t(i)]);
        if (i < num_answered) num_likeliest += int64_t(best == answer[size_t(i)]);
        if (i == num_answered) num_likeliest += std::ranges::count(ends, best);
      }
    });
    sum.exact = num_likeliest == num_answered + 1 ? 1 : 0;
  }

  Engine& engine_;
  int64_t max_tokens_;
  const ReferenceFn& reference_;
  std::unique_ptr<Sequence> sequence_;
};

// What a row's time follows: rows of one file may differ a thousandfold.
uint64_t TextBytes(const EvalRow& row) { return row.prompt.size() + row.answer.size(); }

void Add(const EvalSum& row, EvalSum& sum) {
  sum.rows += row.rows;
  sum.exact += row.exact;
  sum.answer_tokens += row.answer_tokens;
  sum.nll += row.nll;
}

}  // namespace

std::vector<EvalRow> ParseEvalRows(const std::string& jsonl, const std::string& source) {
  std::vector<EvalRow> rows;
  int64_t line_number = 0;
  for (size_t begin = 0; begin < jsonl.size();) {
    const size_t end = std::min(jsonl.find('\n', begin), jsonl.size());
    const std::string line = jsonl.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    rows.push_back(ParseEvalRow(line, source, line_number));
  }
  if (rows.empty()) {
    throw Error(ErrorCode::kBadFile, fmt::format("{} holds no rows", source));
  }
  return rows;
}

std::vector<EvalRow> SelectEvalRows(std::vector<EvalRow> rows, const std::string& skills,
                                    int64_t limit) {
  const std::set<std::string> wanted = SplitNames(skills);
  std::map<std::string, int64_t> taken;
  for (const EvalRow& row : rows) taken[row.skill] = 0;
  for (const std::string& skill : wanted) {
    if (taken.contains(skill)) continue;
    std::string known;
    for (const auto& [name, count] : taken) known += (known.empty() ? "" : ", ") + name;
    throw Error(ErrorCode::kUsage,
                fmt::format("no row has the skill \"{}\"; there are {}", skill, known));
  }
  std::erase_if(rows, [&](const EvalRow& row) {
    if (!wanted.empty() && !wanted.contains(row.skill)) return true;
    return limit > 0 && ++taken[row.skill] > limit;
  });
  return rows;
}

EvalReport Evaluate(Engine& engine, const std::vector<EvalRow>& rows, int64_t max_tokens,
                    const ProgressFn& progress, const ReferenceFn& reference) {
  RowEvaluator evaluator(engine, max_tokens, reference);
  EvalReport report;
  uint64_t done_bytes = 0, total_bytes = 0;
  for (const EvalRow& row : rows) total_bytes += TextBytes(row);
  for (const EvalRow& row : rows) {
    EvalSum sum;
    try {
      sum = evaluator.Evaluate(row);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{} ({}): {}", row.where, row.skill, error.what()));
    }
    if (!report.by_skill.contains(row.skill)) report.skills.push_back(row.skill);
    Add(sum, report.by_skill[row.skill]);
    Add(sum, report.all);
    if (progress) progress(done_bytes += TextBytes(row), total_bytes);
  }
  return report;
}

}  // namespace hillstar
