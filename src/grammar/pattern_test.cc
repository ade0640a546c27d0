#include "grammar/pattern.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>

#include "hillstar/error.h"

namespace hillstar {
namespace {

bool Matches(const std::string& pattern, const std::string& text) {
  WorkBudget budget;
  return Accepts(TextsMatching(pattern, &budget), text);
}

TEST(PatternTest, WholeCharactersAndAnchors) {
  EXPECT_TRUE(Matches("^.$", "日"));
  EXPECT_TRUE(Matches("^.$", "🙂"));
  EXPECT_FALSE(Matches("^.$", "\n"));
  EXPECT_FALSE(Matches("^.$", "\xE2\x80\xA8"));  // a line separator
  EXPECT_TRUE(Matches("^[^]$", "\n"));
  EXPECT_FALSE(Matches("[]", "a"));
  EXPECT_TRUE(Matches("", "anything"));
  EXPECT_TRUE(Matches("^$", ""));
  EXPECT_FALSE(Matches("^$", "a"));
  EXPECT_TRUE(Matches("^a|b$", "ax"));
  EXPECT_TRUE(Matches("^a|b$", "xb"));
  EXPECT_FALSE(Matches("^a|b$", "xa"));
  EXPECT_TRUE(Matches("(^|,)a($|,)", "b,a"));
  EXPECT_FALSE(Matches("a^b", "ab"));
  EXPECT_FALSE(Matches("a$b", "ab"));
  EXPECT_TRUE(Matches("^\\u{1F642}\\u00e9\\x41\\cJ\\.$", "🙂éA\n."));
  EXPECT_TRUE(Matches("^\\ud83d\\ude42$", "🙂"));
  EXPECT_TRUE(Matches("^[\\d\\-x]+$", "1-x"));
  EXPECT_TRUE(Matches("^\\s\\S$", "\xC2\xA0x"));
  EXPECT_FALSE(Matches("^\\w$", "é"));
  EXPECT_TRUE(Matches("^(?<n>a)(?:b)c*?$", "ab"));
  EXPECT_FALSE(Matches("a", "\xff"));
}

TEST(PatternTest, LooksAheadAtTheBeginning) {
  const std::string password = "^(?=.*[A-Z])(?=.*\\d)(?!.*[\\])(])[^ ]{4,8}$";
  EXPECT_TRUE(Matches(password, "abC1"));
  EXPECT_FALSE(Matches(password, "abc1"));
  EXPECT_FALSE(Matches(password, "abCd"));
  EXPECT_FALSE(Matches(password, "ab)C1"));
  EXPECT_FALSE(Matches(password, "abC1abC1a"));
  EXPECT_TRUE(Matches("^(?!a|b$)", "bc"));
  EXPECT_FALSE(Matches("^(?!a|b$)", "b"));
  EXPECT_FALSE(Matches("^(?!a|b$)", "ac"));
  // As a library of schemas writes it for addresses.
  const std::string email =
      "^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*"
      "\\.)+[A-Za-z]{2,}$";
  EXPECT_TRUE(Matches(email, "a.b@example.org"));
  EXPECT_FALSE(Matches(email, "a..b@example.org"));
  EXPECT_FALSE(Matches(email, ".b@example.org"));
}

TEST(PatternTest, RefusesWhatItCannotMake) {
  for (const char* pattern :
       {"(?=a)",   "(?!a)",  "(?<=a)", "(?<!a)", "\\bword",  "a\\B",    "(a)\\1",
        "\\k<n>",  "\\p{L}", "(",      ")",      "[a",       "a{",      "a{2",
        "a{3,2}",  "*",      "a**",    "[z-a]",  "\\",       "\\q",     "\\u12",
        "\\ud83d", "^*",     "^^a",    "(^a)+",  "a{99999}", "[\\d-z]", "(?i)a"}) {
    EXPECT_THROW(Matches(pattern, ""), Error) << pattern;
  }
  EXPECT_THROW(Matches("(a|b)*a(a|b){20}", ""), Error);
  EXPECT_THROW(Matches("((a{100}){100}){100}", ""), Error);
}

// A pattern of random parts, as both read it.
std::string RandomPattern(std::mt19937* random, int depth) {
  const auto below = [&](size_t n) { return (*random)() % n; };
  std::string pattern;
  for (size_t n = 1 + below(3); n > 0; --n) {
    static const char* const kAtoms[] = {"a",    "b",   "c",   ".",     "[ab]",
                                         "[^a]", "\\d", "\\w", "[a-c1]"};
    if (depth > 0 && below(3) == 0) {
      pattern += "(?:";
      pattern += RandomPattern(random, depth - 1);
      if (below(2) == 0) pattern.append("|").append(RandomPattern(random, depth - 1));
      pattern += ")";
    } else {
      pattern += kAtoms[below(9)];
    }
    static const char* const kCounts[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"};
    pattern += kCounts[below(10)];
  }
  return pattern;
}

TEST(PatternTest, AgreesWithTheStandardLibrary) {
  std::mt19937 random(3);
  int num_compared = 0;
  for (int i = 0; i < 300; ++i) {
    std::string pattern = RandomPattern(&random, 2);
    if (random() % 2 == 0) pattern.insert(0, 1, '^');
    if (random() % 2 == 0) pattern += '$';
    WorkBudget budget;
    Dfa texts;
    try {
      texts = TextsMatching(pattern, &budget);
    } catch (const Error&) {
      continue;  // some make large automata
    }
    ++num_compared;
    const std::regex known(pattern, std::regex::ECMAScript);
    for (int j = 0; j < 60; ++j) {
      std::string text;
      for (size_t n = random() % 7; n > 0; --n) text += "abc1 _"[random() % 6];
      EXPECT_EQ(Accepts(texts, text), std::regex_search(text, known)) << pattern << " on " << text;
    }
  }
  EXPECT_GT(num_compared, 280);
}

TEST(PatternTest, LanguagesCombine) {
  WorkBudget budget;
  const Dfa words = TextsMatching("^[ab]+$", &budget);
  const Dfa others = Complement(words, kCodePoints, &budget);
  EXPECT_TRUE(Intersection(words, others, &budget).IsEmpty());
  const Dfa short_words = Intersection(words, TextsOfLength(2, 3, &budget), &budget);
  const Dfa without = Intersection(words, TextsWithout("aab", &budget), &budget);
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = random() % 6; n > 0; --n) text += random() % 8 == 0 ? 'x' : "ab"[random() % 2];
    const bool is_word = !text.empty() && text.find('x') == std::string::npos;
    EXPECT_EQ(Accepts(words, text), is_word);
    EXPECT_EQ(Accepts(others, text), !is_word);
    EXPECT_EQ(Accepts(short_words, text), is_word && (text.size() == 2 || text.size() == 3));
    EXPECT_EQ(Accepts(without, text), is_word && text.find("aab") == std::string::npos) << text;
  }
}

}  // namespace
}  // namespace hillstar
