// A parsed template: expressions and statements as plain data. Immutable after parsing, so that any
// number of renderings may read it at once.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/value.h"

namespace hillstar::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

struct Literal {
  Value value;  // no container
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExprPtr> items;
  bool is_tuple;
};
struct DictLiteral {
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
};
enum class UnaryOp { kNot, kMinus, kPlus };
struct Unary {
  UnaryOp op;
  ExprPtr operand;
};
enum class BinaryOp {
  kAnd,
  kOr,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloor,
  kModulo,
  kPower,
  kJoin
};
struct Binary {
  BinaryOp op;
  ExprPtr left, right;
};
enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
// a < b < c: each pair compared, as Python does.
struct Comparison {
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
struct Conditional {
  ExprPtr condition, then, otherwise;  // otherwise may be null: undefined
};
struct Member {
  ExprPtr object;
  std::string name;
};
struct Subscript {
  ExprPtr object, index;
};
struct Slice {
  ExprPtr object, start, stop, step;  // the last three may be null
};
struct Call {
  ExprPtr function;
  Arguments arguments;
};
struct Filter {
  ExprPtr input;  // null: the text of a set block
  const Builtin* filter;
  Arguments arguments;
};
struct Test {
  ExprPtr input;
  const Builtin* test;
  Arguments arguments;
  bool negated;
};

struct Expr {
  int line;
  int depth;  // of the tree below, at least 1
  std::variant<Literal, Name, ListLiteral, DictLiteral, Unary, Binary, Comparison, Conditional,
               Member, Subscript, Slice, Call, Filter, Test>
      node;
};

struct Statement;
using Body = std::vector<Statement>;

struct Text {
  std::string text;
};
struct Output {
  ExprPtr value;
};
struct If {
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
};
struct For {
  std::vector<std::string> targets;  // several: each item is unpacked
  ExprPtr items, filter;             // filter may be null
  Body body, otherwise;
};
struct Target {
  std::string name;
  std::string attribute;  // of a namespace; may be empty
};
struct Set {
  std::vector<Target> targets;
  ExprPtr value;
};
struct SetBlock {
  Target target;
  std::vector<ExprPtr> filters;  // Filter nodes without input, applied in order
  Body body;
};
struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // with defaults, which may be null
  Body body;
};
struct Generation {
  Body body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line;
  std::variant<Text, Output, If, For, Set, SetBlock, Macro, Generation, Break, Continue> node;
};

}  // namespace hillstar::jinja
