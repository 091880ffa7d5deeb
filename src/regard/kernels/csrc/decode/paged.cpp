// Attention of queries to keys and values in pages, which are read in place: by decode_chunk.h for few queries, else by
// packing a tile at a time out of the pages.
//
// A sequence is computed by the kernel that computes the same keys in one piece, with the same bits, except that one query is
// always decoded, if it can be: so the tokens that many texts have in a step are one parallel region.
#include <numeric>
#include <vector>

#include "decode/decode_kernels.h"
#include "drivers.h"
#include "runtime/parallel.h"

namespace regard {

namespace {

// Adjacent sequences that are computed together: with as many queries each, and by one kernel.
struct Part {
    Problem problem;  // with one entry for each sequence, and the offset from its end
    Pages pages;
    ForwardResults results;
    bool decodes;
};

// The part of an array for the sequences of a part, given its axes of entries and of queries.
Array take_part(Array array, const Pages& pages, int entries, int queries, int64_t sequence, int64_t token,
                int64_t skipped, int64_t count) {
    if (!array) return array;
    const int64_t first = (pages.counts ? token * array.stride[queries] : sequence * array.stride[entries]) +
                          skipped * array.stride[queries];
    array.data = static_cast<char*>(array.data) + first * static_cast<int64_t>(dtype_size(array.dtype));
    if (pages.counts) array.stride[entries] = count * array.stride[queries];
    return array;
}

bool is_rounded(const Pages& pages) { return pages.key.dtype == Dtype::int8; }

bool is_decoded(const Problem& part, const Pages& pages, int64_t length) {
    if (is_rounded(pages)) return true;  // whatever the number of queries: no other kernel reads them
    Problem own = part;
    own.keys = length;
    if (part.queries == 1) own.keys = unbounded_high;  // however few the keys are
    return is_decode_suitable(own);
}

Part make_part(const Problem& p, const Pages& pages, const ForwardResults& results, int64_t sequence, int64_t token,
               int64_t skipped, int64_t count, int64_t offset) {
    const auto take = [&](const Array& array, int entries, int queries) {
        return take_part(array, pages, entries, queries, sequence, token, skipped, count);
    };
    Part part = {p, pages, {take(results.output, 0, 2), take(results.lse, 1, 3), {}, {}}, false};
    part.problem.batch = 1;
    part.problem.queries = count;
    part.problem.offset = offset;
    part.problem.query = take(p.query, 0, 2);
    part.problem.sinks = take(p.sinks, 0, 2);
    part.pages.counts = {};
    part.pages.table.data = static_cast<char*>(pages.table.data) + sequence * pages.table.stride[2] *
                                                                       static_cast<int64_t>(dtype_size(pages.table.dtype));
    part.pages.lengths.data = static_cast<int64_t*>(pages.lengths.data) + sequence;
    part.decodes = is_decoded(part.problem, pages, part.pages.length(0));
    return part;
}

std::vector<Part> divide(const Problem& p, const Pages& pages, const ForwardResults& results) {
    std::vector<Part> parts;
    int64_t token = 0;
    for (int64_t sequence = 0; sequence < pages.sequences(); ++sequence) {
        const int64_t count = pages.count(p, sequence);
        const int64_t most = is_rounded(pages) ? max_decode_rows / p.group() : count;
        const bool is_divided = count > most;
        const bool goes_on = !parts.empty() && parts.back().decodes && parts.back().problem.queries == count &&
                             is_decoded(parts.back().problem, pages, pages.length(sequence)) && !is_divided;
        if (goes_on)
            ++parts.back().problem.batch;
        else
            for (int64_t first = 0; first < count; first += most)
                parts.push_back(make_part(p, pages, results, sequence, token, first, std::min(most, count - first), first - count));
        token += count;
    }
    return parts;
}

// The problem of a single sequence. Pages and tiles whose keys the band hides from all queries are left out: such pages may
// be those of other sequences.
Problem in_place(const Part& part) {
    Problem p = with_length(part.problem, part.pages.length(0));
    p.key = part.pages.key, p.value = part.pages.value, p.page_table = part.pages.table;
    const int64_t page_size = p.key.shape[2], together = std::lcm(page_size, tile);
    const int64_t hidden = std::min(std::max<int64_t>(p.mask.low, 0), p.keys) / together * together;
    p.keys -= hidden, p.offset -= hidden, p.mask.low -= hidden, p.mask.high -= hidden;
    p.page_table.data = static_cast<char*>(p.page_table.data) + hidden / page_size * p.page_table.stride[3] *
                                                                    static_cast<int64_t>(dtype_size(p.page_table.dtype));
    return p;
}

void compute(const Part& part, int threads) {
    if (part.decodes)
        decode_in_pages(part.problem, part.pages, part.results, threads);
    else
        forward(in_place(part), part.results, threads);
}

}  // namespace

void paged(const Problem& p, const Pages& pages, const ForwardResults& results, int threads) {
    const std::vector<Part> parts = divide(p, pages, results);
    if (parts.size() == 1) return compute(parts.front(), threads);
    in_one_region(threads, [&] {
        for (const Part& part : parts) compute(part, threads);
    });
}

}  // namespace regard
