// What may come next in an answer: a grammar, or whatever else restricts it. Belongs to one
// sequence and one thread.
#pragma once

#include <cstdint>
#include <span>

namespace hillstar {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Clears the bits of the tokens that may not come next: token i's is bit i % 32 of word i / 32.
  // Does not throw.
  virtual void Restrict(std::span<uint32_t> allowed) = 0;
  // Takes the token that came. REQUIRES that it was allowed. Does not throw.
  virtual void Accept(int32_t id) = 0;
};

}  // namespace hillstar
