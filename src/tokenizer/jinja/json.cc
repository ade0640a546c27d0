#include "tokenizer/jinja/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "hillstar/error.h"
#include "tokenizer/utf8.h"

namespace hillstar::jinja {
namespace {

// Builds values from the parser's events, without recursion.
class ValueBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit ValueBuilder(Heap* heap) : heap_(heap) {}
  const Value& result() const { return result_; }

  bool null() override { return Add(None()); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(int64_t{value}); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(INT64_MAX)) return Add(static_cast<int64_t>(value));
    return Add(BigInteger{std::make_shared<const std::string>(std::to_string(value))});
  }
  // Whole numbers beyond 64 bits arrive here, too, with their digits.
  bool number_float(number_float_t value, const string_t& digits) override {
    if (digits.find_first_of(".eE") != std::string::npos) return Add(double{value});
    return Add(BigInteger{std::make_shared<const std::string>(digits)});
  }
  bool string(string_t& value) override { return Add(MarkedText(value, true)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(heap_->NewDict()); }
  bool key(string_t& value) override {
    keys_.back() = MarkedText(value, true);
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(heap_->NewList()); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool Add(Value value) {
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (List* list = open_.back().list()) {
      list->items.push_back(std::move(value));
    } else {
      open_.back().dict()->Set(keys_.back(), std::move(value));
    }
    return true;
  }
  bool Open(Value container) {
    if (open_.size() >= kMaxJsonDepth) return false;
    Add(container);
    open_.push_back(container);
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  Heap* heap_;
  Value result_;
  std::vector<Value> open_;
  std::vector<Value> keys_;  // the key that comes next, for each open container
};

// A value that holds another one twice, again and again, has no end in practice.
constexpr size_t kMaxJsonBytes = size_t{64} << 20;
constexpr int64_t kMaxIndent = 16;

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  void Write(const Value& value, int depth) {
    if (depth > kMaxJsonDepth) {
      throw Error(ErrorCode::kBadRequest, "A value nests too deeply to be written as JSON");
    }
    if (out_.size() > kMaxJsonBytes) {
      throw Error(ErrorCode::kBadRequest, "A value is too large to be written as JSON");
    }
    if (const MarkedText* text = value.text()) {
      any_marked_ = any_marked_ || text->AnyMarked();
      WriteText(text->text());
    } else if (const List* list = value.list()) {
      WriteList(*list, depth);
    } else if (const Dict* dict = value.dict()) {
      WriteDict(*dict, depth);
    } else {
      WriteScalar(value);
    }
  }

  MarkedText Result() const { return MarkedText(out_, any_marked_); }

 private:
  void WriteScalar(const Value& value) {
    if (value.IsNone()) {
      out_ += "null";
    } else if (const auto* flag = value.As<bool>()) {
      out_ += *flag ? "true" : "false";
    } else if (const auto* whole = value.As<int64_t>()) {
      out_ += std::to_string(*whole);
    } else if (const auto* big = value.As<BigInteger>()) {
      out_ += *big->digits;
    } else if (const auto* real = value.As<double>()) {
      const bool finite = std::isfinite(*real);
      out_ += finite              ? FormatFloat(*real)
              : std::isnan(*real) ? "NaN"
              : *real > 0         ? "Infinity"
                                  : "-Infinity";
    } else {
      throw Error(ErrorCode::kBadRequest,
                  fmt::format("A value of type {} cannot be written as JSON", value.TypeName()));
    }
  }

  void WriteEscaped(uint32_t code) {
    if (code >= 0x10000) {
      code -= 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF));
    } else {
      out_ += fmt::format("\\u{:04x}", code);
    }
  }

  void WriteText(std::string_view text) {
    out_.push_back('"');
    for (size_t pos = 0; pos < text.size();) {
      const Utf8Step step = ScanUtf8(text, pos);
      const std::string_view bytes = text.substr(pos, step.length);
      pos += step.length;
      if (step.status != Utf8Status::kCharacter) {
        out_ += bytes;
        continue;
      }
      switch (step.code) {
        case '"': out_ += "\\\""; break;
        case '\\': out_ += "\\\\"; break;
        case '\n': out_ += "\\n"; break;
        case '\r': out_ += "\\r"; break;
        case '\t': out_ += "\\t"; break;
        case '\b': out_ += "\\b"; break;
        case '\f': out_ += "\\f"; break;
        default:
          if (step.code < 0x20 || (style_.ensure_ascii && step.code > 0x7E)) {
            WriteEscaped(step.code);
          } else {
            out_ += bytes;
          }
      }
    }
    out_.push_back('"');
  }

  void BreakLine(int depth) {
    if (!style_.indent) return;
    out_.push_back('\n');
    out_.append(static_cast<size_t>(std::clamp<int64_t>(*style_.indent, 0, kMaxIndent)) *
                    static_cast<size_t>(depth),
                ' ');
  }

  void WriteList(const List& list, int depth) {
    if (list.items.empty()) {
      out_ += "[]";
      return;
    }
    out_.push_back('[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      BreakLine(depth + 1);
      Write(list.items[i], depth + 1);
    }
    BreakLine(depth);
    out_.push_back(']');
  }

  void WriteDict(const Dict& dict, int depth) {
    if (dict.entries().empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
        return a->key.text()->text() < b->key.text()->text();
      });
    }
    out_.push_back('{');
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      BreakLine(depth + 1);
      Write(entries[i]->key, depth + 1);
      out_ += style_.key_separator;
      Write(entries[i]->value, depth + 1);
    }
    BreakLine(depth);
    out_.push_back('}');
  }

  const JsonStyle& style_;
  std::string out_;
  bool any_marked_ = false;
};

}  // namespace

std::optional<Value> ParseJson(std::string_view text, Heap* heap) {
  ValueBuilder builder(heap);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return {};
  return builder.result();
}

MarkedText WriteJson(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  writer.Write(value, 0);
  return writer.Result();
}

std::string FormatFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto scientific =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string text(buffer, scientific.ptr);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  // Python writes positional digits for exponents from -4 to 15.
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  std::string out(buffer, fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

}  // namespace hillstar::jinja
