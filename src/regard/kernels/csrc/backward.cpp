// Backward: tokens are packed, then tasks of (lane, range of key tiles), then the parts of dQ are added up.
//
// A range of key tiles has its own dK and dV, and a buffer for what it adds to dQ. How many ranges a head is cut into
// depends on the shapes alone, and so does everything that is summed.
//
// The gradient of a bias that is the same for some (batch, key head)s is a sum over them. Those form a *lane*, whose
// members are taken one after the other; few lanes are cut into `copies`, each with a gradient of its own, added at the
// end in order. A gradient that is also the same for all keys has a copy for each range as well.
#include <string.h>

#include "cpu.h"
#include "decode.h"
#include "drivers.h"
#include "kernel_table.h"
#include "pack_layout.h"
#include "parallel.h"

namespace regard {

namespace {

constexpr int64_t min_tasks = 32;
constexpr int64_t max_ranges = 8;
constexpr int64_t min_range_tiles = 4;  // key tiles in a range
constexpr int64_t max_copies_bytes = (int64_t)64 << 20;

int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

// How (batch, key head)s and key tiles are cut into tasks.
struct Split {
    bool over_batch = false, over_heads = false;  // the gradient of a bias is a sum over these
    int64_t lanes = 1, members = 1, copies = 1, ranges = 1, tiles_in_range = 1;

    Split(const Problem& p, const Gradients& g) {
        bool copies_by_range = false;
        int64_t bytes = 1;
        if (g.bias) {
            over_batch |= g.bias.shape[0] == 1 && p.batch > 1;
            over_heads |= g.bias.shape[1] == 1 && p.heads > 1;
            copies_by_range |= g.bias.shape[3] == 1;
            bytes = max_of(bytes, 8 * g.bias.shape[0] * g.bias.shape[1] * g.bias.shape[2] * g.bias.shape[3]);
        }
        if (g.table) {
            over_batch |= p.batch > 1;
            over_heads |= g.table.shape[2] == 1 && p.heads > 1;
            copies_by_range = true;
            bytes = max_of(bytes, 8 * g.table.shape[2] * g.table.shape[3]);
        }
        int64_t owners = (over_batch ? 1 : p.batch) * (over_heads ? 1 : p.key_heads);
        members = (over_batch ? p.batch : 1) * (over_heads ? p.key_heads : 1);
        ranges = max_of(1, min_of(min_of(ceil_div(min_tasks, owners), max_ranges), p.key_tiles() / min_range_tiles));
        tiles_in_range = ceil_div(p.key_tiles(), ranges);
        ranges = ceil_div(p.key_tiles(), tiles_in_range);
        int64_t cuts = 1;
        if (members > 1 && owners * ranges < min_tasks)
            cuts = max_of(1, min_of(min_of(members, ceil_div(min_tasks, owners * ranges)), max_copies_bytes / bytes));
        lanes = owners * cuts;
        members = ceil_div(members, cuts);
        cuts_ = cuts;
        copies = cuts * (copies_by_range ? ranges : 1);
        by_range_ = copies_by_range;
    }

    int64_t copy_index(int64_t lane, int64_t range) const {
        int64_t cut = lane % cuts_;
        return by_range_ ? cut * ranges + range : cut;
    }
    // Whether each (batch, key head) is a lane, the n-th the n-th.
    bool has_own_gradients() const { return !over_batch && !over_heads; }
    // The n-th (batch, key head) of a lane; -1 where it has fewer.
    int64_t member(const Problem& p, int64_t lane, int64_t n) const {
        int64_t owner = lane / cuts_, index = lane % cuts_ * members + n;
        int64_t batch = owner, key_head = 0;
        if (over_batch && over_heads) {
            if (index >= p.batch * p.key_heads) return -1;
            return index;
        }
        if (over_batch) {
            key_head = owner, batch = index;
            if (batch >= p.batch) return -1;
        } else if (over_heads) {
            key_head = index;
            if (key_head >= p.key_heads) return -1;
        } else {
            return owner;
        }
        return batch * p.key_heads + key_head;
    }

  private:
    int64_t cuts_ = 1;
    bool by_range_ = false;
};

// Where the packed tokens of one (batch, key head) lie, and the weights, where they are kept.
struct Layout {
    BackwardSizes size;
    size_t key_tiles, query_tiles;  // query tiles of all heads of the group
    size_t weight_tiles;              // of weights: those of a key tile, for each head of the group

    Layout(const Problem& p, const Kernels& k, bool saves_weights)
        : size(k.backward_sizes(p)), key_tiles((size_t)p.key_tiles()),
          query_tiles((size_t)(p.group() * p.query_tiles())),
          weight_tiles(saves_weights ? (size_t)p.group() * key_tiles : 0) {}

    BackwardTiles at(char* base) const {
        BackwardTiles t;
        char* next = base;
        auto take = [&](size_t bytes) {
            char* part = next;
            next += align_up(bytes);
            return part;
        };
        t.key = take(size.key * key_tiles);
        t.key_rows = take(size.key_rows * key_tiles);
        t.value = take(size.value * key_tiles);
        t.query = take(size.query * query_tiles);
        t.query_rows = size.query_rows ? take(size.query_rows * query_tiles) : t.query;
        t.output = take(size.output * query_tiles);
        t.output_rows = size.output_rows ? take(size.output_rows * query_tiles) : t.output;
        t.largest = take(size.row_numbers * query_tiles);
        t.log_sum = take(size.row_numbers * query_tiles);
        t.delta = take(size.row_numbers * query_tiles);
        t.active = take(8 * query_tiles);
        t.weights = weight_tiles ? take(size.weights * weight_tiles) : nullptr;
        t.size = &size;
        return t;
    }
    size_t bytes() const {
        return align_up(size.key * key_tiles) + align_up(size.key_rows * key_tiles) + align_up(size.value * key_tiles) +
               align_up(size.query * query_tiles) + align_up(size.query_rows * query_tiles) +
               align_up(size.output * query_tiles) + align_up(size.output_rows * query_tiles) +
               3 * align_up(size.row_numbers * query_tiles) + align_up(8 * query_tiles) +
               (weight_tiles ? align_up(size.weights * weight_tiles) : 0);
    }
    size_t grad_query_bytes() const { return size.grad_query * query_tiles; }
};

// Gradients of bias and table: where there are copies, in memory of their own.
class SharedGradient {
  public:
    SharedGradient(const Array& into, int64_t copies) : into_(into), copies_(copies) {
        if (!into) return;
        elements_ = into.shape[0] * into.shape[1] * into.shape[2] * into.shape[3];
        item_ = into.dtype == Dtype::float64 ? 8 : 4;
        memory_ = Scratch::of<char>({copies, elements_, item_});
        memset(memory_.as<char>(), 0, (size_t)(copies * elements_ * item_));
    }
    // The copy as an array that broadcasts as the gradient's own.
    Array copy(int64_t index) const {
        Array a = into_;
        if (!into_) return a;
        a.data = memory_.as<char>() + index * elements_ * item_;
        int64_t step = 1;
        for (int d = 3; d >= 0; --d) {
            a.stride[d] = into_.shape[d] == 1 ? 0 : step;
            step *= into_.shape[d];
        }
        return a;
    }
    void finish() const {
        if (!into_) return;
        if (item_ == 8)
            add<double>();
        else
            add<float>();
    }

  private:
    template <class Number>
    void add() const {
        const Number* from = memory_.as<Number>();
        Number* to = (Number*)into_.data;
        int64_t at = 0;
        for (int64_t a = 0; a < into_.shape[0]; ++a)
            for (int64_t b = 0; b < into_.shape[1]; ++b)
                for (int64_t c = 0; c < into_.shape[2]; ++c)
                    for (int64_t d = 0; d < into_.shape[3]; ++d, ++at) {
                        Number sum = from[at];
                        for (int64_t n = 1; n < copies_; ++n) sum += from[n * elements_ + at];
                        to[into_.at(a, b, c, d)] = sum;
                    }
    }

    Array into_;
    int64_t copies_ = 1, elements_ = 0, item_ = 4;
    Scratch memory_;
};

struct Run {
    const Problem& p;
    const Kernels& k;
    const BackwardInputs& given;
    const Gradients& g;
    const Split split;
    const bool was_decoded;  // by the forward pass
    const Layout layout;
    int threads;
    SharedGradient bias, table;
    size_t work;

    Run(const Problem& p, const Kernels& k, const BackwardInputs& given, const Gradients& g, int threads)
        : p(p), k(k), given(given), g(g), split(p, g), was_decoded(!p.vector && is_decode_suitable(p)),
          layout(p, k, was_decoded), threads(threads), bias(g.bias, split.copies),
          table(g.table, split.copies) {
        work = align_up(max_bytes(layout.size.scratch, layout.size.pack_scratch));
    }

    // Query tiles first .. past - 1, which the band lets see key tiles first_key_tile .. stop_key_tile - 1.
    struct Reach {
        int64_t first, past;
        Reach(const Problem& p, int64_t first_key_tile, int64_t stop_key_tile) {
            int64_t lowest = max_of(0, first_key_tile * tile - p.mask.high);
            int64_t highest = min_of(p.queries - 1, stop_key_tile * tile - 1 - p.mask.low);
            first = lowest / tile;
            past = highest < lowest ? first : highest / tile + 1;
            first = min_of(first, p.query_tiles());
            past = max_of(first, past);
        }
    };

    BackwardResults results(char* grad_query, const Reach& reach, int64_t copy) const {
        return {grad_query,        reach.first,        reach.past,   g.key,         g.value,
                bias.copy(copy), table.copy(copy), (bool)g.bias, (bool)g.table, g.vector};
    }

    void pack_keys(int64_t member, int64_t t, const BackwardTiles& tiles, char* scratch) const {
        k.backward_pack_keys(p, member / p.key_heads, member % p.key_heads, t, tiles, scratch);
    }
    void pack_queries(int64_t member, int64_t n, const BackwardTiles& tiles, char* scratch) const {
        int64_t in_group = n / p.query_tiles(), head = member % p.key_heads * p.group() + in_group;
        k.backward_pack_queries(p, given, member / p.key_heads, head, n % p.query_tiles(), tiles, in_group, scratch);
    }
    // What stands between packing and gradients: it needs all keys of one tile of queries.
    bool has_preparation() const { return was_decoded || given.grad_lse || given.has_statistics(); }
    void prepare_queries(int64_t member, int64_t n, const BackwardTiles& tiles, char* scratch) const {
        int64_t in_group = n / p.query_tiles(), t = n % p.query_tiles(), batch = member / p.key_heads;
        int64_t head = member % p.key_heads * p.group() + in_group;
        k.backward_prepare_queries(p, given, tiles, batch, head, in_group, t, scratch);
    }
    void finish_queries(int64_t member, int64_t n, char* buffers, size_t step) const {
        int64_t in_group = n / p.query_tiles(), t = n % p.query_tiles();
        int64_t head = member % p.key_heads * p.group() + in_group, first = 0, past = split.ranges;
        while (first < past && !reaches(first, t)) ++first;
        while (past > first && !reaches(past - 1, t)) --past;  // a band: between the two there is none that does not
        k.backward_finish_queries(p, member / p.key_heads, head, t,
                                  buffers + layout.size.grad_query * (size_t)n + step * (size_t)(past > first ? first : 0),
                                  step, past - first, g.query);
    }
    bool reaches(int64_t range, int64_t query_tile) const {
        const Reach reach = query_reach(range);
        return reach.first <= query_tile && query_tile < reach.past;
    }
    Reach query_reach(int64_t range) const { return Reach(p, range_start(range), range_start(range + 1)); }
    // The first key tile of a range.
    int64_t range_start(int64_t range) const { return min_of(range * split.tiles_in_range, p.key_tiles()); }

    // One range: a lane's members one after the other, each packed, computed and finished by one thread.
    void run_by_head() const {
        size_t each = layout.bytes() + align_up(layout.grad_query_bytes()) + work;
        Scratch scratch = Scratch::of<char>({threads, (int64_t)each});
        auto compute_lane = [&](int64_t lane, int thread) {
            char* mine = scratch.as<char>() + (size_t)thread * each;
            BackwardTiles tiles = layout.at(mine);
            char* grad_query = mine + layout.bytes();
            char* rest = grad_query + align_up(layout.grad_query_bytes());
            for (int64_t n = 0; n < split.members; ++n) {
                int64_t member = split.member(p, lane, n);
                if (member < 0) break;
                for (int64_t t = 0; t < (int64_t)layout.key_tiles; ++t) pack_keys(member, t, tiles, rest);
                for (int64_t t = 0; t < (int64_t)layout.query_tiles; ++t) pack_queries(member, t, tiles, rest);
                if (has_preparation())
                    for (int64_t t = 0; t < (int64_t)layout.query_tiles; ++t) prepare_queries(member, t, tiles, rest);
                k.backward(p, given, tiles, results(grad_query, query_reach(0), split.copy_index(lane, 0)),
                           member / p.key_heads, member % p.key_heads, 0, (int64_t)layout.key_tiles, rest);
                for (int64_t t = 0; t < (int64_t)layout.query_tiles; ++t) finish_queries(member, t, grad_query, 0);
            }
        };
        if (split.members > 1) return parallel_for(split.lanes, threads, compute_lane);
        HeadSets(p, threads).run(
            threads, {&p.key, &p.value}, {&p.query, &given.grad_output, &given.output, &given.rounding},
            [&](int64_t batch, int64_t key_head, int thread) { compute_lane(batch * p.key_heads + key_head, thread); });
    }

    // Several ranges a head. Heads are taken in rounds, unless one gradient of a bias is a sum over some of them.
    void run_by_range() const {
        const int64_t all = p.batch * p.key_heads;
        const size_t one = layout.bytes(), grad_query = align_up(layout.grad_query_bytes());
        const int64_t least_heads = ceil_div(4 * (int64_t)threads, split.ranges);
        const int64_t round_heads =
            split.has_own_gradients() ? heads_per_round(all, one + (size_t)split.ranges * grad_query, least_heads) : all;
        Scratch packed = Scratch::of<char>({round_heads, (int64_t)one});
        Scratch sums = Scratch::of<char>({round_heads, split.ranges, (int64_t)grad_query});
        Scratch scratch = Scratch::of<char>({threads, (int64_t)work});
        for_rounds(all, round_heads, [&](int64_t first, int64_t count) {
            process_round(first, count, packed.as<char>(), sums.as<char>(), scratch.as<char>());
        });
    }

    void process_round(int64_t first_member, int64_t count, char* packed, char* sums, char* scratch) const {
        const size_t one = layout.bytes(), grad_query = align_up(layout.grad_query_bytes());
        auto mine = [&](int thread) { return scratch + (size_t)thread * work; };
        auto tiles_of = [&](int64_t member) { return layout.at(packed + one * (size_t)(member - first_member)); };
        auto sums_of = [&](int64_t member, int64_t range) {
            return sums + grad_query * (size_t)((member - first_member) * split.ranges + range);
        };
        int64_t key_tiles = (int64_t)layout.key_tiles, query_tiles = (int64_t)layout.query_tiles;
        int64_t both = key_tiles + query_tiles;
        parallel_for(count * both, threads, [&](int64_t task, int thread) {
            int64_t member = first_member + task / both, n = task % both;
            if (n < key_tiles)
                pack_keys(member, n, tiles_of(member), mine(thread));
            else
                pack_queries(member, n - key_tiles, tiles_of(member), mine(thread));
        });
        if (has_preparation())
            parallel_for(count * query_tiles, threads, [&](int64_t task, int thread) {
                int64_t member = first_member + task / query_tiles;
                prepare_queries(member, task % query_tiles, tiles_of(member), mine(thread));
            });
        const int64_t lanes = split.has_own_gradients() ? count : split.lanes;
        parallel_for(lanes * split.ranges, threads, [&](int64_t task, int thread) {
            int64_t lane = first_member + task / split.ranges, range = task % split.ranges;
            for (int64_t n = 0; n < split.members; ++n) {
                int64_t member = split.member(p, lane, n);
                if (member < 0) break;
                k.backward(p, given, tiles_of(member),
                           results(sums_of(member, range), query_reach(range), split.copy_index(lane, range)),
                           member / p.key_heads, member % p.key_heads, range_start(range), range_start(range + 1), mine(thread));
            }
        });
        parallel_for(count * query_tiles, threads, [&](int64_t task, int) {
            int64_t member = first_member + task / query_tiles;
            finish_queries(member, task % query_tiles, sums_of(member, 0), grad_query);
        });
    }
};

}  // namespace

void backward(const Problem& p, const ForwardResults& results, const Gradients& g, int threads) {
    if (p.batch * p.heads * p.queries * p.keys == 0) return;
    BackwardInputs given = {g.output, results.output, results.normalizer, results.rounding, g.lse, g.log_weight,
                           g.column, g.top_keys,     g.top,       g.rows,           g.rows_weights};
    Run run(p, kernels_for(p), given, g, threads);
    if (run.split.ranges == 1)
        run.run_by_head();
    else
        run.run_by_range();
    run.bias.finish();
    run.table.finish();
}

}  // namespace regard
