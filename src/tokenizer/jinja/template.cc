#include "tokenizer/jinja/template.h"

#include <fmt/format.h>

#include <deque>
#include <optional>

#include "hillstar/error.h"
#include "tokenizer/jinja/operators.h"
#include "tokenizer/jinja/parser.h"
#include "tokenizer/jinja/syntax.h"

namespace hillstar::jinja {

// Names and values of one block. Loops and macros have scopes of their own; an if has none.
struct Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables;  // names of the syntax tree's

  void Set(std::string_view name, Value value) {
    for (auto& [known, old] : variables) {
      if (known == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }
};

// A macro with the scope that it was made in, or a method with its object.
struct Callable {
  const Macro* macro = nullptr;
  Scope* scope = nullptr;
  const Builtin* builtin = nullptr;
  Value object;
};

namespace {

// Evaluations inside evaluations; each takes up to 4 KiB of stack with sanitizers on.
constexpr int kMaxDepth = 600;
constexpr size_t kMaxOutputBytes = size_t{256} << 20;

class Interpreter {
 public:
  explicit Interpreter(Runtime* runtime) : runtime_(*runtime) {}

  Scope* NewScope(Scope* parent) {
    runtime_.Spend(4);
    Scope* scope = &scopes_.emplace_back();
    scope->parent = parent;
    return scope;
  }

  enum class Flow { kNext, kBreak, kContinue };

  Flow Run(const Body& body, Scope* scope, MarkedText* out) {
    const Depth depth(&runtime_);
    for (const Statement& statement : body) {
      runtime_.line = statement.line;
      runtime_.Spend(1);
      const Flow flow =
          std::visit([&](const auto& node) { return Execute(node, scope, out); }, statement.node);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

 private:
  // One more evaluation on the stack.
  class Depth {
   public:
    explicit Depth(Runtime* runtime) : runtime_(runtime) {
      if (runtime_->depth >= kMaxDepth) {
        throw Error(
            ErrorCode::kUnsupported,
            fmt::format("The chat template, line {}: it nests too deeply.", runtime_->line));
      }
      ++runtime_->depth;
    }
    ~Depth() { --runtime_->depth; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    Runtime* runtime_;
  };

  // Statements.

  void Write(MarkedText* out, const MarkedText& text) {
    runtime_.SpendText(text.size());
    if (out->size() + text.size() > kMaxOutputBytes) runtime_.Fail("its text grows too long");
    out->Append(text);
  }

  Flow Execute(const Text& text, Scope*, MarkedText* out) {
    runtime_.SpendText(text.text.size());
    if (out->size() + text.text.size() > kMaxOutputBytes) runtime_.Fail("its text grows too long");
    out->Append(text.text, false);
    return Flow::kNext;
  }

  Flow Execute(const Output& output, Scope* scope, MarkedText* out) {
    const Value value = Evaluate(*output.value, scope);
    if (const MarkedText* text = value.text()) {
      Write(out, *text);
    } else {
      Write(out, ToText(runtime_, value));
    }
    return Flow::kNext;
  }

  Flow Execute(const If& statement, Scope* scope, MarkedText* out) {
    for (const auto& [condition, body] : statement.branches) {
      if (Evaluate(*condition, scope).Truth()) return Run(body, scope, out);
    }
    return Run(statement.otherwise, scope, out);
  }

  Flow Execute(const For& statement, Scope* scope, MarkedText* out) {
    std::vector<Value> items = ItemsOf(runtime_, Evaluate(*statement.items, scope));
    if (statement.filter != nullptr) items = Filtered(statement, std::move(items), scope);
    if (items.empty()) return Run(statement.otherwise, scope, out);
    const List* list = runtime_.heap.NewList(std::move(items));
    for (size_t i = 0; i < list->items.size(); ++i) {
      Scope* inner = NewScope(scope);
      Unpack(statement.targets, list->items[i], inner);
      Loop* loop = runtime_.heap.NewLoop();
      *loop = {list, static_cast<int64_t>(i)};
      inner->Set("loop", loop);
      const Flow flow = Run(statement.body, inner, out);
      if (flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  std::vector<Value> Filtered(const For& statement, std::vector<Value> items, Scope* scope) {
    std::vector<Value> kept;
    for (Value& item : items) {
      Scope* inner = NewScope(scope);
      Unpack(statement.targets, item, inner);
      if (Evaluate(*statement.filter, inner).Truth()) kept.push_back(std::move(item));
    }
    return kept;
  }

  void Unpack(const std::vector<std::string>& targets, const Value& item, Scope* scope) {
    if (targets.size() == 1) {
      scope->Set(targets[0], item);
      return;
    }
    const std::vector<Value> parts = ItemsOf(runtime_, item);
    if (parts.size() != targets.size()) {
      runtime_.Fail(fmt::format("{} values for {} names", parts.size(), targets.size()));
    }
    for (size_t i = 0; i < parts.size(); ++i) scope->Set(targets[i], parts[i]);
  }

  Flow Execute(const Set& statement, Scope* scope, MarkedText*) {
    const Value value = Evaluate(*statement.value, scope);
    if (statement.targets.size() == 1) {
      Assign(statement.targets[0], value, scope);
      return Flow::kNext;
    }
    const std::vector<Value> parts = ItemsOf(runtime_, value);
    if (parts.size() != statement.targets.size()) {
      runtime_.Fail(fmt::format("{} values for {} names", parts.size(), statement.targets.size()));
    }
    for (size_t i = 0; i < parts.size(); ++i) Assign(statement.targets[i], parts[i], scope);
    return Flow::kNext;
  }

  void Assign(const Target& target, const Value& value, Scope* scope) {
    if (target.attribute.empty()) {
      scope->Set(target.name, value);
      return;
    }
    const std::optional<Value> space = Lookup(target.name, scope);
    if (!space || space->dict() == nullptr || !space->dict()->is_namespace) {
      runtime_.Fail(fmt::format("'{}' is no namespace", target.name));
    }
    space->dict()->Set(Value::Plain(target.attribute), value);
  }

  Flow Execute(const SetBlock& statement, Scope* scope, MarkedText*) {
    MarkedText text;
    Run(statement.body, NewScope(scope), &text);
    Value value = std::move(text);
    for (const ExprPtr& filter : statement.filters) {
      const auto& node = std::get<Filter>(filter->node);
      value = node.filter->run(runtime_, value, EvaluateAll(node.arguments, scope));
    }
    Assign(statement.target, value, scope);
    return Flow::kNext;
  }

  Flow Execute(const Macro& macro, Scope* scope, MarkedText*) {
    scope->Set(macro.name, NewCallable({&macro, scope, nullptr, {}}));
    return Flow::kNext;
  }

  Flow Execute(const Generation& generation, Scope* scope, MarkedText* out) {
    return Run(generation.body, scope, out);
  }

  Flow Execute(const Break&, Scope*, MarkedText*) { return Flow::kBreak; }
  Flow Execute(const Continue&, Scope*, MarkedText*) { return Flow::kContinue; }

  // Expressions.

  Value Evaluate(const Expr& expr, Scope* scope) {
    const Depth depth(&runtime_);
    runtime_.line = expr.line;
    runtime_.Spend(1);
    return std::visit([&](const auto& node) { return Evaluate(node, scope); }, expr.node);
  }

  // Undefined where the syntax leaves an expression out.
  Value EvaluateOptional(const ExprPtr& expr, Scope* scope) {
    return expr == nullptr ? Value() : Evaluate(*expr, scope);
  }

  CallArguments EvaluateAll(const Arguments& arguments, Scope* scope) {
    CallArguments values;
    for (const ExprPtr& value : arguments.positional) {
      values.positional.push_back(Evaluate(*value, scope));
    }
    for (const auto& [name, value] : arguments.named) {
      values.named.emplace_back(name, Evaluate(*value, scope));
    }
    return values;
  }

  static std::optional<Value> Lookup(std::string_view name, const Scope* scope) {
    for (; scope != nullptr; scope = scope->parent) {
      for (const auto& [known, value] : scope->variables) {
        if (known == name) return value;
      }
    }
    return {};
  }

  Value Evaluate(const Literal& literal, Scope*) { return literal.value; }

  Value Evaluate(const Name& name, Scope* scope) {
    if (const std::optional<Value> value = Lookup(name.name, scope)) return *value;
    if (const Builtin* function = FindFunction(name.name)) {
      return NewCallable({nullptr, nullptr, function, {}});
    }
    return {};
  }

  Value Evaluate(const ListLiteral& literal, Scope* scope) {
    std::vector<Value> items;
    for (const ExprPtr& item : literal.items) items.push_back(Evaluate(*item, scope));
    List* list = runtime_.heap.NewList(std::move(items));
    list->is_tuple = literal.is_tuple;
    return list;
  }

  Value Evaluate(const DictLiteral& literal, Scope* scope) {
    Dict* dict = runtime_.heap.NewDict();
    for (const auto& [key, value] : literal.entries) {
      const Value name = Evaluate(*key, scope);
      if (name.text() == nullptr) {
        runtime_.Fail(fmt::format("a mapping's key of type {}", name.TypeName()));
      }
      dict->Set(name, Evaluate(*value, scope));
    }
    return dict;
  }

  Value Evaluate(const Unary& unary, Scope* scope) {
    const Value value = Evaluate(*unary.operand, scope);
    switch (unary.op) {
      case UnaryOp::kNot: return !value.Truth();
      case UnaryOp::kMinus: return Negate(runtime_, value);
      case UnaryOp::kPlus: return Negate(runtime_, Negate(runtime_, value));
    }
    return {};
  }

  Value Evaluate(const Binary& binary, Scope* scope) {
    Value left = Evaluate(*binary.left, scope);
    if (binary.op == BinaryOp::kAnd && !left.Truth()) return left;
    if (binary.op == BinaryOp::kOr && left.Truth()) return left;
    Value right = Evaluate(*binary.right, scope);
    if (binary.op == BinaryOp::kAnd || binary.op == BinaryOp::kOr) return right;
    return Combine(runtime_, binary.op, left, right);
  }

  Value Evaluate(const Comparison& comparison, Scope* scope) {
    Value left = Evaluate(*comparison.first, scope);
    for (const auto& [op, operand] : comparison.rest) {
      Value right = Evaluate(*operand, scope);
      if (!Compare(runtime_, op, left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  Value Evaluate(const Conditional& conditional, Scope* scope) {
    if (Evaluate(*conditional.condition, scope).Truth()) return Evaluate(*conditional.then, scope);
    return EvaluateOptional(conditional.otherwise, scope);
  }

  // A dot finds methods first and items second; a subscript the other way round.
  Value Evaluate(const Member& member, Scope* scope) {
    const Value object = Evaluate(*member.object, scope);
    if (const Builtin* method = FindMethod(object, member.name)) {
      return NewCallable({nullptr, nullptr, method, object});
    }
    return AttributeOf(runtime_, object, member.name);
  }

  Value Evaluate(const Subscript& subscript, Scope* scope) {
    const Value object = Evaluate(*subscript.object, scope);
    const Value index = Evaluate(*subscript.index, scope);
    Value item = ItemOf(runtime_, object, index);
    if (item.IsUndefined() && index.text() != nullptr) {
      if (const Builtin* method = FindMethod(object, index.text()->text())) {
        return NewCallable({nullptr, nullptr, method, object});
      }
    }
    return item;
  }

  Value Evaluate(const Slice& slice, Scope* scope) {
    const Value object = Evaluate(*slice.object, scope);
    const Value start = EvaluateOptional(slice.start, scope);
    const Value stop = EvaluateOptional(slice.stop, scope);
    return SliceOf(runtime_, object, start, stop, EvaluateOptional(slice.step, scope));
  }

  Value Evaluate(const Call& call, Scope* scope) {
    const Value function = Evaluate(*call.function, scope);
    const CallArguments arguments = EvaluateAll(call.arguments, scope);
    const Callable* callable = function.callable();
    if (callable == nullptr) {
      runtime_.Fail(fmt::format("a call of a value of type {}{}", function.TypeName(),
                                NameOf(*call.function)));
    }
    if (callable->macro != nullptr) return CallMacro(*callable, arguments);
    return callable->builtin->run(runtime_, callable->object, arguments);
  }

  // " 'x.name'" for messages.
  static std::string NameOf(const Expr& expr) {
    if (const auto* name = std::get_if<Name>(&expr.node)) return " '" + name->name + "'";
    if (const auto* member = std::get_if<Member>(&expr.node)) return " '." + member->name + "'";
    return {};
  }

  Value CallMacro(const Callable& callable, const CallArguments& arguments) {
    const Macro& macro = *callable.macro;
    Scope* scope = NewScope(callable.scope);
    if (arguments.positional.size() > macro.parameters.size()) {
      runtime_.Fail(fmt::format("too many arguments for the macro '{}'", macro.name));
    }
    std::vector<bool> is_given(macro.parameters.size());
    for (size_t i = 0; i < arguments.positional.size(); ++i) {
      scope->Set(macro.parameters[i].first, arguments.positional[i]);
      is_given[i] = true;
    }
    for (const auto& [name, value] : arguments.named) {
      size_t i = 0;
      while (i < macro.parameters.size() && macro.parameters[i].first != name) ++i;
      if (i == macro.parameters.size() || is_given[i]) {
        runtime_.Fail(fmt::format("the macro '{}' has no argument '{}' to set", macro.name, name));
      }
      scope->Set(macro.parameters[i].first, value);
      is_given[i] = true;
    }
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      if (is_given[i]) continue;
      scope->Set(macro.parameters[i].first, EvaluateOptional(macro.parameters[i].second, scope));
    }
    MarkedText out;
    const int line = runtime_.line;
    Run(macro.body, scope, &out);
    runtime_.line = line;
    return out;
  }

  Value Evaluate(const Filter& filter, Scope* scope) {
    const Value input = Evaluate(*filter.input, scope);
    return filter.filter->run(runtime_, input, EvaluateAll(filter.arguments, scope));
  }

  Value Evaluate(const Test& test, Scope* scope) {
    const Value input = Evaluate(*test.input, scope);
    const Value result = test.test->run(runtime_, input, EvaluateAll(test.arguments, scope));
    return result.Truth() != test.negated;
  }

  Value NewCallable(Callable callable) { return &callables_.emplace_back(std::move(callable)); }

  Runtime& runtime_;
  std::deque<Scope> scopes_;
  std::deque<Callable> callables_;
};

}  // namespace

struct Template::Syntax {
  Body body;
};

Template::Template(std::string_view source)
    : syntax_(std::make_unique<const Syntax>(Syntax{ParseTemplate(source)})) {}

Template::~Template() = default;

MarkedText Template::Render(const Variables& variables, Runtime* runtime) const {
  Interpreter interpreter(runtime);
  Scope* globals = interpreter.NewScope(nullptr);
  for (const auto& [name, value] : variables) globals->Set(name, value);
  MarkedText out;
  interpreter.Run(syntax_->body, interpreter.NewScope(globals), &out);
  return out;
}

}  // namespace hillstar::jinja
