// The DDR3 devices and their controller, command by command. It knows times, not bytes.
//
// What is modelled, and from where:
// - The devices obey every interval of DdrTiming. At most one command is issued a clock.
// - Two queues of single accesses (BL8 bursts), one of reads and one of writes (UG585: two 32-entry
//   CAMs). A page stays open until another row of its bank is needed or a refresh comes.
// - Which access goes next: of the queue that is being served, the oldest whose row is open. Rows
//   that older accesses need are opened meanwhile, oldest first, unless younger accesses to the
//   open row of that bank are still waiting. Only the row_lookahead oldest accesses have rows
//   opened for them. An access older than age_clocks ends the precedence of the open row in its
//   bank.
// - Which queue is served (UG585, "Stage 3 - Transaction State" and its table of states): the same
//   until it is empty or the other is critical. A queue becomes critical when it was not served for
//   starve_clocks in its normal state; it is then served at least run_accesses times before it may
//   be left, and counts as normal again quiet_clocks later. A queue that is not served prepares no
//   rows.
// - A write to a 16-byte block that is already queued joins it (UG585, "Write Combine"). A read of
// a
//   block with a queued write, and the reverse, waits until the other has gone, which becomes
//   critical at once.
// - A refresh takes place when it is due: all banks are precharged, nothing is issued for tRFC.
// Left out: calibration (ZQ and DLL updates, together about 0.2 % of the time), power-down, ECC.
//
// The efficiencies that UG585 ("DDR Efficiency") prints for four AXI_HP masters with bursts of 16,
// and the model's, in percent; the last column has row_lookahead 32 (bandwidth_test.cc has the
// set-up):
//
//                          manual   16-bit bus   32-bit bus   16-bit, unlimited
//   reads, sequential        97        95.8         95.8           96.0
//   reads, random            92        92.5         92.5           96.2
//   writes, sequential       90        92.3         92.5           93.1
//   writes, random           87        89.2         85.6           95.9
//   both, sequential         87        84.2         84.6           85.6
//   both, random             79        81.6         79.1           85.3
//
// - row_lookahead is the one figure of these that no public source gives. It was fitted to the
// random
//   rows: with 7 both bus widths come within three points, with 6 or 8 one figure stays outside.
// - The manual does not say where its sequential masters start; the figures are means over that.
//   Sequential writes lie between 78 and 96: where two masters meet in one bank, the row cycle of
//   writes (write_to_precharge) is too long to be hidden.
// - Mixed traffic pays 14 clocks for each pair of turn-arounds, so its figure is the length of the
//   phases that starve_clocks and quiet_clocks set. Counting the quiet time as starvation would
//   shorten them to 64 clocks and cost 0.7 points.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "machine/memory_spec.h"

namespace sluice::machine {

enum class Direction : uint8_t { kRead = 0, kWrite = 1 };

// What the DDR bus was doing, in its clocks. Each clock since the start or the last reset counts in
// exactly one of the first six: the four clocks from a read or write command on are data; those
// after them until the next such command are turn-around as far as read_to_write or write_to_read
// forbids that command, then row (activate or precharge not hidden); idle is nothing to do.
struct DdrAccount {
  uint64_t read_data = 0;
  uint64_t write_data = 0;
  uint64_t turnaround = 0;
  uint64_t row = 0;
  uint64_t refresh = 0;
  uint64_t idle = 0;

  uint64_t reads = 0;  // accesses
  uint64_t writes = 0;
  uint64_t combined_writes = 0;  // that joined a queued one
  uint64_t activates = 0;
  uint64_t precharges = 0;  // other than for a refresh
  uint64_t refreshes = 0;
  uint64_t conflicts = 0;  // offers refused because the other queue held the same block

  uint64_t Clocks() const { return read_data + write_data + turnaround + row + refresh + idle; }
  // The part of the time that carried data; 0 before the first clock.
  double Efficiency() const;
};

class DdrController {
 public:
  enum class Admission : uint8_t { kTaken, kFull, kConflict };
  struct ReadDone {
    uint32_t tag;
    uint64_t clock;  // first clock after the last data on the bus
  };

  // The figures must have passed CheckMemory.
  DdrController(const DdrTiming& timing, const SchedulerSpec& scheduler);

  uint64_t now() const { return now_; }
  bool Full(Direction direction) const;

  // Offers the access of the block that holds byte `address` (above the devices' size it wraps).
  // What is not taken may be offered again later.
  Admission Offer(Direction direction, uint64_t address, uint32_t tag);

  // Runs to clock `until` (not before now) and returns the reads that were issued on the way; valid
  // until the next call. Their data may still be to come: `clock` may lie after `until`.
  std::span<const ReadDone> Advance(uint64_t until);

  const DdrAccount& account() const { return account_; }
  void ResetAccount() { account_ = {}; }

 private:
  static constexpr uint32_t kMaxBanks = 16;
  static constexpr uint32_t kMaxEntries = 64;
  static constexpr uint32_t kNoRow = ~uint32_t{0};
  static constexpr uint64_t kNever = ~uint64_t{0};

  struct Entry {
    uint64_t arrived;
    uint32_t block;  // address / access size
    uint32_t row;
    uint32_t tag;
    uint32_t bank;
  };
  // Entries stand in the order of arrival. Bit i of a mask is entry i, or bank i.
  struct Queue {
    std::array<Entry, kMaxEntries> entries;
    uint32_t size = 0;
    uint32_t capacity = 0;
    std::array<uint64_t, kMaxBanks> in_bank = {};
    uint64_t hits = 0;        // entries whose row is open
    uint32_t work_banks = 0;  // banks with entries
    uint32_t miss_banks = 0;  // banks with entries of which none is a hit
    uint64_t waiting_since = 0;
    uint64_t quiet_until = 0;
    bool critical = false;
    uint32_t served = 0;  // since it became critical

    bool Holds(uint32_t block) const;
    void Add(const Entry& entry, bool hit);
    void Remove(uint32_t index);
    void RowChanged(uint32_t bank, uint32_t row);
    void UpdateBank(uint32_t bank);
  };
  struct Bank {
    uint32_t row = kNoRow;
    uint64_t activate_at = 0;  // earliest clocks of the next command of each kind
    uint64_t access_at = 0;
    uint64_t precharge_at = 0;
  };

  uint64_t Step();
  uint64_t Refresh();
  void ChooseDirection();
  uint64_t CriticalAt(const Queue& queue) const;
  void Access(Queue& queue, uint32_t index);
  bool RowCommand(const Queue& queue, uint32_t banks, uint64_t& wake);
  void OpenRow(uint32_t bank, uint32_t row);
  void CloseRow(uint32_t bank);
  void Attribute(uint64_t from, uint64_t to);

  const DdrTiming timing_;
  const SchedulerSpec scheduler_;
  const uint32_t access_shift_;
  const uint32_t page_shift_;
  const uint32_t bank_shift_;

  uint64_t now_ = 0;
  uint64_t wake_ = 0;  // nothing can be issued before
  uint32_t direction_ = 0;
  std::array<Queue, 2> queues_;
  std::array<Bank, kMaxBanks> banks_;
  std::array<uint64_t, 2> access_at_ = {};       // earliest read and write command on any bank
  uint64_t activate_at_ = 0;                     // earliest activate on any bank
  std::array<uint64_t, 4> last_activates_ = {};  // + faw; a ring
  uint32_t next_activate_ = 0;
  uint64_t refresh_due_;
  uint64_t refresh_end_ = 0;
  uint64_t data_end_ = 0;  // of the last access's clocks
  uint32_t data_direction_ = 0;
  DdrAccount account_;
  std::vector<ReadDone> done_;
};

}  // namespace sluice::machine
