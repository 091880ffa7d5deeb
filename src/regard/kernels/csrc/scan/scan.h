// The scan family, forward: a state S_t (head_dim x value_dim) that decays and is updated token by token.
//
//     without beta    S_t = D_t S_(t-1) + k_t v_t^T                              D_t = diag(exp(log_decay_t))
//     with beta       S_t = (I - beta_t k_t k_t^T) D_t S_(t-1) + beta_t k_t v_t^T
//     o_t = scale S_t^T q_t
//
// It is linear attention (Katharopoulos et al. 2020, equations 18 to 20), with one decay a head retention (Sun et al.
// 2023), with one a token and head Mamba-2 (Dao and Gu 2024), with one a channel gated linear attention (Yang et al.
// 2024); with beta the delta rule, gated with one decay a token (Yang et al. 2025, "Gated delta networks", equation 10)
// or a channel (Kimi Linear 2025, equation 1): the state decays first, and the delta rule corrects what is left of it.
//
// A chunk of 64 tokens is computed at once. Its updates are u_t = beta_t (v_t - (D_t S_(t-1))^T k_t), or v_t without beta,
// so that S_t = D_t S_(t-1) + k_t u_t^T. With S the state before the chunk, and the matrices of scan_chunk.h:
//
//     x = v + key_start S + erase u,   u = beta x         a triangular system, solved from its first row on
//     o = query_start S + pairs u
//     S_after = whole S + key_end^T u
//
// Yang et al. 2024, "Parallelizing linear transformers with the delta rule over sequence length", section 3, multiplies
// the system's inverse (the WY representation) by v and by k, so that only the last two lines depend on S. Here the
// chunks of a head are computed one after the other, so that the system is solved once, for x itself.
//
// A token with NaN or Inf in key, value, log_decay or beta is never multiplied: the rows before it are those of the
// sequence that ends there, and its own and all later ones are NaN, as is the final state. A log_decay of -Inf is a
// decay of 0. A query with NaN or Inf makes its own row NaN. Rows that are NaN have no gradients.
#pragma once

#include <math.h>

#include "scan/scan_chunk.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct Scan {
    typedef typename A::number number;
    typedef vec<number> numbers;
    typedef ScanProducts<A> Products;
    typedef ScanChunk<A> Chunk;
    typedef typename Products::Depth Depth;
    static constexpr int64_t n = lanes<number>;

    struct Memory {
        Chunk chunk;
        number *state, *residual, *update, *output;

        REGARD_INLINE Memory(const ScanArguments& given, ScratchLayout& layout) : chunk(given, layout) {
            const int64_t values = scan_chunk * chunk.value_width;
            state = layout.template take<number>(chunk.key_width * chunk.value_width);
            update = given.beta ? layout.template take<number>(values) : chunk.value;
            residual = given.beta ? layout.template take<number>(values) : nullptr;
            output = layout.template take<number>(values);
        }
    };

    static size_t forward_scratch(const ScanArguments& given) {
        return bytes_of_parts([&](ScratchLayout& layout) { Memory(given, layout); });
    }

    static bool forward(const ScanArguments& given, const ScanResults& results, int64_t batch, int64_t head,
                        int64_t first, int64_t stop, char* scratch) {
        ScratchLayout layout = {scratch};
        Memory m(given, layout);
        Chunk& c = m.chunk;
        const int64_t width = c.value_width, from = first / n, end = ceil_div(stop, n);
        read_state(given, batch, head, m.state, c);
        bool above = false;
        int64_t token = 0;
        while (token < given.length) {
            const int64_t there = given.length - token < scan_chunk ? given.length - token : scan_chunk;
            above |= c.load_tokens(given, batch, head, token);
            c.fetch_tokens(given, batch, head, token + scan_chunk);
            c.fetch.add(results.output, batch, head, token);
            if (c.count > 0) {
                c.prepare(given);
                if (given.beta) solve(given, c, m.state, m.residual, m.update, from, end);
                Products::multiply_rows(c.query_start, c.key_width, 1, m.state, width, given.head_dim, Depth::whole,
                                        nullptr, m.output, width, c.count, from, end, &c.fetch);
                Products::multiply_rows(c.pairs, tile, 1, m.update, width, c.count, Depth::to_row, m.output, m.output,
                                        width, c.count, from, end, &c.fetch);
                for (int64_t i = 0; i < c.count; ++i) {
                    if (c.bad_queries >> i & 1) fill(m.output + i * width, width, (number)NAN);
                    write_scaled_row(m.output + i * width + first, stop - first, (number)1, results.output,
                                     results.output.at(batch, head, token + i, first));
                }
                advance(given, c, m.state, m.state, m.update, from, end);
            }
            token += c.count;
            if (c.count < there) break;
        }
        if (token < given.length) {
            fill(m.state, c.key_width * width, (number)NAN);
            for (; token < given.length; ++token)
                write_scaled_row(m.state, stop - first, (number)1, results.output,
                                 results.output.at(batch, head, token, first));
        }
        for (int64_t k = 0; k < given.head_dim; ++k)
            write_scaled_row(m.state + k * width + first, stop - first, (number)1, results.state,
                             results.state.at(batch, head, k, first));
        return above;
    }

    // ---- parts, also of the backward pass ----

    // The initial state, or 0: key_width rows of value_width numbers.
    static REGARD_INLINE void read_state(const ScanArguments& given, int64_t batch, int64_t head, number* state,
                                         const Chunk& c) {
        read_matrix(given.state, batch, head, given.head_dim, given.value_dim, state, c);
    }
    static REGARD_INLINE void read_matrix(const Array& from, int64_t batch, int64_t head, int64_t rows, int64_t columns,
                                          number* to, const Chunk& c) {
        if (!from) {
            memset((void*)to, 0, sizeof(number) * (size_t)(c.key_width * c.value_width));
            return;
        }
        int64_t row = 0;
        for (; row < rows; row += tile) {
            const int64_t count = rows - row < tile ? rows - row : tile;
            const int64_t height = row + count == rows ? c.key_width - row : count;
            read_rows(from, from.at(batch, head, row, 0), count, height, columns, to + row * c.value_width,
                      c.value_width);
        }
    }

    // x in `residual` and u in `update`, from the state before the chunk.
    static REGARD_INLINE void solve(const ScanArguments& given, Chunk& c, const number* state, number* residual,
                                    number* update, int64_t from, int64_t end) {
        const int64_t width = c.value_width;
        Products::multiply_rows(c.key_start, c.key_width, 1, state, width, given.head_dim, Depth::whole, c.value, residual,
                                width, c.count, from, end, &c.fetch);
        Products::solve_down(c.erase, c.beta, residual, update, width, c.count, from, end);
    }

    // The state after the chunk; it may take the place of that before.
    static REGARD_INLINE void advance(const ScanArguments& given, Chunk& c, const number* state, number* after,
                                      const number* update, int64_t from, int64_t end) {
        const int64_t width = c.value_width;
        for (int64_t k = 0; k < c.key_width; ++k)
            for (int64_t v = from * n; v < end * n; v += n)
                store(after + k * width + v,
                      given.log_decay ? load(state + k * width + v) * broadcast(c.whole[k]) : load(state + k * width + v));
        Products::multiply_rows(c.key_end, 1, c.key_width, update, width, c.count, Depth::whole, after, after, width,
                                c.key_width, from, end, &c.fetch);
    }

    static REGARD_INLINE void fill(number* at, int64_t count, number with) {
        for (int64_t i = 0; i < count; i += n) store(at + i, broadcast(with));
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard
