#include "tokenizer/jinja/template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hillstar/error.h"
#include "tokenizer/jinja/json.h"

namespace hillstar::jinja {
namespace {

using Json = nlohmann::ordered_json;

MarkedText Render(std::string_view source, const Json& variables = Json::object()) {
  Runtime runtime;
  Template::Variables values;
  for (const auto& [name, value] : variables.items()) {
    values.emplace_back(name, *ParseJson(value.dump(), &runtime.heap));
  }
  return Template(source).Render(values, &runtime);
}

// The error that parsing or rendering ends with; its message is "" where there was none.
Error ErrorOf(std::string_view source, const Json& variables = Json::object()) {
  try {
    Render(source, variables);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kUsage, "");
}

TEST(TemplateTest, WritesWhatJinjaWrites) {
  std::ifstream file(HILLSTAR_SOURCE_DIR "/src/tokenizer/jinja/snippets.json");
  const Json cases = Json::parse(file);
  ASSERT_GE(cases["snippets"].size(), 100u);
  for (const Json& snippet : cases["snippets"]) {
    const std::string source = snippet["template"];
    EXPECT_EQ(Render(source, cases["variables"]).text(), snippet["expected"]) << source;
  }
}

TEST(TemplateTest, RefusesUnknownSyntaxByLineAndConstruct) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% include 'x' %}", "line 2: the block 'include' is not known"},
      {"{{ x | nosuch }}", "line 1: the filter 'nosuch' is not known"},
      {"\n\n{{ x is nosuch }}", "line 3: the test 'nosuch' is not known"},
      {"{{ strftime_now('%Y') }}", "line 1: it uses 'strftime_now'"},
      {"{% for x in y recursive %}{% endfor %}", "line 1: a recursive loop"},
      {"{% if x %}", "end of the template"},
      {"{% endif %}", "unexpected 'endif'"},
      {"{% for x in y %}{% endif %}", "needs 'endfor'"},
      {"{{ x", "a tag has no end"},
      {"{# x", "a comment {# has no end"},
      {"{{ 'x }}", "a string has no end"},
      {"{{ a b }}", "'b' where }} was expected"},
      {"{{ f(*x) }}", "unpacked arguments"},
      {"{{ (1 }}", "expected"},
      {"{{ ] }}", "unexpected ']'"},
      {"{{ x ? y }}", "unexpected '?'"},
      {"{{ 99999999999999999999 }}", "too large"},
      {"{{ '\\ud800' }}", "names no character"},
      {"{% break %}", "outside a loop"},
      {"{% set a.b.c = 1 %}", "expected"},
      {"{% set true = 1 %}", "where a name was expected"},
      {"{% macro m(a=1, b) %}{% endmacro %}", "without a default"},
      {"{% call m() %}{% endcall %}", "the block 'call' is not known"},
      {"{% raw %}{% endraw %}", "the block 'raw' is not known"},
  };
  for (const auto& [source, message] : cases) {
    const Error error = ErrorOf(source);
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos)
        << source << ": " << error.what();
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << source;
  }
}

TEST(TemplateTest, FailsWherePythonFails) {
  const Json variables = {{"l", {1}}, {"d", {{"a", 1}}}, {"s", "x"}, {"nil", nullptr}};
  for (const char* source : {"{{ missing.x }}",
                             "{{ missing['x'] }}",
                             "{{ missing() }}",
                             "{{ nil.items() }}",
                             "{{ 'a' + 1 }}",
                             "{{ 1 + none }}",
                             "{{ 1 < 'a' }}",
                             "{{ 1 / 0 }}",
                             "{{ 1 // 0 }}",
                             "{{ 1 % 0 }}",
                             "{% for x in 5 %}{% endfor %}",
                             "{% for x in none %}{% endfor %}",
                             "{% for a, b in [[1]] %}{% endfor %}",
                             "{{ l.append(2) }}",
                             "{{ d.update(d) }}",
                             "{{ s.nosuch() }}",
                             "{{ none | length }}",
                             "{{ 5 | length }}",
                             "{{ missing | tojson }}",
                             "{{ raise_exception('no') }}",
                             "{{ l[::0] }}",
                             "{{ 1 in 5 }}",
                             "{{ s.split('') }}",
                             "{% set s.x = 1 %}",
                             "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
                             "{% macro m(a) %}{% endmacro %}{{ m(b=1) }}",
                             "{{ -s }}",
                             "{{ s | tojson(nosuch=1) }}",
                             "{{ [3, 'a'] | sort }}",
                             "{{ s.join([1]) }}",
                             "{{ range('x') }}"}) {
    const Error error = ErrorOf(source, variables);
    EXPECT_EQ(error.code(), ErrorCode::kBadRequest) << source << ": " << error.what();
    EXPECT_NE(std::string(error.what()).find("line 1"), std::string::npos) << error.what();
  }
}

TEST(TemplateTest, RaisesTheTemplatesOwnMessage) {
  const Error error = ErrorOf("\n{{ raise_exception('roles must alternate') }}");
  EXPECT_NE(std::string(error.what()).find("line 2"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("roles must alternate"), std::string::npos);
}

TEST(TemplateTest, HostileTemplatesEndWithAnError) {
  const std::string deep_list = std::string(5000, '[') + std::string(5000, ']');
  std::string deep_blocks;
  for (int i = 0; i < 2000; ++i) deep_blocks += "{% if true %}";
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; ++i) chain += " + 1";
  std::string dots = "{{ x";
  for (int i = 0; i < 5000; ++i) dots += ".x";
  const std::string sources[] = {
      "{{ " + deep_list + " }}",
      deep_blocks,
      chain + " }}",
      dots + " }}",
      "{{ " + std::string(5000, '-') + "1 }}",
      "{{ " + std::string(5000, '(') + " }}",
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{{ range(1000000000000) | list }}",
      "{% set ns = namespace(x='aaaaaaaa') %}"
      "{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
      "{{ 'x' * 1000000000000 }}",
      "{{ '' * 1000000000000 }}",
      "{{ ('x' * 1000000).replace('', 'x' * 1000000) }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f(x) %}{{ f(x) ~ f(x) }}{% endmacro %}{{ f(1) }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}"
      "{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}{{ ns.x | tojson }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% endfor %}{% set os = namespace(x=[1]) %}{% for i in range(100) %}"
      "{% set os.x = [os.x, os.x] %}{% endfor %}{{ ns.x == os.x }}",
      "{{ 10 ** 100 }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ 'a' | indent(100000000) }}",
      "{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}",
  };
  for (const std::string& source : sources) {
    EXPECT_NE(std::string(ErrorOf(source).what()), "") << source.substr(0, 100);
  }
}

// Marks follow the bytes through every operation.
TEST(TemplateTest, KeepsMarks) {
  const Json variables = {{"s", "ab-cd"}};
  const std::pair<const char*, const char*> cases[] = {
      {"<{{ s }}>", "_MMMMM_"},
      {"{{ '<' + s + '>' }}", "_MMMMM_"},
      {"{{ '<' ~ s }}", "_MMMMM"},
      {"{{ ('x' ~ s)[0:3] }}", "_MM"},
      {"{{ ('x' ~ s)[::-1] }}", "MMMMM_"},
      {"{{ s.split('-') | join('+') }}", "MM_MM"},
      {"{{ s.replace('-', '+') }}", "MM_MM"},
      {"{{ s | upper }}", "MMMMM"},
      {"{{ (' ' ~ s ~ ' ').strip() }}", "MMMMM"},
      {"{% set x %}<{{ s }}{% endset %}{{ x }}", "_MMMMM"},
      {"{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(s) }}", "_MMMMM_"},
      {"{% for c in s %}{{ c }}.{% endfor %}", "M_M_M_M_M_"},
      {"{{ [s] }}", "_MMMMMMM_"},
      {"{{ {'k': s} | tojson }}", "MMMMMMMMMMMMMM"},
      {"{{ {'k': 1} | tojson }}", "________"},
      // The filter binds tighter than ~.
      {"{{ 'x' ~ s | indent(1, true) }}", "__MMMMM"},
      {"{{ s | first }}{{ s | last }}{{ s | reverse }}", "MMMMMMM"},
      {"{{ s if s == 'ab-cd' else 'n' }}", "MMMMM"},
  };
  for (const auto& [source, expected] : cases) {
    const MarkedText text = Render(source, variables);
    std::string marks;
    for (size_t i = 0; i < text.size(); ++i) marks += text.IsMarked(i) ? 'M' : '_';
    EXPECT_EQ(marks, expected) << source << " -> " << text.text();
  }
}

TEST(JsonTest, WritesNumbersAsPythonDoes) {
  Heap heap;
  const std::pair<const char*, const char*> cases[] = {
      {"1.0", "1.0"},
      {"1e16", "1e+16"},
      {"1e15", "1000000000000000.0"},
      {"0.0001", "0.0001"},
      {"1e-5", "1e-05"},
      {"-0.0", "-0.0"},
      {"1E2", "100.0"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"18446744073709551615", "18446744073709551615"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"-9223372036854775809", "-9223372036854775809"},
      {"[1,{\"a\":[]}]", "[1, {\"a\": []}]"},
      {"{\"b\":1,\"a\":2,\"b\":3}", "{\"b\": 3, \"a\": 2}"},
      {"\"\\u00e9\\n\\u0001\\u007f\"", "\"é\\n\\u0001\x7f\""}};
  for (const auto& [text, expected] : cases) {
    const auto value = ParseJson(text, &heap);
    ASSERT_TRUE(value.has_value()) << text;
    EXPECT_EQ(WriteJson(*value, {}).text(), expected);
  }
}

TEST(JsonTest, RefusesWhatIsNoJsonOrTooDeep) {
  Heap heap;
  for (const std::string& text :
       {std::string(""), std::string("{"), std::string("{a:1}"), std::string("[1,]"),
        std::string("nul"), std::string("1 2"), std::string("NaN"), std::string("\"\xFF\""),
        std::string(100000, '['), std::string(300, '[') + std::string(300, ']')}) {
    EXPECT_FALSE(ParseJson(text, &heap).has_value()) << text.substr(0, 20);
  }
}

}  // namespace
}  // namespace hillstar::jinja
