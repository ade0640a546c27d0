#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <utility>

#include "hillstar/error.h"

namespace hillstar {
namespace {

struct Outcome {
  std::string shown;
  std::string match;
  bool operator==(const Outcome&) const = default;
};

// The outcome for `text` cut after each byte whose bit is set in `cuts`.
Outcome Feed(const std::vector<std::string>& stops, const std::string& text, uint32_t cuts) {
  StopStrings stream(stops);
  std::string shown;
  std::string piece;
  for (size_t i = 0; i < text.size(); ++i) {
    piece += text[i];
    if (cuts >> i & 1) shown += stream.Push(std::exchange(piece, {}));
  }
  shown += stream.Push(piece);
  if (!stream.matched()) shown += stream.Finish();
  return {shown, stream.match()};
}

void ExpectForEveryCut(const std::vector<std::string>& stops, const std::string& text,
                       const Outcome& expected) {
  ASSERT_LE(text.size(), 14u);
  for (uint32_t cuts = 0; cuts < (1u << text.size()); ++cuts) {
    const Outcome outcome = Feed(stops, text, cuts);
    ASSERT_EQ(outcome.shown, expected.shown) << text << " cut " << cuts;
    ASSERT_EQ(outcome.match, expected.match) << text << " cut " << cuts;
  }
}

TEST(StopStrings, EverySplitGivesTheSameText) {
  ExpectForEveryCut({"DEFGHIJ"}, "ABCDEFGHIJKL", {"ABC", "DEFGHIJ"});
  ExpectForEveryCut({"DEFGHIJ"}, "ABCDEFGHIK", {"ABCDEFGHIK", ""});
  ExpectForEveryCut({"x"}, "abc", {"abc", ""});
  ExpectForEveryCut({}, "abc", {"abc", ""});
}

TEST(StopStrings, OverlappingStopsEndAtTheFirstThatIsComplete) {
  ExpectForEveryCut({"bcd", "abcx"}, "zabcdabcx", {"za", "bcd"});
  ExpectForEveryCut({"abc", "bc"}, "zzabc", {"zz", "abc"});
  ExpectForEveryCut({"abcd", "bc"}, "zabcd", {"za", "bc"});
}

TEST(StopStrings, AStopThatBeginsInsideItselfIsFound) {
  ExpectForEveryCut({"aab"}, "aaaab", {"aa", "aab"});
  ExpectForEveryCut({"abab"}, "abaabab", {"aba", "abab"});
}

TEST(StopStrings, AnUnfinishedStopIsReleased) {
  ExpectForEveryCut({"stop!"}, "do not stop", {"do not stop", ""});
  ExpectForEveryCut({"\n\n"}, "a\nb\n", {"a\nb\n", ""});
}

TEST(StopStrings, HoldsBackOnlyWhatMayBecomeAStop) {
  StopStrings stream({"END"});
  EXPECT_EQ(stream.Push("abcE"), "abc");
  EXPECT_EQ(stream.Push("N"), "");
  EXPECT_EQ(stream.Push("x"), "ENx");
  EXPECT_EQ(stream.Push("END more"), "");
  EXPECT_TRUE(stream.matched());
  EXPECT_EQ(stream.Push("ignored"), "");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(StopStrings, RefusesAnEmptyString) { EXPECT_THROW(StopStrings({"a", ""}), Error); }

}  // namespace
}  // namespace hillstar
