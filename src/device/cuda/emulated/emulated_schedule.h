// In which order the threads of an emulated block go on: results must not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace hillstar::emulated {

// Ascending in some grids, descending in others, and in half of them random: warps in any order, of
// which some, and some lanes of others, are held back for a while, or until nobody else can go on,
// as a GPU may.
class Schedule {
 public:
  // Its number decides: the same order in the next run of the program.
  void BeginGrid(uint64_t number);
  void BeginBlock(size_t num_threads);
  // The threads of a sweep over the block, each once or, held back, not at all.
  const std::vector<size_t>& NextSweep();
  // Nobody is held back any more. False: nobody was in the last sweep.
  bool Release();

 private:
  void HoldSomeBack();

  bool is_random_ = false, is_descending_ = false;
  std::mt19937_64 random_;
  int sweeps_left_ = 0;  // until others are held back
  std::vector<size_t> order_, warps_;
  std::vector<int> held_;  // threads, for so many sweeps
};

}  // namespace hillstar::emulated
