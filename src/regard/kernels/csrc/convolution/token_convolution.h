// A convolution of tokens along their length, one filter for each head and all of its channels:
//
//     into_i = base_i + sum_t filter_t from_(i + offset + t - size / 2)
//
// where tokens before the first and behind the last are 0. Six outputs at a time are a product of the band matrix that holds the
// shifted filter in its rows and of the tokens that they reach; the band is read from the filter between zeros, with a
// step of -1 from row to row.
//
// The gradient of `from` is the convolution of the gradients with the reversed filter and the opposite offset, and that of
// filter_t the sum of the products of all gradients and tokens that it multiplies: sums along the diagonals of a product
// of matrices.
#pragma once

#include "convolution/convolution_kernels.h"
#include "runtime/scratch_layout.h"
#include "tiles/gemm_microkernel.h"
#include "tiles/pack.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct TokenConvolution {
    typedef typename A::number number;
    typedef vec<number> numbers;
    static constexpr int64_t n = lanes<number>;

    struct Memory {
        int64_t width;
        number *filter, *tokens, *sums;

        REGARD_INLINE Memory(const ConvolutionArguments& given, ScratchLayout& layout)
            : width(padded_width<A>(given.from.shape[3])) {
            filter = layout.template take<number>(given.size() + 2 * (strip - 1));
            tokens = layout.template take<number>((convolution_block + given.size() - 1) * width);
            sums = layout.template take<number>(convolution_block * width);
        }
    };
    static size_t scratch(const ConvolutionArguments& given) {
        return bytes_of_parts([&](ScratchLayout& layout) { Memory(given, layout); });
    }

    // Rows first .. stop - 1 of a head of `into`, at most convolution_block.
    static void convolve(const ConvolutionArguments& given, int64_t batch, int64_t head, int64_t first, int64_t stop,
                         char* scratch) {
        ScratchLayout layout{scratch};
        Memory m(given, layout);
        const int64_t size = given.size(), count = stop - first, channels = given.from.shape[3];
        // Either several heads of `into` read one of `from`, or one is the sum of several.
        const int64_t heads = given.into.shape[1], sources = given.from.shape[1];
        const int64_t parts = sources > heads ? sources / heads : 1;
        if (given.base)
            read_rows_of(given.base, batch, head, first, count, channels, m.sums, m.width);
        else
            memset((void*)m.sums, 0, sizeof(number) * (size_t)(count * m.width));
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t source = sources > heads ? head * parts + part : head / (heads / sources);
            load_filter(given, sources > heads ? source : head, m.filter);
            load_tokens(given.from, batch, source, first + given.offset - size / 2, count + size - 1, m.tokens, m.width);
            for_panels(0, m.width / n, [&](int64_t v, auto panel) {
                for_strips(count, [&](int64_t i, auto rows) {
                    Sums<A, decltype(rows)::value, decltype(panel)::value> sums;
                    sums.clear();
                    multiply_in_parts(sums, m.filter + strip - 1, -1, 1, m.tokens + i * m.width + v * n, m.width,
                                      size + rows.value - 1);
                    sums.add_from(m.sums + i * m.width + v * n, m.width);
                    sums.store_to(m.sums + i * m.width + v * n, m.width);
                });
            });
        }
        for (int64_t i = 0; i < count; ++i)
            write_scaled_row(m.sums + i * m.width, channels, (number)1, given.into,
                             given.into.at(batch, head, first + i, 0));
    }

    struct FilterMemory {
        int64_t width, reach;  // reach: tokens that a tile of gradients reaches, rounded up
        number *gradients, *tokens, *columns, *products;

        REGARD_INLINE FilterMemory(const FilterGradients& given, ScratchLayout& layout)
            : width(padded_width<A>(given.from.shape[3])), reach(padded_width<A>(tile + given.size() - 1)) {
            gradients = layout.template take<number>(tile * width);
            tokens = layout.template take<number>(reach * width);
            columns = layout.template take<number>(width * reach);
            products = layout.template take<number>(tile * reach);
        }
    };
    static size_t filter_scratch(const FilterGradients& given) {
        return bytes_of_parts([&](ScratchLayout& layout) { FilterMemory(given, layout); });
    }

    // The part of the gradient of a head's filter from the outputs first .. stop - 1 of one entry of the batch.
    static void differentiate_filter(const FilterGradients& given, int64_t batch, int64_t head, int64_t first,
                                     int64_t stop, char* part, char* scratch) {
        ScratchLayout layout{scratch};
        FilterMemory m(given, layout);
        const int64_t size = given.size(), channels = given.from.shape[3], group = given.output.shape[1] / given.from.shape[1];
        number* sums = (number*)part;
        memset((void*)sums, 0, sizeof(number) * (size_t)size);
        for (int64_t row = first; row < stop; row += tile) {
            const int64_t count = stop - row < tile ? stop - row : tile;
            read_rows_of(given.output, batch, head, row, count, channels, m.gradients, m.width);
            load_tokens(given.from, batch, head / group, row + given.offset - size / 2, m.reach, m.tokens, m.width);
            transpose(m.tokens, m.width, m.reach, channels, m.columns, m.reach);
            for_panels(0, m.reach / n, [&](int64_t v, auto panel) {
                for_strips(count, [&](int64_t i, auto rows) {
                    Sums<A, decltype(rows)::value, decltype(panel)::value> products;
                    products.clear();
                    multiply_in_parts(products, m.gradients + i * m.width, m.width, 1, m.columns + v * n, m.reach,
                                      channels);
                    products.store_to(m.products + i * m.reach + v * n, m.reach);
                });
            });
            for (int64_t i = 0; i < count; ++i) add_row(m.products + i * m.reach + i, size, sums);
        }
    }
    // The sum of all parts, in their order.
    static void join_filter(const FilterGradients& given, int64_t head, int64_t parts, char* const* from) {
        number* into = (number*)given.into.data + given.into.at(0, 0, head, 0);
        memset((void*)into, 0, sizeof(number) * (size_t)given.size());
        for (int64_t part = 0; part < parts; ++part) add_row((const number*)from[part], given.size(), into);
    }

private:
    static REGARD_INLINE void add_row(const number* row, int64_t count, number* to) {
        int64_t k = 0;
        for (; k + n <= count; k += n) store(to + k, load(to + k) + load(row + k));
        for (; k < count; ++k) to[k] += row[k];
    }
    static REGARD_INLINE void load_filter(const ConvolutionArguments& given, int64_t head, number* to) {
        const number* from = (const number*)given.filters.data + given.filters.at(0, 0, head, 0);
        const int64_t size = given.size();
        for (int64_t t = 0; t < strip - 1; ++t) to[t] = to[strip - 1 + size + t] = 0;
        memcpy((void*)(to + strip - 1), from, sizeof(number) * (size_t)size);
    }
    // Reads any number of rows.
    static REGARD_INLINE void read_rows_of(const Array& from, int64_t batch, int64_t head, int64_t first, int64_t count,
                                           int64_t channels, number* to, int64_t width) {
        for (int64_t row = 0; row < count; row += tile) {
            const int64_t rows = count - row < tile ? count - row : tile;
            read_rows(from, from.at(batch, head, first + row, 0), rows, rows, channels, to + row * width, width);
        }
    }
    // Reads the tokens from `first` on, which may be before the first one or behind the last; there they are 0.
    static REGARD_INLINE void load_tokens(const Array& from, int64_t batch, int64_t head, int64_t first, int64_t count,
                                          number* to, int64_t width) {
        const int64_t length = from.shape[2];
        const int64_t begin = first < 0 ? 0 : first > length ? length : first;
        const int64_t end = first + count < begin ? begin : first + count > length ? length : first + count;
        const int64_t before = begin == end ? 0 : begin - first, there = end - begin;
        memset((void*)to, 0, sizeof(number) * (size_t)(before * width));
        read_rows_of(from, batch, head, begin, there, from.shape[3], to + before * width, width);
        memset((void*)(to + (before + there) * width), 0, sizeof(number) * (size_t)((count - before - there) * width));
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard
