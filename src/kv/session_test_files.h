// For tests: made-up sessions whose rows follow from their ids, so that a wrong row is seen.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kv/session_file.h"

namespace hillstar {

inline constexpr int64_t kTestPageTokens = 4;
inline constexpr int64_t kTestRowBytes = 24;

inline SessionIdentity TestIdentity(int64_t page_tokens = kTestPageTokens,
                                    int64_t row_bytes = kTestRowBytes) {
  SessionIdentity identity;
  for (size_t i = 0; i < identity.model.size(); ++i) identity.model[i] = uint8_t(i + 1);
  identity.kv_format = "q15";
  identity.page_tokens = uint32_t(page_tokens);
  identity.page_bytes = uint64_t(page_tokens * row_bytes);
  identity.num_layers = 3;
  return identity;
}

// What a sequence has after a turn.
struct TestTurn {
  std::vector<int32_t> ids;
  int64_t num_rows = 0;
  std::string meta;
};

// Seeds of the rows: each depends on all ids up to its own.
inline std::vector<uint64_t> RowSeeds(std::span<const int32_t> ids) {
  std::vector<uint64_t> seeds;
  uint64_t seed = 0x9e3779b97f4a7c15;
  for (const int32_t id : ids) {
    seed = (seed ^ uint64_t(uint32_t(id))) * 0xff51afd7ed558ccd;
    seed ^= seed >> 29;
    seeds.push_back(seed);
  }
  return seeds;
}

inline void FillRow(uint64_t seed, std::span<uint8_t> row) {
  for (size_t i = 0; i < row.size(); ++i) {
    if (i % 8 == 0) seed = seed * 6364136223846793005 + 1442695040888963407;
    row[i] = uint8_t(seed >> (8 * (i % 8)));
  }
}

// The pages of `turn`; rows that it lacks hold something else every time. Notes what was asked for.
inline SessionFile::PageSource PagesOf(const TestTurn& turn, const SessionIdentity& identity,
                                       std::vector<int64_t>* asked = nullptr) {
  return [seeds = RowSeeds(turn.ids), num_rows = turn.num_rows, identity, asked,
          noise = uint64_t{0}](int64_t page, std::span<uint8_t> out) mutable {
    if (asked) asked->push_back(page);
    const size_t row_bytes = out.size() / identity.page_tokens;
    for (int64_t r = 0; r < int64_t(identity.page_tokens); ++r) {
      const int64_t pos = page * int64_t(identity.page_tokens) + r;
      FillRow(pos < num_rows ? seeds[size_t(pos)] : ++noise,
              out.subspan(size_t(r) * row_bytes, row_bytes));
    }
  };
}

inline void SaveTurn(SessionFile* session, const TestTurn& turn,
                     std::vector<int64_t>* asked = nullptr) {
  session->Save(turn.ids, turn.num_rows, turn.meta, PagesOf(turn, session->identity(), asked));
}

// Reads every page, so that damaged ones are found.
inline void ReadAllPages(SessionFile* session) {
  const int64_t page_tokens = session->identity().page_tokens;
  std::vector<uint8_t> page(session->identity().page_bytes);
  for (int64_t i = 0; i * page_tokens < int64_t(session->ids().size()); ++i) {
    session->ReadPage(i, page);
  }
}

// Whether every stored row is the one of its ids. Pages that turn out to be damaged are left out.
inline bool RowsAreRight(SessionFile* session) {
  const SessionIdentity identity = session->identity();
  const std::vector<uint64_t> seeds = RowSeeds(session->ids());
  const size_t row_bytes = size_t(identity.page_bytes / identity.page_tokens);
  std::vector<uint8_t> page(identity.page_bytes), expected(identity.page_bytes);
  const int64_t num_tokens = int64_t(seeds.size());
  for (int64_t first = 0; first < num_tokens; first += int64_t(identity.page_tokens)) {
    const int64_t index = first / int64_t(identity.page_tokens);
    if (!session->ReadPage(index, page)) continue;
    const int64_t rows = session->page_rows(index);
    if (first + rows > num_tokens) return false;
    for (int64_t r = 0; r < rows; ++r) {
      FillRow(seeds[size_t(first + r)],
              std::span(expected).subspan(size_t(r) * row_bytes, row_bytes));
    }
    const int64_t num_bytes = rows * int64_t(row_bytes);
    if (!std::equal(page.begin(), page.begin() + num_bytes, expected.begin())) return false;
  }
  return true;
}

// The whole of `turn` is there, with all its rows.
inline bool Holds(SessionFile* session, const TestTurn& turn) {
  return session->ids() == turn.ids && session->meta() == turn.meta && RowsAreRight(session) &&
         session->num_leading_rows() >= turn.num_rows;
}

// The next turn of a made-up conversation: longer, at times after a step back or a new beginning.
inline TestTurn NextTurn(const TestTurn& before, std::mt19937_64* random, int64_t max_new = 9) {
  const auto below = [random](uint64_t n) { return int64_t((*random)() % n); };
  TestTurn turn;
  turn.ids = before.ids;
  if (below(4) == 0) turn.ids.resize(size_t(below(turn.ids.size() + 1)));
  const int64_t num_new = below(uint64_t(max_new) + 1);
  for (int64_t i = 0; i < num_new; ++i) turn.ids.push_back(int32_t(below(3)));
  // The last token that was sampled has no row yet.
  turn.num_rows = int64_t(turn.ids.size()) - (turn.ids.empty() ? 0 : below(2));
  // At times more than a sector, and more than two.
  turn.meta = "turn with " + std::to_string(turn.ids.size()) + " tokens, " +
              std::string(size_t(below(below(3) == 0 ? 12000 : 30)), 'x');
  return turn;
}

inline std::vector<TestTurn> MakeTurns(uint64_t seed, size_t num_turns) {
  std::mt19937_64 random(seed);
  std::vector<TestTurn> turns;
  TestTurn last;
  while (turns.size() < num_turns) turns.push_back(last = NextTurn(last, &random));
  return turns;
}

}  // namespace hillstar
