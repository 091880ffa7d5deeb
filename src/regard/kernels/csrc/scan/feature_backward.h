// Gradients of attention by features (feature_attention.h). Features are computed again.
//
// Where every query sees all keys, with g_i the gradient of o_i, t_i = phi(q_i) . z and D_i = g_i . o_i,
//
//     d phi(q_i) = (S g_i - D_i z) / t_i        dS = sum_i phi(q_i) g_i^T / t_i        dz = -sum_i phi(q_i) D_i / t_i
//     dv_j = w_j dS^T phi(k_j)                  w_j phi(k_j) has the gradient u_j = dS v_j + dz
//
// and d ln w_j = w_j phi(k_j) . u_j. Factors that cancel in the quotient have no gradients: the largest product of a
// query or a key, and r.
//
// Causally, the sums before each chunk are computed first. From the last chunk to the first, the gradients of S and z are
// those of the queries behind a chunk. In a chunk, m_ij = exp(ln w_j - r_i) and t_i is the whole denominator,
//
//     a_ij = m_ij (g_i . v_j - D_i) / t_i        d phi(q_i) = exp(r_0 - r_i) (S g_i - D_i z) / t_i + sum_j a_ij phi(k_j)
//
// and a_ij phi(q_i) and m_ij s_ij g_i / t_i are added to the gradients of phi(k_j) and v_j.
#pragma once

#include "scan/feature_attention.h"

namespace regard {
namespace REGARD_ISA_NAMESPACE {

template <class A>
struct FeatureBackward {
    typedef typename A::number number;
    typedef vec<number> numbers;
    typedef ScanProducts<A> Products;
    typedef typename Products::Depth Depth;
    typedef FeatureAttention<A> Forward;
    typedef typename Forward::Memory Memory;
    typedef typename Forward::Projection Projection;
    typedef FeatureSums<A> KeySums;
    static constexpr int64_t n = lanes<number>;

    static void read_sums(const FeatureArguments& given, const FeatureResults& results, int64_t batch, int64_t sum_head,
                          char* into) {
        const FeatureWidths<A> width(given);
        KeySums sums(given, ScratchLayout{into});
        Forward::clear_sums(given, sums);
        const number* from = (const number*)results.sums.data + results.sums.at(batch, sum_head, 0, 0);
        for (int64_t f = 0; f < given.features; ++f) {
            const number* row = from + f * (given.value_dim + 1);
            memcpy((void*)(sums.values + f * width.value), row, sizeof(number) * (size_t)given.value_dim);
            sums.totals[f] = row[given.value_dim];
        }
        sums.state->log_scale = ((const number*)results.log_scale.data)[results.log_scale.at(0, 0, batch, sum_head)];
        const bool* flags = (const bool*)results.flags.data + results.flags.at(0, batch, sum_head, 0);
        sums.state->has_nonfinite = flags[0];
        sums.state->has_visible = flags[1];
        write_columns(given, sums);
    }

    static void join_gradients(const FeatureArguments& given, int64_t ranges, char* const* parts) {
        const FeatureWidths<A> width(given);
        KeySums sums(given, ScratchLayout{parts[0]});
        for (int64_t range = 1; range < ranges; ++range) {
            const KeySums more(given, ScratchLayout{parts[range]});
            Forward::add_scaled(more.values, 1, sums.values, 1, width.feature * width.value);
            Forward::add_scaled(more.totals, 1, sums.totals, 1, width.feature);
        }
        write_columns(given, sums);
    }

    static void query_gradients(const FeatureArguments& given, const FeatureGradients& gradients, int64_t batch,
                                int64_t head, int64_t first, int64_t stop, const char* packed, const char* of_keys,
                                char* gradient_of_keys, char* scratch) {
        const Projection projection(given, ScratchLayout{(char*)packed});
        const KeySums sums(given, ScratchLayout{(char*)of_keys});
        KeySums of_sums(given, ScratchLayout{gradient_of_keys});
        ScratchLayout layout{scratch};
        Memory m(given, layout);
        const bool defined = sums.state->has_visible && !sums.state->has_nonfinite;
        for (int64_t token = first; token < stop; token += feature_chunk) {
            const int64_t count = Forward::count_from(token, stop), next = token + feature_chunk;
            uint64_t undefined = Forward::load_queries(given, m, batch, head, token, count);
            if (!defined) undefined = ~(uint64_t)0;
            read_rows(gradients.output, gradients.output.at(batch, head, token, 0), count, count, given.value_dim,
                      m.value, m.width.value);
            clear_rows(undefined & Forward::first_bits(count), m.width.value, m.value, m.width.value);
            m.fetch.start(Forward::count_or_zero(next, stop));
            m.fetch.add(given.query, batch, head, next);
            m.fetch.add(gradients.output, batch, head, next);
            m.fetch.add(gradients.query, batch, head, token);
            Forward::map_queries(given, projection, m, count);
            multiply_values(given, m, m.value, sums, count);
            for (int64_t i = 0; i < count; ++i) {
                const number* features = m.query_features + i * m.width.feature;
                number* row = m.gradients + i * m.width.feature;
                const number times =
                    undefined >> i & 1 ? 0 : 1 / Products::dot(features, sums.totals, m.width.feature);
                const number delta = times * Products::dot(features, row, m.width.feature);
                m.weight[i] = -times * delta;
                add_scaled(sums.totals, m.weight[i], row, times, m.width.feature);
                Forward::scale_row(m.value + i * m.width.value, times, m.width.value);
            }
            Forward::add_products(m, m.query_features, m.value, of_sums.values, given.features, count);
            Forward::add_rows(m, m.query_features, m.weight, of_sums.totals, count);
            differentiate(given, m.query_products, m.query_features, m.query_factor, false, count, m.gradients);
            unproject(given, projection, m, m.query, false, count);
            write_rows(given.head_dim, gradients.query, batch, head, token, count, m.query, m.width.token, undefined);
        }
    }

    static void key_gradients(const FeatureArguments& given, const FeatureGradients& gradients, int64_t batch,
                              int64_t key_head, int64_t first, int64_t stop, const char* packed, char* const* of_keys,
                              char* const* gradients_of_keys, char* scratch) {
        const Projection projection(given, ScratchLayout{(char*)packed});
        ScratchLayout layout{scratch};
        Memory m(given, layout);
        number *of_key = m.query, *of_value = m.output;
        const int64_t copies = given.sum_heads() / given.key_heads;
        for (int64_t token = first; token < stop; token += feature_chunk) {
            const int64_t count = Forward::count_from(token, stop), next = token + feature_chunk;
            uint64_t excluded = ~(uint64_t)0;
            for (int64_t copy = 0; copy < copies; ++copy) {
                const KeySums sums(given, ScratchLayout{of_keys[copy]});
                const KeySums of_sums(given, ScratchLayout{gradients_of_keys[copy]});
                const auto bits =
                    Forward::load_keys(given, m, batch, key_head, key_head * copies + copy, token, count);
                m.fetch.start(Forward::count_or_zero(next, stop));
                m.fetch.add(given.key, batch, key_head, next);
                m.fetch.add(given.value, batch, key_head, next);
                m.fetch.add(gradients.key, batch, key_head, token);
                m.fetch.add(gradients.value, batch, key_head, token);
                excluded &= bits.excluded;
                Forward::map_keys(given, projection, m, count);
                Forward::weigh_keys(given, m, sums.state->log_scale, bits.excluded, count);
                multiply_values(given, m, m.value, of_sums, count);
                for (int64_t j = 0; j < count; ++j) {
                    const number* features = m.key_features + j * m.width.feature;
                    number* row = m.gradients + j * m.width.feature;
                    add_scaled(of_sums.totals, m.weight[j], row, m.weight[j], m.width.feature);
                    m.log_weight[j] = Products::dot(features, row, m.width.feature);  // now its gradient
                }
                differentiate(given, m.key_products, m.key_features, m.key_factor, true, count, m.gradients);
                for (int64_t j = 0; j < count; ++j)
                    Forward::scale_row(m.key_features + j * m.width.feature, m.weight[j], m.width.feature);
                Forward::multiply_deep(m.key_features, m.width.feature, of_sums.values, m.width.value, given.features,
                                       of_value, count, &m.fetch, copy > 0);
                unproject(given, projection, m, of_key, copy > 0, count);
                add_norms(given, m, of_key, count);
            }
            write_rows(given.head_dim, gradients.key, batch, key_head, token, count, of_key, m.width.token, excluded);
            write_rows(given.value_dim, gradients.value, batch, key_head, token, count, of_value, m.width.value, excluded);
        }
    }

    // The sums before each chunk of a head, and one set of columns.
    static size_t saved_bytes(const FeatureArguments& given) {
        const size_t columns = bytes_of_parts([&](ScratchLayout& layout) { take_columns(given, layout); });
        const size_t chunk = bytes_of_parts([&](ScratchLayout& layout) { KeySums(given, layout, nullptr); });
        return columns + chunk * (size_t)ceil_div(given.keys, feature_chunk);
    }

    static void causal_gradients(const FeatureArguments& given, const FeatureGradients& gradients, int64_t batch,
                                 int64_t head, const char* packed, char* saved, char* gradient_of_keys, char* scratch) {
        const Projection projection(given, ScratchLayout{(char*)packed});
        KeySums sums(given, ScratchLayout{gradient_of_keys});
        ScratchLayout layout{scratch}, states{saved};
        Memory m(given, layout);
        number* columns = take_columns(given, states);
        const size_t first_state = states.used_bytes;
        save_states(given, projection, m, batch, head, sums, states, columns);
        const size_t bytes = ((states.used_bytes - first_state) / (size_t)ceil_div(given.keys, feature_chunk));
        number after = sums.state->log_scale;
        KeySums& of_sums = sums;  // the last sums are not needed
        Forward::clear_sums(given, of_sums);
        for (int64_t token = (given.keys - 1) / feature_chunk * feature_chunk; token >= 0; token -= feature_chunk) {
            ScratchLayout here{saved, first_state + bytes * (size_t)(token / feature_chunk)};
            KeySums before(given, here, columns);
            const int64_t count = Forward::count_from(token, given.keys), next = token - feature_chunk;
            m.fetch.start(next < 0 ? 0 : feature_chunk);
            if (next >= 0)
                for (const Array* rows : {&given.query, &given.key, &given.value, &gradients.output})
                    m.fetch.add(*rows, batch, head, next);
            chunk_gradients(given, gradients, projection, m, batch, head, token, count, before, of_sums, after);
            after = before.state->log_scale;
        }
    }

private:
    static REGARD_INLINE number* take_columns(const FeatureArguments& given, ScratchLayout& layout) {
        const FeatureWidths<A> width(given);
        return layout.template take<number>(width.value * width.feature);
    }

    static __attribute__((noinline)) void save_states(const FeatureArguments& given, const Projection& projection,
                                                      Memory& m, int64_t batch, int64_t head, KeySums& sums,
                                                      ScratchLayout& states, number* columns) {
        Forward::clear_sums(given, sums);
        for (int64_t token = 0; token < given.keys; token += feature_chunk) {
            const KeySums saved(given, states, columns);
            memcpy((void*)saved.values, sums.values, sizeof(number) * (size_t)(m.width.feature * m.width.value));
            memcpy((void*)saved.totals, sums.totals, sizeof(number) * (size_t)m.width.feature);
            *saved.state = *sums.state;
            const int64_t count = Forward::count_from(token, given.keys), next = token + feature_chunk;
            const auto bits = Forward::load_keys(given, m, batch, head, head, token, count);
            m.fetch.start(Forward::count_or_zero(next, given.keys));
            m.fetch.add(given.key, batch, head, next);
            m.fetch.add(given.value, batch, head, next);
            Forward::map_keys(given, projection, m, count);
            Forward::add_chunk(given, m, sums, bits, count);
        }
    }

    // The gradients of a chunk, from its sums `before` and the gradients of those after it, which become those of `before`.
    static __attribute__((noinline)) void chunk_gradients(const FeatureArguments& given,
                                                          const FeatureGradients& gradients, const Projection& projection,
                                                          Memory& m, int64_t batch, int64_t head, int64_t token,
                                                          int64_t count, KeySums& before, KeySums& of_sums,
                                                          number log_scale_after) {
        const int64_t features = m.width.feature, values = m.width.value;
        uint64_t undefined = Forward::load_queries(given, m, batch, head, token, count);
        const auto bits = Forward::load_keys(given, m, batch, head, head, token, count);
        undefined |= before.state->has_nonfinite ? ~(uint64_t)0 : Forward::from_lowest(bits.nonfinite);
        undefined |= before.state->has_visible ? 0 : ~Forward::from_lowest(bits.visible);
        read_rows(gradients.output, gradients.output.at(batch, head, token, 0), count, count, given.value_dim,
                  m.of_output, values);
        clear_rows(undefined & Forward::first_bits(count), values, m.of_output, values);
        Forward::map_queries(given, projection, m, count);
        Forward::map_keys(given, projection, m, count);
        Forward::pair(given, m, count);
        Forward::weigh_pairs(given, m, before.state->log_scale, bits.excluded, count, m.pairs);
        write_columns(given, before);
        multiply_values(given, m, m.of_output, before, count);
        pair_values(given, m, count);
        for (int64_t i = 0; i < count; ++i) {
            number *row = m.gradients + i * features, *of_pairs = m.of_pairs + i * tile;
            const number inverse = undefined >> i & 1 ? 0 : 1 / Forward::total_of(m, before, i);
            number delta = m.decay[i] * Products::dot(m.query_features + i * features, row, features);
            delta = inverse * (delta + Products::dot(m.pairs + i * tile, of_pairs, ceil_div(i + 1, n) * n));
            m.of_total[i] = -inverse * delta;
            add_scaled(before.totals, m.of_total[i] * m.decay[i], row, inverse * m.decay[i], features);
            Forward::scale_row(m.of_output + i * values, inverse, values);
            for (int64_t j = 0; j <= i; j += n)
                store(of_pairs + j, (load(of_pairs + j) - broadcast(delta)) * broadcast(inverse));
        }
        Forward::weigh_pairs(given, m, before.state->log_scale, bits.excluded, count, m.of_pairs);
        Products::multiply_rows(m.of_pairs, tile, 1, m.key_features, features, count, Depth::to_row, m.gradients,
                                m.gradients, features, count, 0, features / n, &m.fetch);
        differentiate(given, m.query_products, m.query_features, m.query_factor, false, count, m.gradients);
        unproject(given, projection, m, m.query, false, count);
        write_rows(given.head_dim, gradients.query, batch, head, token, count, m.query, m.width.token, undefined);
        write_columns(given, of_sums);
        chunk_key_gradients(given, gradients, projection, m, batch, head, token, count, bits.excluded, of_sums, log_scale_after);
        const number keep = Forward::decay_of(before.state->log_scale - log_scale_after);
        if (keep != 1) {
            Forward::scale_row(of_sums.values, keep, features * values);
            Forward::scale_row(of_sums.totals, keep, features);
        }
        for (int64_t i = 0; i < count; ++i)
            if (m.decay[i] != 1) Forward::scale_row(m.query_features + i * features, m.decay[i], features);
        Forward::add_products(m, m.query_features, m.of_output, of_sums.values, given.features, count);
        Forward::add_rows(m, m.query_features, m.of_total, of_sums.totals, count);
    }

    static REGARD_INLINE void write_columns(const FeatureArguments& given, KeySums& sums) {
        const FeatureWidths<A> width(given);
        transpose(sums.values, width.value, width.feature, given.value_dim, sums.columns, width.feature);
    }

    // The gradients of the keys and values of a chunk, from `of_sums`, `of_pairs` and the queries.
    static __attribute__((noinline)) void chunk_key_gradients(const FeatureArguments& given,
                                                              const FeatureGradients& gradients,
                                                              const Projection& projection, Memory& m, int64_t batch,
                                                              int64_t head, int64_t token, int64_t count,
                                                              uint64_t excluded, const KeySums& of_sums,
                                                              number log_scale_after) {
        const int64_t features = m.width.feature, values = m.width.value;
        Forward::weigh_keys(given, m, log_scale_after, excluded, count);
        multiply_values(given, m, m.value, of_sums, count);
        for (int64_t j = 0; j < count; ++j)
            add_scaled(of_sums.totals, m.weight[j], m.gradients + j * features, m.weight[j], features);
        Products::multiply_rows(m.of_pairs, 1, tile, m.query_features, features, count, Depth::from_row, m.gradients,
                                m.gradients, features, count, 0, features / n, &m.fetch);
        for (int64_t j = 0; j < count; ++j)  // now the gradient of the logarithm
            m.log_weight[j] = Products::dot(m.key_features + j * features, m.gradients + j * features, features);
        differentiate(given, m.key_products, m.key_features, m.key_factor, true, count, m.gradients);
        for (int64_t j = 0; j < count; ++j) Forward::scale_row(m.key_features + j * features, m.weight[j], features);
        Forward::multiply_deep(m.key_features, features, of_sums.values, values, given.features, m.output, count,
                               &m.fetch);
        Products::multiply_rows(m.pairs, 1, tile, m.of_output, values, count, Depth::from_row, m.output, m.output, values,
                                count, 0, values / n, &m.fetch);
        unproject(given, projection, m, m.query, false, count);
        add_norms(given, m, m.query, count);
        write_rows(given.head_dim, gradients.key, batch, head, token, count, m.query, m.width.token, excluded);
        write_rows(given.value_dim, gradients.value, batch, head, token, count, m.output, values, excluded);
    }

    // The gradients of the keys' norms, from those of the logarithms of their weights.
    static REGARD_INLINE void add_norms(const FeatureArguments& given, const Memory& m, number* of_key, int64_t count) {
        if (given.map != FeatureMap::exponential) return;
        for (int64_t j = 0; j < count; ++j)
            Products::add_scaled_row(m.key + j * m.width.token, (number)(-2 * given.norm_factor) * m.log_weight[j],
                                     m.width.token, of_key + j * m.width.token);
    }

    // of_pairs_ij = g_i . v_j for j up to i, and some more.
    static REGARD_INLINE void pair_values(const FeatureArguments& given, Memory& m, int64_t count) {
        for (int64_t j = count; j < ceil_div(count, n) * n; ++j)
            memset((void*)(m.value + j * m.width.value), 0, sizeof(number) * (size_t)m.width.value);
        transpose(m.value, m.width.value, ceil_div(count, n) * n, given.value_dim, m.value_columns);
        Products::multiply_triangle(m.of_output, m.width.value, m.value_columns, given.value_dim, m.of_pairs, count);
    }

    // gradients_i = S v_i, for rows of values.
    static REGARD_INLINE void multiply_values(const FeatureArguments& given, Memory& m, const number* rows,
                                              const KeySums& sums, int64_t count) {
        Products::multiply_rows(rows, m.width.value, 1, sums.columns, m.width.feature, given.value_dim, Depth::whole,
                                nullptr, m.gradients, m.width.feature, count, 0, m.width.feature / n, &m.fetch);
    }
    // to = to * keep + from * take
    static REGARD_INLINE void add_scaled(const number* from, number take, number* to, number keep, int64_t count) {
        Forward::add_scaled(from, take, to, keep, count);
    }

    // Multiplies gradients of features by the derivatives of the features, so that they are those of the products.
    static __attribute__((noinline)) void differentiate(const FeatureArguments& given, const number* products,
                                                        const number* features, const number* of_row, bool of_keys,
                                                        int64_t count, number* gradients) {
        const int64_t width = FeatureWidths<A>(given).feature;
        const numbers zero = {}, floor = broadcast(of_keys ? (number)given.floor : (number)0);
        for (int64_t i = 0; i < count; ++i) {
            const numbers factor = broadcast(of_row[i]);
            for (int64_t f = i * width; f < (i + 1) * width; f += n) {
                const numbers phi = load(features + f);
                numbers slope;
                if (given.map == FeatureMap::exponential) {
                    slope = maximum(phi - floor, zero);
                } else {
                    const numbers below = given.map == FeatureMap::relu ? zero
                                          : select(compare_greater(phi, floor), phi, zero);
                    slope = select(compare_greater(load(products + f), zero), factor, below);
                }
                store(gradients + f, load(gradients + f) * slope);
            }
        }
    }

    // Gradients of tokens from those of their products, which are added if `add`.
    static REGARD_INLINE void unproject(const FeatureArguments& given, const Projection& projection, Memory& m,
                                        number* tokens, bool add, int64_t count) {
        if (given.projection)
            return Forward::multiply_deep(m.gradients, m.width.feature, projection.rows, m.width.token, given.features,
                                          tokens, count, &m.fetch, add);
        if (add) return Forward::add_scaled(m.gradients, 1, tokens, 1, count * m.width.token);
        memcpy((void*)tokens, m.gradients, sizeof(number) * (size_t)(count * m.width.token));
    }

    static REGARD_INLINE void write_rows(int64_t size, const Array& to, int64_t batch, int64_t head, int64_t token,
                                         int64_t count, number* rows, int64_t width, uint64_t zero) {
        clear_rows(zero & Forward::first_bits(count), width, rows, width);
        for (int64_t i = 0; i < count; ++i)
            write_scaled_row(rows + i * width, size, (number)1, to, to.at(batch, head, token + i, 0));
    }
};

}  // namespace REGARD_ISA_NAMESPACE
}  // namespace regard
