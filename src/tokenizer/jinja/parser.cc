#include "tokenizer/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/token_reader.h"

namespace hillstar::jinja {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;
// Deeper than any template that a person wrote; bounds the recursion of parsing and rendering.
constexpr int kMaxExpressionDepth = 200;
constexpr int kMaxBlockDepth = 50;

constexpr std::string_view kRefusedNames[] = {"strftime_now", "caller", "varargs", "kwargs", "self",
                                              "super",        "cycler", "joiner",  "lipsum"};

int DepthOf(const ExprPtr& child) { return child == nullptr ? 0 : child->depth; }

int DepthOf(const std::vector<ExprPtr>& children) {
  int depth = 0;
  for (const ExprPtr& child : children) depth = std::max(depth, DepthOf(child));
  return depth;
}

int DepthOf(const Arguments& arguments) {
  int depth = DepthOf(arguments.positional);
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, DepthOf(value));
  return depth;
}

// `depth` is the deepest child's.
template <typename Node>
ExprPtr Make(int line, int depth, Node node) {
  if (depth >= kMaxExpressionDepth) RefuseTemplate(line, "an expression nests too deeply");
  return std::make_unique<const Expr>(Expr{line, depth + 1, std::move(node)});
}

template <typename Number>
std::optional<Number> ParseNumber(const std::string& text) {
  Number number{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc()) return {};
  return number;
}

// Expressions, from the loosest binding to the tightest, as Jinja ranks them.
class ExpressionParser : public TokenReader {
 public:
  using TokenReader::TokenReader;

 protected:
  ExprPtr ParseExpression() {
    const Nesting nesting(this, &depth_, kMaxExpressionDepth);
    ExprPtr value = ParseOr();
    while (IsWord("if")) {
      const int line = Take().line;
      ExprPtr condition = ParseOr();
      ExprPtr otherwise = TakeWord("else") ? ParseExpression() : nullptr;
      const int depth = std::max({DepthOf(value), DepthOf(condition), DepthOf(otherwise)});
      value = Make(line, depth,
                   Conditional{std::move(condition), std::move(value), std::move(otherwise)});
    }
    return value;
  }

  // A tuple where commas follow. The items of a `for` have no inline if: it filters them.
  ExprPtr ParseTuple(bool with_condition) {
    const int line = Current().line;
    const auto parse = [&] { return with_condition ? ParseExpression() : ParseOr(); };
    ExprPtr first = parse();
    if (!IsOp(",")) return first;
    ListLiteral tuple{{}, true};
    tuple.items.push_back(std::move(first));
    while (TakeOp(",") && !Is(TokenKind::kBlockEnd) && !Is(TokenKind::kOutputEnd)) {
      tuple.items.push_back(parse());
    }
    const int depth = DepthOf(tuple.items);
    return Make(line, depth, std::move(tuple));
  }

  ExprPtr ParseFilterCall(ExprPtr input) {
    const int line = Current().line;
    const std::string name = ExpectName();
    const Builtin* filter = FindFilter(name);
    if (filter == nullptr) RefuseTemplate(line, "the filter '" + name + "' is not known");
    Arguments arguments;
    if (IsOp("(")) arguments = ParseArguments();
    const int depth = std::max(DepthOf(input), DepthOf(arguments));
    return Make(line, depth, Filter{std::move(input), filter, std::move(arguments)});
  }

  ExprPtr ParseOr() {
    const Nesting nesting(this, &depth_, kMaxExpressionDepth);
    ExprPtr left = ParseAnd();
    while (IsWord("or"))
      left = MakeBinary(BinaryOp::kOr, std::move(left), &ExpressionParser::ParseAnd);
    return left;
  }

 private:
  ExprPtr MakeBinary(BinaryOp op, ExprPtr left, ExprPtr (ExpressionParser::*parse)()) {
    const int line = Take().line;
    ExprPtr right = (this->*parse)();
    const int depth = std::max(DepthOf(left), DepthOf(right));
    return Make(line, depth, Binary{op, std::move(left), std::move(right)});
  }

  ExprPtr ParseAnd() {
    ExprPtr left = ParseNot();
    while (IsWord("and")) {
      left = MakeBinary(BinaryOp::kAnd, std::move(left), &ExpressionParser::ParseNot);
    }
    return left;
  }

  ExprPtr ParseNot() {
    if (!IsWord("not")) return ParseComparison();
    const Nesting nesting(this, &depth_, kMaxExpressionDepth);
    const int line = Take().line;
    ExprPtr operand = ParseNot();
    const int depth = DepthOf(operand);
    return Make(line, depth, Unary{UnaryOp::kNot, std::move(operand)});
  }

  std::optional<CompareOp> TakeCompareOp() {
    constexpr std::pair<std::string_view, CompareOp> kOps[] = {
        {"==", CompareOp::kEqual},  {"!=", CompareOp::kNotEqual},
        {"<", CompareOp::kLess},    {"<=", CompareOp::kLessEqual},
        {">", CompareOp::kGreater}, {">=", CompareOp::kGreaterEqual}};
    for (const auto& [text, op] : kOps) {
      if (TakeOp(text)) return op;
    }
    if (TakeWord("in")) return CompareOp::kIn;
    if (IsWord("not") && Next().kind == TokenKind::kName && Next().text == "in") {
      Take();
      Take();
      return CompareOp::kNotIn;
    }
    return {};
  }

  ExprPtr ParseComparison() {
    const int line = Current().line;
    Comparison comparison{ParseSum(), {}};
    int depth = DepthOf(comparison.first);
    while (const std::optional<CompareOp> op = TakeCompareOp()) {
      comparison.rest.emplace_back(*op, ParseSum());
      depth = std::max(depth, DepthOf(comparison.rest.back().second));
    }
    if (comparison.rest.empty()) return std::move(comparison.first);
    return Make(line, depth, std::move(comparison));
  }

  ExprPtr ParseSum() {
    ExprPtr left = ParseJoin();
    while (IsOp("+") || IsOp("-")) {
      const BinaryOp op = IsOp("+") ? BinaryOp::kAdd : BinaryOp::kSubtract;
      left = MakeBinary(op, std::move(left), &ExpressionParser::ParseJoin);
    }
    return left;
  }

  ExprPtr ParseJoin() {
    ExprPtr left = ParseProduct();
    while (IsOp("~")) {
      left = MakeBinary(BinaryOp::kJoin, std::move(left), &ExpressionParser::ParseProduct);
    }
    return left;
  }

  ExprPtr ParseProduct() {
    ExprPtr left = ParsePower();
    while (true) {
      BinaryOp op{};
      if (IsOp("*")) {
        op = BinaryOp::kMultiply;
      } else if (IsOp("/")) {
        op = BinaryOp::kDivide;
      } else if (IsOp("//")) {
        op = BinaryOp::kFloor;
      } else if (IsOp("%")) {
        op = BinaryOp::kModulo;
      } else {
        return left;
      }
      left = MakeBinary(op, std::move(left), &ExpressionParser::ParsePower);
    }
  }

  ExprPtr ParsePower() {
    ExprPtr left = ParseUnary();
    while (IsOp("**")) {
      left = MakeBinary(BinaryOp::kPower, std::move(left), &ExpressionParser::ParseUnary);
    }
    return left;
  }

  // Filters and tests bind to all of a signed value: -1|abs is 1.
  ExprPtr ParseUnary() { return ParseFiltersAndTests(ParseSigned()); }

  ExprPtr ParseSigned() {
    const Nesting nesting(this, &depth_, kMaxExpressionDepth);
    if (!IsOp("-") && !IsOp("+")) return ParsePostfix(ParsePrimary());
    const UnaryOp op = IsOp("-") ? UnaryOp::kMinus : UnaryOp::kPlus;
    const int line = Take().line;
    ExprPtr operand = ParseSigned();
    const int depth = DepthOf(operand);
    return Make(line, depth, Unary{op, std::move(operand)});
  }

  ExprPtr ParseFiltersAndTests(ExprPtr value) {
    while (true) {
      if (TakeOp("|")) {
        value = ParseFilterCall(std::move(value));
      } else if (IsWord("is")) {
        value = ParseTest(std::move(value));
      } else if (IsOp("(")) {
        Refuse("a call of a filtered value");
      } else {
        return value;
      }
    }
  }

  bool TestArgumentFollows() const {
    switch (Current().kind) {
      case TokenKind::kString:
      case TokenKind::kInteger:
      case TokenKind::kFloat: return true;
      case TokenKind::kOperator: return IsOp("[") || IsOp("{");
      case TokenKind::kName: {
        constexpr std::string_view kStops[] = {"else", "or", "and", "if", "is", "in", "not"};
        return !Contains(kStops, Current().text);
      }
      default: return false;
    }
  }

  ExprPtr ParseTest(ExprPtr input) {
    const int line = Take().line;
    const bool negated = TakeWord("not");
    if (!Is(TokenKind::kName)) Refuse(Describe() + " where a test was expected");
    const std::string name = Take().text;
    const Builtin* test = FindTest(name);
    if (test == nullptr) RefuseTemplate(line, "the test '" + name + "' is not known");
    Arguments arguments;
    if (IsOp("(")) {
      arguments = ParseArguments();
    } else if (TestArgumentFollows()) {
      arguments.positional.push_back(ParsePostfix(ParsePrimary()));
    }
    const int depth = std::max(DepthOf(input), DepthOf(arguments));
    return Make(line, depth, Test{std::move(input), test, std::move(arguments), negated});
  }

  Arguments ParseArguments() {
    Arguments arguments;
    ExpectOp("(");
    while (!TakeOp(")")) {
      if (IsOp("*") || IsOp("**")) Refuse("unpacked arguments (* or **)");
      const bool is_named =
          Is(TokenKind::kName) && Next().kind == TokenKind::kOperator && Next().text == "=";
      if (is_named) {
        std::string name = Take().text;
        Take();
        arguments.named.emplace_back(std::move(name), ParseExpression());
      } else {
        if (!arguments.named.empty()) Refuse("a positional argument after a named one");
        arguments.positional.push_back(ParseExpression());
      }
      if (!IsOp(")")) ExpectOp(",");
    }
    return arguments;
  }

  ExprPtr ParsePostfix(ExprPtr value) {
    while (true) {
      const int line = Current().line;
      if (TakeOp(".")) {
        value = ParseMember(std::move(value), line);
      } else if (IsOp("[")) {
        value = ParseSubscript(std::move(value), line);
      } else if (IsOp("(")) {
        Arguments arguments = ParseArguments();
        const int depth = std::max(DepthOf(value), DepthOf(arguments));
        value = Make(line, depth, Call{std::move(value), std::move(arguments)});
      } else {
        return value;
      }
    }
  }

  ExprPtr ParseMember(ExprPtr object, int line) {
    const int depth = DepthOf(object);
    if (Is(TokenKind::kInteger)) {
      ExprPtr index = ParsePrimary();
      return Make(line, depth, Subscript{std::move(object), std::move(index)});
    }
    if (!Is(TokenKind::kName)) Refuse(Describe() + " where a name was expected");
    return Make(line, depth, Member{std::move(object), Take().text});
  }

  ExprPtr ParseSubscript(ExprPtr object, int line) {
    ExpectOp("[");
    ExprPtr parts[3];
    int num_colons = 0;
    while (!IsOp("]")) {
      if (IsOp(":") && num_colons < 2) {
        Take();
        ++num_colons;
      } else if (parts[num_colons] == nullptr) {
        parts[num_colons] = ParseExpression();
      } else {
        Refuse(Describe() + " in a subscript");
      }
    }
    ExpectOp("]");
    const int depth =
        std::max({DepthOf(object), DepthOf(parts[0]), DepthOf(parts[1]), DepthOf(parts[2])});
    if (num_colons > 0) {
      return Make(
          line, depth,
          Slice{std::move(object), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])});
    }
    if (parts[0] == nullptr) RefuseTemplate(line, "an empty subscript");
    return Make(line, depth, Subscript{std::move(object), std::move(parts[0])});
  }

  ExprPtr ParsePrimary() {
    const int line = Current().line;
    switch (Current().kind) {
      case TokenKind::kName: return ParseNameOrConstant(line);
      case TokenKind::kString: {
        std::string text;
        while (Is(TokenKind::kString)) text += Take().text;
        return Make(line, 0, Literal{Value::Plain(text)});
      }
      case TokenKind::kInteger: {
        const auto number = ParseNumber<int64_t>(Current().text);
        if (!number) Refuse("the number " + Current().text + " is too large");
        Take();
        return Make(line, 0, Literal{*number});
      }
      case TokenKind::kFloat: {
        const auto number = ParseNumber<double>(Current().text);
        if (!number) Refuse("the number " + Current().text + " is out of range");
        Take();
        return Make(line, 0, Literal{*number});
      }
      default: break;
    }
    if (IsOp("(")) return ParseParentheses(line);
    if (IsOp("[")) return ParseList(line);
    if (IsOp("{")) return ParseDict(line);
    Refuse("unexpected " + Describe());
  }

  ExprPtr ParseNameOrConstant(int line) {
    if (TakeWord("true") || TakeWord("True")) return Make(line, 0, Literal{true});
    if (TakeWord("false") || TakeWord("False")) return Make(line, 0, Literal{false});
    if (TakeWord("none") || TakeWord("None")) return Make(line, 0, Literal{None()});
    std::string name = ExpectName();
    if (Contains(kRefusedNames, name)) RefuseTemplate(line, "it uses '" + name + "'");
    return Make(line, 0, Name{std::move(name)});
  }

  ExprPtr ParseParentheses(int line) {
    ExpectOp("(");
    ListLiteral tuple{{}, true};
    while (!IsOp(")")) {
      tuple.items.push_back(ParseExpression());
      if (TakeOp(",")) continue;
      if (tuple.items.size() == 1 && IsOp(")")) {
        Take();
        return std::move(tuple.items[0]);
      }
      break;
    }
    ExpectOp(")");
    const int depth = DepthOf(tuple.items);
    return Make(line, depth, std::move(tuple));
  }

  ExprPtr ParseList(int line) {
    ExpectOp("[");
    ListLiteral list{{}, false};
    while (!TakeOp("]")) {
      list.items.push_back(ParseExpression());
      if (!IsOp("]")) ExpectOp(",");
    }
    const int depth = DepthOf(list.items);
    return Make(line, depth, std::move(list));
  }

  ExprPtr ParseDict(int line) {
    ExpectOp("{");
    DictLiteral dict;
    int depth = 0;
    while (!TakeOp("}")) {
      ExprPtr key = ParseExpression();
      ExpectOp(":");
      ExprPtr value = ParseExpression();
      depth = std::max({depth, DepthOf(key), DepthOf(value)});
      dict.entries.emplace_back(std::move(key), std::move(value));
      if (!IsOp("}")) ExpectOp(",");
    }
    return Make(line, depth, std::move(dict));
  }

  int depth_ = 0;
};

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body ParseAll() {
    Body body = ParseBody();
    if (!Is(TokenKind::kEnd)) Refuse("unexpected " + BlockName());
    return body;
  }

 private:
  std::string BlockName() const {
    return Is(TokenKind::kBlockBegin) ? "'" + Next().text + "'" : Describe();
  }

  bool AtBlock(std::string_view word) const {
    return Is(TokenKind::kBlockBegin) && Next().kind == TokenKind::kName && Next().text == word;
  }

  // Statements up to a block that ends or continues an enclosing one.
  Body ParseBody() {
    const Nesting nesting(this, &block_depth_, kMaxBlockDepth);
    Body body;
    while (true) {
      const int line = Current().line;
      if (Is(TokenKind::kText)) {
        body.push_back({line, Text{Take().text}});
      } else if (Is(TokenKind::kOutputBegin)) {
        Take();
        ExprPtr value = ParseTuple(true);
        Expect(TokenKind::kOutputEnd, "}}");
        body.push_back({line, Output{std::move(value)}});
      } else if (Is(TokenKind::kBlockBegin) && !AtClosingBlock()) {
        Take();
        body.push_back(ParseStatement(line));
      } else {
        return body;
      }
    }
  }

  bool AtClosingBlock() const {
    constexpr std::string_view kClosing[] = {"endif",  "elif",     "else",         "endfor",
                                             "endset", "endmacro", "endgeneration"};
    return Next().kind == TokenKind::kName && Contains(kClosing, Next().text);
  }

  void ExpectEnd(std::string_view word, int begin_line) {
    if (!AtBlock(word)) {
      Refuse(
          fmt::format("{} where the block of line {} needs '{}'", BlockName(), begin_line, word));
    }
    Take();
    Take();
    Expect(TokenKind::kBlockEnd, "%}");
  }

  Statement ParseStatement(int line) {
    if (TakeWord("if")) return {line, ParseIf(line)};
    if (TakeWord("for")) return {line, ParseFor(line)};
    if (TakeWord("set")) return ParseSet(line);
    if (TakeWord("macro")) return {line, ParseMacro(line)};
    if (TakeWord("generation")) {
      Expect(TokenKind::kBlockEnd, "%}");
      Generation generation{ParseBody()};
      ExpectEnd("endgeneration", line);
      return {line, std::move(generation)};
    }
    const bool is_break = IsWord("break");
    if (is_break || IsWord("continue")) {
      if (loop_depth_ == 0) Refuse(Describe() + " outside a loop");
      Take();
      Expect(TokenKind::kBlockEnd, "%}");
      if (is_break) return {line, Break()};
      return {line, Continue()};
    }
    Refuse("the block " + Describe() + " is not known");
  }

  If ParseIf(int line) {
    If statement;
    ExprPtr condition = ParseTuple(false);
    while (true) {
      Expect(TokenKind::kBlockEnd, "%}");
      Body body = ParseBody();
      statement.branches.emplace_back(std::move(condition), std::move(body));
      if (!AtBlock("elif")) break;
      Take();
      Take();
      condition = ParseTuple(false);
    }
    statement.otherwise = ParseElse();
    ExpectEnd("endif", line);
    return statement;
  }

  Body ParseElse() {
    if (!AtBlock("else")) return {};
    Take();
    Take();
    Expect(TokenKind::kBlockEnd, "%}");
    return ParseBody();
  }

  For ParseFor(int line) {
    For statement;
    const bool in_parentheses = TakeOp("(");
    statement.targets.push_back(ExpectName());
    while (TakeOp(",")) statement.targets.push_back(ExpectName());
    if (in_parentheses) ExpectOp(")");
    if (!TakeWord("in")) Refuse(Describe() + " where 'in' was expected");
    statement.items = ParseTuple(false);
    if (TakeWord("if")) statement.filter = ParseExpression();
    if (IsWord("recursive")) Refuse("a recursive loop");
    Expect(TokenKind::kBlockEnd, "%}");
    ++loop_depth_;
    statement.body = ParseBody();
    --loop_depth_;
    statement.otherwise = ParseElse();
    ExpectEnd("endfor", line);
    return statement;
  }

  Target ParseTarget() {
    Target target{ExpectName(), {}};
    if (TakeOp(".")) target.attribute = ExpectName();
    return target;
  }

  Statement ParseSet(int line) {
    Set set;
    set.targets.push_back(ParseTarget());
    while (TakeOp(",")) set.targets.push_back(ParseTarget());
    if (TakeOp("=")) {
      set.value = ParseTuple(true);
      Expect(TokenKind::kBlockEnd, "%}");
      return {line, std::move(set)};
    }
    if (set.targets.size() > 1) Refuse("a set block with several names");
    SetBlock block{std::move(set.targets[0]), {}, {}};
    while (TakeOp("|")) block.filters.push_back(ParseFilterCall(nullptr));
    Expect(TokenKind::kBlockEnd, "%}");
    block.body = ParseBody();
    ExpectEnd("endset", line);
    return {line, std::move(block)};
  }

  Macro ParseMacro(int line) {
    Macro macro;
    macro.name = ExpectName();
    ExpectOp("(");
    while (!TakeOp(")")) {
      std::string name = ExpectName();
      ExprPtr fallback = TakeOp("=") ? ParseExpression() : nullptr;
      if (fallback == nullptr && !macro.parameters.empty() &&
          macro.parameters.back().second != nullptr) {
        Refuse("a parameter without a default after one with a default");
      }
      macro.parameters.emplace_back(std::move(name), std::move(fallback));
      if (!IsOp(")")) ExpectOp(",");
    }
    Expect(TokenKind::kBlockEnd, "%}");
    const int outer_loops = std::exchange(loop_depth_, 0);
    macro.body = ParseBody();
    loop_depth_ = outer_loops;
    ExpectEnd("endmacro", line);
    return macro;
  }

  int block_depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

Body ParseTemplate(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    RefuseTemplate(
        1, fmt::format("{} bytes are more than the limit of {}", source.size(), kMaxTemplateBytes));
  }
  return Parser(Tokenize(source)).ParseAll();
}

}  // namespace hillstar::jinja
