// The scan family, backward: the gradients of scan.h, chunk by chunk.
//
// Three passes over the chunks of a head: the states between chunks, from the first chunk on; the gradients of those
// states, from the last chunk back; and the gradients of a chunk's tokens, which depend on the two states at its ends.
// So memory is that of a state for each chunk of 64 tokens. With dS the gradient of the state after a chunk:
//
//     z = pairs^T dO + key_end dS + erase^T y,   y = beta z     the transposed system, solved from its last row on
//     dv = y, dbeta_t = z_t . x_t                               without beta dv = z
//     dS_before = whole dS + query_start^T dO + key_start^T y
//     d_pairs = dO u^T, d_erase = y u^T
//     d_query_start = dO S^T, d_key_start = y S^T, d_key_end = u dS^T
//
// The gradients of q and k follow from these by the definitions in scan_chunk.h. For the decays, call dk^row the part of
// dk that comes through key_start and the rows of erase, and dk^column the part through key_end and the columns. A number
// q_i, or k_i as a row, is always multiplied by exp(b_i), and k_i as a column by exp(-b_i), so that
//
//     db_i = q_i dq_i + k_i dk^row_i - k_i dk^column_i       channel by channel
//     db_last += sum_j k_j (decay of j's key_end) d_key_end_j + sum_v whole S dS
//     d_log_decay_t = sum_(i>=t) db_i
//
// Terms that cancel in this sum exactly are left out of it: those of a pair with i = j, and of the last key_end.
#pragma once

#include "scan/scan.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct ScanBackward {
    typedef typename A::number number;
    typedef vec<number> numbers;
    typedef ScanProducts<A> Products;
    typedef ScanChunk<A> Chunk;
    typedef typename Products::Depth Depth;
    static constexpr int64_t n = lanes<number>, block = Chunk::block;

    // What is kept of a head. Gradients of states are kept for all chunks, or for the one at work and the one before.
    struct Saved {
        int64_t *tokens;  // before the first one with NaN or Inf
        number *states, *residuals, *state_gradients, *residual_gradients;
        int64_t state_numbers, residual_numbers;
        bool all;

        REGARD_INLINE Saved(const ScanArguments& given, bool all, ScratchLayout& layout) : all(all) {
            const int64_t chunks = ceil_div(given.length, scan_chunk);
            state_numbers = padded_width<A>(given.head_dim) * padded_width<A>(given.value_dim);
            residual_numbers = scan_chunk * padded_width<A>(given.value_dim);
            tokens = layout.template take<int64_t>(1);
            states = layout.template take<number>(chunks * state_numbers);
            residuals = given.beta ? layout.template take<number>(chunks * residual_numbers) : nullptr;
            state_gradients = layout.template take<number>((all ? chunks + 1 : 2) * state_numbers);
            residual_gradients = layout.template take<number>((all ? chunks : 1) * residual_numbers);
        }
        REGARD_INLINE number* state(int64_t chunk) const { return states + chunk * state_numbers; }
        REGARD_INLINE number* residual(int64_t chunk) const { return residuals + chunk * residual_numbers; }
        // Of the state before a chunk.
        REGARD_INLINE number* state_gradient(int64_t chunk) const {
            return state_gradients + (all ? chunk : chunk & 1) * state_numbers;
        }
        REGARD_INLINE number* residual_gradient(int64_t chunk) const {
            return residual_gradients + (all ? chunk : 0) * residual_numbers;
        }
    };

    struct Memory {
        Chunk chunk;
        number *output_gradient, *update, *scaled_residual_gradient;  // dO, u, y
        number *update_columns, *state_columns, *state_gradient_columns;  // transposed
        number *pairs_gradient, *erase_gradient, *diagonal;
        number *query_gradient, *row_gradient, *column_gradient, *end_gradient, *decay_gradient, *tail;
        number* moved;  // keys or queries decayed to the border of a block, and keys behind them

        REGARD_INLINE Memory(const ScanArguments& given, ScratchLayout& layout) : chunk(given, layout) {
            const int64_t keys = scan_chunk * chunk.key_width, values = scan_chunk * chunk.value_width;
            const int64_t square = scan_chunk * tile, state = chunk.key_width * chunk.value_width;
            output_gradient = layout.template take<number>(values);
            update = given.beta ? layout.template take<number>(values) : chunk.value;
            scaled_residual_gradient = given.beta ? layout.template take<number>(values) : nullptr;
            update_columns = layout.template take<number>(chunk.value_width * tile);
            state_columns = layout.template take<number>(state);
            state_gradient_columns = layout.template take<number>(state);
            pairs_gradient = layout.template take<number>(square);
            erase_gradient = given.beta ? layout.template take<number>(square) : nullptr;
            diagonal = layout.template take<number>(scan_chunk);
            query_gradient = layout.template take<number>(keys);
            row_gradient = given.beta ? layout.template take<number>(keys) : nullptr;
            column_gradient = layout.template take<number>(keys);
            end_gradient = layout.template take<number>(keys);
            decay_gradient = given.log_decay ? layout.template take<number>(keys) : nullptr;
            tail = given.log_decay ? layout.template take<number>(chunk.key_width) : nullptr;
            moved = given.by_channel() ? layout.template take<number>(2 * keys) : nullptr;
        }
    };

    static size_t saved_bytes(const ScanArguments& given, bool all) {
        return bytes_of_parts([&](ScratchLayout& layout) { Saved(given, all, layout); });
    }
    static size_t scratch(const ScanArguments& given) {
        return bytes_of_parts([&](ScratchLayout& layout) { Memory(given, layout); });
    }

    // ---- the states, from the first chunk to the last ----

    static void states(const ScanArguments& given, int64_t batch, int64_t head, int64_t first, int64_t stop, bool all,
                       char* saved, char* scratch) {
        ScratchLayout saved_layout = {saved}, layout = {scratch};
        const Saved s(given, all, saved_layout);
        Memory m(given, layout);
        Chunk& c = m.chunk;
        const int64_t from = first / n, end = ceil_div(stop, n), chunks = ceil_div(given.length, scan_chunk);
        if (chunks > 0) read_columns(given.state, batch, head, given.head_dim, s.state(0), m.state_columns, c, from, end);
        int64_t tokens = 0;
        for (int64_t index = 0; index < chunks; ++index) {
            const int64_t there = given.length - tokens < scan_chunk ? given.length - tokens : scan_chunk;
            c.load_tokens(given, batch, head, tokens);
            c.fetch_tokens(given, batch, head, tokens + scan_chunk);
            tokens += c.count;
            if (c.count > 0 && (given.beta || index + 1 < chunks)) {
                c.prepare(given, false);
                if (given.beta)
                    Scan<A>::solve(given, c, s.state(index), s.residual(index), m.update, from, end);
                if (index + 1 < chunks)
                    Scan<A>::advance(given, c, s.state(index), s.state(index + 1), m.update, from, end);
            }
            if (c.count < there) break;
        }
        if (first == 0) *s.tokens = tokens;
    }

    // ---- the gradients of the states, from the last chunk to the first ----

    static void reverse(const ScanArguments& given, const ScanGradients& gradients, int64_t batch, int64_t head,
                        int64_t first, int64_t stop, bool all, char* saved, char* scratch) {
        ScratchLayout saved_layout = {saved}, layout = {scratch};
        const Saved s(given, all, saved_layout);
        Memory m(given, layout);
        Chunk& c = m.chunk;
        const int64_t from = first / n, end = ceil_div(stop, n), width = c.value_width, tokens = *s.tokens;
        const int64_t chunks = ceil_div(tokens, scan_chunk);
        if (tokens == given.length) {
            read_columns(gradients.final_state, batch, head, given.head_dim, s.state_gradient(chunks), m.state_columns, c,
                         from, end);
        } else {
            for (int64_t k = 0; k < c.key_width; ++k)
                Scan<A>::fill(s.state_gradient(chunks) + k * width + from * n, (end - from) * n, (number)0);
            if (first == 0) clear_from(given, gradients, batch, head, tokens, m);
        }
        for (int64_t index = chunks - 1; index >= 0; --index) {
            const int64_t token = index * scan_chunk;
            load_chunk(given, gradients, batch, head, token, tokens, m);
            c.fetch_tokens(given, batch, head, token - scan_chunk);
            c.fetch.add(gradients.output, batch, head, token - scan_chunk);
            for (const Array* to : {&gradients.query, &gradients.key, &gradients.value})
                c.fetch.add(*to, batch, head, token);
            number *z = s.residual_gradient(index), *y = given.beta ? m.scaled_residual_gradient : z;
            const number* after = s.state_gradient(index + 1);
            number* before = s.state_gradient(index);
            Products::multiply_rows(c.pairs, 1, tile, m.output_gradient, width, c.count, Depth::from_row, nullptr, z, width,
                                    c.count, from, end, &c.fetch);
            Products::multiply_rows(c.key_end, c.key_width, 1, after, width, given.head_dim, Depth::whole, z, z, width, c.count,
                                    from, end, &c.fetch);
            if (given.beta) Products::solve_up(c.erase, c.beta, z, y, width, c.count, from, end);
            for (int64_t i = 0; i < c.count; ++i)
                write_scaled_row(y + i * width + first, stop - first, (number)1, gradients.value,
                                 gradients.value.at(batch, head, token + i, first));
            for (int64_t k = 0; k < c.key_width; ++k)
                for (int64_t v = from * n; v < end * n; v += n)
                    store(before + k * width + v, load(after + k * width + v) * broadcast(c.whole[k]));
            Products::multiply_rows(c.query_start, 1, c.key_width, m.output_gradient, width, c.count, Depth::whole, before,
                                    before, width, c.key_width, from, end, &c.fetch);
            if (given.beta)
                Products::multiply_rows(c.key_start, 1, c.key_width, y, width, c.count, Depth::whole, before, before,
                                        width, c.key_width, from, end);
            if (!all) differentiate_chunk(given, gradients, batch, head, index, s, m);
        }
        if (!gradients.state) return;
        for (int64_t k = 0; k < given.head_dim; ++k)
            write_scaled_row(s.state_gradient(0) + k * width + first, stop - first, (number)1, gradients.state,
                             gradients.state.at(batch, head, k, first));
    }

    // ---- the gradients of the tokens of one chunk ----

    static void gradients(const ScanArguments& given, const ScanGradients& gradients, int64_t batch, int64_t head,
                          int64_t index, char* saved, char* scratch) {
        ScratchLayout saved_layout = {saved}, layout = {scratch};
        const Saved s(given, true, saved_layout);
        if (index * scan_chunk >= *s.tokens) return;
        Memory m(given, layout);
        load_chunk(given, gradients, batch, head, index * scan_chunk, *s.tokens, m);
        differentiate_chunk(given, gradients, batch, head, index, s, m);
    }

private:
    // Vectors from .. end of a state, or 0 if it is absent. `whole` has room for a state.
    static REGARD_INLINE void read_columns(const Array& state, int64_t batch, int64_t head, int64_t head_dim, number* to,
                                           number* whole, const Chunk& c, int64_t from, int64_t end) {
        Scan<A>::read_matrix(state, batch, head, head_dim, state ? state.shape[3] : 0, whole, c);
        for (int64_t k = 0; k < c.key_width; ++k)
            for (int64_t v = from * n; v < end * n; v += n)
                store(to + k * c.value_width + v, load(whole + k * c.value_width + v));
    }

    // A chunk that ends with the last of `tokens`, and the gradients of its outputs.
    static REGARD_INLINE void load_chunk(const ScanArguments& given, const ScanGradients& gradients, int64_t batch,
                                         int64_t head, int64_t token, int64_t tokens, Memory& m) {
        m.chunk.load_tokens(given, batch, head, token);
        m.chunk.count = tokens - token < scan_chunk ? tokens - token : scan_chunk;
        m.chunk.prepare(given);
        read_rows(gradients.output, gradients.output.at(batch, head, token, 0), m.chunk.count,
                  ceil_div(m.chunk.count, block) * block, given.value_dim, m.output_gradient, m.chunk.value_width);
        if (m.chunk.bad_queries)
            clear_rows(m.chunk.bad_queries, m.chunk.value_width, m.output_gradient, m.chunk.value_width);
    }

    // The gradients of tokens without influence on a finite number.
    static void clear_from(const ScanArguments& given, const ScanGradients& gradients, int64_t batch, int64_t head,
                           int64_t token, Memory& m) {
        number* row = m.chunk.key_width > m.chunk.value_width ? m.query_gradient : m.output_gradient;
        Scan<A>::fill(row, padded_width<A>(given.head_dim > given.value_dim ? given.head_dim : given.value_dim), (number)0);
        for (; token < given.length; ++token)
            for (const Array* to : {&gradients.query, &gradients.key, &gradients.value, &gradients.log_decay,
                                    &gradients.beta})
                if (*to) write_scaled_row(row, to->shape[3], (number)1, *to, to->at(batch, head, token, 0));
    }

    // Everything of the loaded chunk that sums over value columns.
    static void differentiate_chunk(const ScanArguments& given, const ScanGradients& gradients, int64_t batch,
                                    int64_t head, int64_t index, const Saved& s, Memory& m) {
        const Chunk& c = m.chunk;
        const int64_t count = c.count, keys = c.key_width, values = c.value_width, token = index * scan_chunk;
        const int64_t key_vectors = keys / n, rows = ceil_div(count, n) * n;
        const bool delta = (bool)given.beta, decays = (bool)given.log_decay;
        const number *z = s.residual_gradient(index), *y = m.scaled_residual_gradient;
        if (delta) {
            const number* x = s.residual(index);
            for (int64_t i = 0; i < count; ++i) {
                Products::scale_row(x + i * values, c.beta[i], values, m.update + i * values);
                Products::scale_row(z + i * values, c.beta[i], values, m.scaled_residual_gradient + i * values);
                const number of_beta = Products::dot(x + i * values, z + i * values, values);
                write_scaled_row(&of_beta, 1, (number)1, gradients.beta, gradients.beta.at(batch, head, token + i, 0));
            }
            for (int64_t i = count; i < rows; ++i)
                memset((void*)(m.update + i * values), 0, sizeof(number) * (size_t)values);
        }
        const number *state = s.state(index), *after = s.state_gradient(index + 1);
        transpose(m.update, values, rows, given.value_dim, m.update_columns);
        transpose(state, values, keys, given.value_dim, m.state_columns, keys);
        transpose(after, values, keys, given.value_dim, m.state_gradient_columns, keys);
        Products::multiply_triangle(m.output_gradient, values, m.update_columns, given.value_dim, m.pairs_gradient, count);
        if (delta) Products::multiply_triangle(y, values, m.update_columns, given.value_dim, m.erase_gradient, count);
        for (int64_t i = 0; i < count; ++i) m.diagonal[i] = m.pairs_gradient[i * tile + i];
        // From here on the numbers of the triangles are those below the diagonal, and erase_gradient has the sign of k.
        c.decay_triangle(m.pairs_gradient, 0, (number)1);
        if (delta) c.decay_triangle(m.erase_gradient, 0, (number)-1);
        Products::multiply_rows(m.output_gradient, values, 1, m.state_columns, keys, given.value_dim, Depth::whole, nullptr,
                                m.query_gradient, keys, count, 0, key_vectors);
        Products::multiply_rows(m.update, values, 1, m.state_gradient_columns, keys, given.value_dim, Depth::whole, nullptr,
                                m.end_gradient, keys, count, 0, key_vectors);
        if (delta)
            Products::multiply_rows(y, values, 1, m.state_columns, keys, given.value_dim, Depth::whole, nullptr,
                                    m.row_gradient, keys, count, 0, key_vectors);
        decay_rows(given, m);
        if (given.by_channel())
            differentiate_pairs_by_channel(delta, m);
        else
            differentiate_pairs_by_head(delta, m);
        if (decays) differentiate_decays(given, gradients, batch, head, token, state, after, m);
        for (int64_t i = 0; i < count; ++i) {
            number *of_query = m.query_gradient + i * keys, *of_key = m.column_gradient + i * keys;
            const numbers own = broadcast(m.diagonal[i]);
            for (int64_t k = 0; k < keys; k += n) {
                store(of_query + k, load(of_query + k) + own * load(c.key + i * keys + k));
                numbers sum = load(of_key + k) + load(m.end_gradient + i * keys + k) + own * load(c.query + i * keys + k);
                if (delta) sum += load(m.row_gradient + i * keys + k);
                store(of_key + k, sum);
            }
            write_scaled_row(of_query, given.head_dim, (number)given.scale, gradients.query,
                             gradients.query.at(batch, head, token + i, 0));
            write_scaled_row(of_key, given.head_dim, (number)1, gradients.key,
                             gradients.key.at(batch, head, token + i, 0));
        }
    }

    // From the gradients of query_start, key_start and key_end to those of queries and keys.
    static REGARD_INLINE void decay_rows(const ScanArguments& given, Memory& m) {
        const Chunk& c = m.chunk;
        const int64_t keys = c.key_width;
        const bool delta = (bool)given.beta;
        for (int64_t i = 0; i < c.count; ++i) {
            number *of_query = m.query_gradient + i * keys, *of_end = m.end_gradient + i * keys;
            number* of_row = delta ? m.row_gradient + i * keys : nullptr;
            if (given.by_channel()) {
                const number *start = c.from_start + i * keys, *to_end = c.to_end + i * keys;
                Products::multiply_row(of_query, start, keys, of_query);
                Products::multiply_row(of_end, to_end, keys, of_end);
                if (delta)
                    for (int64_t k = 0; k < keys; k += n) store(of_row + k, -(load(of_row + k) * load(start + k)));
            } else {
                if (given.log_decay) {
                    Products::scale_row(of_query, c.from_start[i], keys, of_query);
                    Products::scale_row(of_end, c.to_end[i], keys, of_end);
                }
                if (delta) Products::scale_row(of_row, given.log_decay ? -c.from_start[i] : (number)-1, keys, of_row);
            }
        }
    }

    static REGARD_INLINE void differentiate_pairs_by_head(bool delta, Memory& m) {
        Chunk& c = m.chunk;
        const int64_t keys = c.key_width, count = c.count, vectors = keys / n;
        Products::multiply_rows(m.pairs_gradient, tile, 1, c.key, keys, count, Depth::to_row, m.query_gradient, m.query_gradient, keys,
                                count, 0, vectors);
        Products::multiply_rows(m.pairs_gradient, 1, tile, c.query, keys, count, Depth::from_row, nullptr,
                                m.column_gradient, keys, count, 0, vectors);
        if (!delta) return;
        Products::multiply_rows(m.erase_gradient, tile, 1, c.key, keys, count, Depth::to_row, m.row_gradient, m.row_gradient, keys,
                                count, 0, vectors);
        Products::multiply_rows(m.erase_gradient, 1, tile, c.key, keys, count, Depth::from_row, m.column_gradient, m.column_gradient,
                                keys, count, 0, vectors);
    }

    static void differentiate_pairs_by_channel(bool delta, Memory& m) {
        const Chunk& c = m.chunk;
        const int64_t keys = c.key_width, count = c.count;
        memset((void*)m.column_gradient, 0, sizeof(number) * (size_t)(count * keys));
        // Rows: `moved` are the keys of all blocks before, decayed to the start of this one.
        for (int64_t first = 0, index = 0; first < count; first += block, ++index) {
            const int64_t stop = c.block_stop(first);
            if (first > 0) {
                add_block(m.pairs_gradient + first * tile, tile, 1, m.moved, first, c.block_start, first, stop,
                          m.query_gradient, m);
                if (delta)
                    add_block(m.erase_gradient + first * tile, tile, 1, m.moved, first, c.block_start, first, stop,
                              m.row_gradient, m);
            }
            differentiate_within(first, stop, delta, m);
            const number* over = c.over_block + index * keys;
            for (int64_t j = 0; j < first; ++j) Products::multiply_row(m.moved + j * keys, over, keys, m.moved + j * keys);
            for (int64_t j = first; j < stop; ++j)
                Products::multiply_row(c.key + j * keys, c.block_end + j * keys, keys, m.moved + j * keys);
        }
        // Columns: `moved` are the queries, and the keys, of all blocks behind, as decayed from the end of this one.
        number* moved_keys = m.moved + scan_chunk * keys;
        for (int64_t index = (count - 1) / block; index >= 0; --index) {
            const int64_t first = index * block, stop = c.block_stop(first);
            if (stop < count) {
                add_block(m.pairs_gradient + stop * tile + first, 1, tile, m.moved + stop * keys, count - stop,
                          c.block_end, first, stop, m.column_gradient, m);
                if (delta)
                    add_block(m.erase_gradient + stop * tile + first, 1, tile, moved_keys + stop * keys, count - stop,
                              c.block_end, first, stop, m.column_gradient, m);
            }
            const number* over = c.over_block + index * keys;
            for (int64_t i = stop; i < count; ++i) {
                Products::multiply_row(m.moved + i * keys, over, keys, m.moved + i * keys);
                if (delta) Products::multiply_row(moved_keys + i * keys, over, keys, moved_keys + i * keys);
            }
            for (int64_t i = first; i < stop; ++i) {
                memcpy((void*)(m.moved + i * keys), c.block_query + i * keys, sizeof(number) * (size_t)keys);
                if (delta)
                    memcpy((void*)(moved_keys + i * keys), c.block_key + i * keys, sizeof(number) * (size_t)keys);
            }
        }
    }

    // Adds decays_i * sum_k left_ik right_k to rows first .. stop.
    static REGARD_INLINE void add_block(const number* left, int64_t row, int64_t step, const number* right,
                                        int64_t depth, const number* decays, int64_t first, int64_t stop, number* to,
                                        Memory& m) {
        const int64_t keys = m.chunk.key_width;
        number* sums = m.decay_gradient;  // of at least 16 rows, and not in use yet
        Products::multiply_rows(left, row, step, right, keys, depth, Depth::whole, nullptr, sums, keys, stop - first, 0,
                                keys / n);
        for (int64_t i = first; i < stop; ++i)
            for (int64_t k = 0; k < keys; k += n)
                store(to + i * keys + k,
                      A::multiply_add_vectors(load(sums + (i - first) * keys + k), load(decays + i * keys + k),
                                              load(to + i * keys + k)));
    }

    // The pairs of one block, as in ScanChunk::pair_within.
    static REGARD_INLINE void differentiate_within(int64_t first, int64_t stop, bool delta, Memory& m) {
        const Chunk& c = m.chunk;
        const int64_t keys = c.key_width;
        for (int64_t j = first; j < stop; ++j)
            for (int64_t k = 0; k < keys; k += n) {
                const numbers key = load(c.key + j * keys + k);
                numbers decay = broadcast((number)1), of_column = load(m.column_gradient + j * keys + k);
                for (int64_t i = j + 1; i < stop; ++i) {
                    const int64_t at = i * keys + k;
                    decay *= load(c.step + at);
                    const numbers pair = broadcast(m.pairs_gradient[i * tile + j]), decayed = key * decay;
                    store(m.query_gradient + at, load(m.query_gradient + at) + pair * decayed);
                    numbers row = pair * load(c.query + at);
                    if (delta) {
                        const numbers erase = broadcast(m.erase_gradient[i * tile + j]);
                        store(m.row_gradient + at, load(m.row_gradient + at) + erase * decayed);
                        row += erase * load(c.key + at);
                    }
                    of_column += row * decay;
                }
                store(m.column_gradient + j * keys + k, of_column);
            }
    }

    static void differentiate_decays(const ScanArguments& given, const ScanGradients& gradients, int64_t batch,
                                     int64_t head, int64_t token, const number* state, const number* after, Memory& m) {
        const Chunk& c = m.chunk;
        const int64_t keys = c.key_width, values = c.value_width, count = c.count;
        const bool delta = (bool)given.beta, by_channel = given.by_channel();
        for (int64_t k = 0; k < keys; ++k)
            m.tail[k] = c.whole[k] * Products::dot(state + k * values, after + k * values, values);
        for (int64_t i = 0; i < count; ++i)
            for (int64_t k = 0; k < keys; k += n) {
                const int64_t at = i * keys + k;
                const numbers key = load(c.key + at);
                numbers sum = load(c.query + at) * load(m.query_gradient + at) - key * load(m.column_gradient + at);
                if (delta) sum += key * load(m.row_gradient + at);
                if (i < count - 1) {
                    const numbers of_end = key * load(m.end_gradient + at);
                    sum -= of_end;
                    store(m.tail + k, load(m.tail + k) + of_end);
                }
                store(m.decay_gradient + at, sum);
            }
        for (int64_t i = count - 1; i >= 0; --i) {
            // Behind a decay of 0 nothing depends on it: what the sum should be exactly, it is only up to rounding.
            const bool resets = !by_channel && c.resets(i);
            numbers channels = {};
            for (int64_t k = 0; k < keys; k += n) {
                numbers sum = load(m.tail + k) + load(m.decay_gradient + i * keys + k);
                if (by_channel) sum = select(compare_greater(load(c.step + i * keys + k), numbers{}), sum, numbers{});
                if (resets) sum = numbers{};
                store(m.tail + k, sum);
                channels += sum;
            }
            const number of_head = sum_lanes<number>(channels);
            write_scaled_row(by_channel ? m.tail : &of_head, given.log_decay.shape[3], (number)1,
                             gradients.log_decay, gradients.log_decay.at(batch, head, token + i, 0));
        }
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard
