/* Attention over sequences of different lengths, in the absorbed and in the plain form. */
#pragma once
#include "elementwise.h"
#include "products.h"

/* The packed rows of the sequences of a batch. */
typedef struct {
    const int64_t *slots; /* (sequences, longest) packed row of each token of a sequence, active ones first */
    int64_t longest;
    const int64_t *lengths, *queries; /* (sequences) numbers of tokens and of queries */
    int64_t sequences;
} layout;

/* Attention of up to 12 queries over one sequence: out[i] = sum of values[j] weighted by the softmax of scale *
 * queries[i] . keys[j]. queries[i] and out[i] may be the same memory. All rows have `width` numbers, a multiple of 8 */
static void attend_rows(const row *queries, float *const *out, int rows, const row *keys, const row *values,
                        int64_t count, int64_t width, float scale) {
    const int64_t step = (count + LANES - 1) / LANES * LANES;
    float *scores = malloc(sizeof(float) * (size_t)(12 * step));
    row weight[12];
    for (int i = 0; i < rows; i += DOT_ROWS) {
        const int m = (int)smaller(DOT_ROWS, rows - i);
        row left[DOT_ROWS];
        for (int p = 0; p < m; p++) left[p] = queries[i + p];
        for (int64_t j = 0; j < count; j += DOT_COLUMNS) {
            const int n = (int)smaller(DOT_COLUMNS, count - j);
            float result[DOT_ROWS][DOT_COLUMNS];
            any_dots(m, n, left, keys + j, width, result);
            for (int p = 0; p < m; p++)
                for (int q = 0; q < n; q++) scores[(i + p) * step + j + q] = result[p][q];
        }
    }
    for (int i = 0; i < rows; i++) {
        softmax(scores + i * step, count, scale);
        weight[i] = scores + i * step;
    }
    all_sums(rows, weight, values, 0, width, count, out);
    free(scores);
}

/* The middle of the absorbed form: folded[r][h], a query of head h, becomes the sum of the states of its sequence that it
 * attends to. folded: (active, heads, width); states: (tokens, width), with row stride states_step */
static void attend_folded(float *folded, row states, int64_t states_step, const layout *batch, int64_t width,
                          int64_t heads, float scale) {
    int64_t most = 0;
    for (int64_t s = 0; s < batch->sequences; s++) most = batch->queries[s] > most ? batch->queries[s] : most;
    /* Queries of one chunk share their loads; with few sequences chunks are smaller, so that every thread has one. */
    const int64_t chunk = batch->sequences < 4 ? 6 : 12, parts = (most * heads + chunk - 1) / chunk;
#pragma omp for schedule(dynamic) collapse(2)
    for (int64_t s = 0; s < batch->sequences; s++)
        for (int64_t part = 0; part < parts; part++) {
            const int64_t first = part * chunk, rows = smaller(chunk, batch->queries[s] * heads - first);
            if (rows <= 0) continue;
            const int64_t *slot = batch->slots + s * batch->longest, length = batch->lengths[s];
            row keys[length], queries[12];
            float *out[12];
            for (int64_t j = 0; j < length; j++) keys[j] = states + slot[j] * states_step;
            for (int64_t i = 0; i < rows; i++)
                queries[i] = out[i] = folded + (slot[(first + i) / heads] * heads + (first + i) % heads) * width;
            attend_rows(queries, out, (int)rows, keys, keys, length, width, scale);
        }
}

/* folded[r][h] = query[r] of head h times the head's rows of w. query: (rows, width); folded: (rows, heads, width) */
static void fold(row query, int64_t query_step, row w, float *folded, int64_t rows, int64_t width, int64_t heads) {
    const int64_t size = width / heads, columns = 128, parts = (width + columns - 1) / columns;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < heads * parts; task++) {
        const int64_t head = task / parts, first = task % parts * columns, last = smaller(first + columns, width);
        row right[size];
        for (int64_t k = 0; k < size; k++) right[k] = w + (head * size + k) * width;
        for (int64_t r = 0; r < rows; r += SUM_ROWS) {
            const int m = (int)smaller(SUM_ROWS, rows - r);
            row left[SUM_ROWS];
            float *out[SUM_ROWS];
            for (int i = 0; i < m; i++) {
                left[i] = query + (r + i) * query_step + head * size;
                out[i] = folded + ((r + i) * heads + head) * width;
            }
            all_sums(m, left, right, first, last, size, out);
        }
    }
}

/* context[r] of head h = weighted[r][h] times the head's rows of w, plus bias. weighted: (rows, heads, width) */
static void unfold(row weighted, row w, row bias, float *context, int64_t rows, int64_t width, int64_t heads) {
    const int64_t size = width / heads, chunk = 24, parts = (rows + chunk - 1) / chunk;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < heads * parts; task++) {
        const int64_t head = task / parts, first = task % parts * chunk, last = smaller(first + chunk, rows);
        for (int64_t j = head * size; j < (head + 1) * size; j += 4) {
            row right[DOT_COLUMNS];
            for (int q = 0; q < 4; q++) right[q] = w + (j + q) * width;
            for (int64_t r = first; r < last; r += DOT_ROWS) {
                const int m = (int)smaller(DOT_ROWS, last - r);
                row left[DOT_ROWS];
                float result[DOT_ROWS][DOT_COLUMNS];
                for (int p = 0; p < m; p++) left[p] = weighted + ((r + p) * heads + head) * width;
                any_dots(m, 4, left, right, width, result);
                for (int p = 0; p < m; p++)
                    for (int q = 0; q < 4; q++) context[(r + p) * width + j + q] = result[p][q] + (bias ? bias[j + q] : 0.0f);
            }
        }
    }
}

/* The absorbed form of attention.
 *
 * query: (active, width); states: (tokens, width), with row strides query_step and states_step; key_weight,
 * value_weight: (width, width); value_bias may be null; folded: (active, heads, width), workspace; context:
 * (active, width), the output.
 */
static void attend_absorbed(row query, int64_t query_step, row states, int64_t states_step, row key_weight,
                            row value_weight, row value_bias, const layout *batch, int64_t active, int64_t width,
                            int64_t heads, float scale, float *folded, float *context) {
    fold(query, query_step, key_weight, folded, active, width, heads);
    attend_folded(folded, states, states_step, batch, width, heads, scale);
    unfold(folded, value_weight, value_bias, context, active, width, heads);
}

/* The plain form. query: (active, width); keys, values: (tokens, width); context: (active, width), the output. */
static void attend_plain(row query, row keys, row values, const layout *batch, int64_t width, int64_t heads, float scale,
                         float *context) {
    const int64_t size = width / heads;
#pragma omp for schedule(dynamic) collapse(2)
    for (int64_t s = 0; s < batch->sequences; s++)
        for (int64_t head = 0; head < heads; head++) {
            const int64_t *slot = batch->slots + s * batch->longest, length = batch->lengths[s];
            row key[length], value[length];
            for (int64_t j = 0; j < length; j++) {
                key[j] = keys + slot[j] * width + head * size;
                value[j] = values + slot[j] * width + head * size;
            }
            for (int64_t first = 0; first < batch->queries[s]; first += 12) {
                const int64_t rows = smaller(12, batch->queries[s] - first);
                row queries[12];
                float *out[12];
                for (int64_t i = 0; i < rows; i++) {
                    queries[i] = query + slot[first + i] * width + head * size;
                    out[i] = context + slot[first + i] * width + head * size;
                }
                attend_rows(queries, out, (int)rows, key, value, length, size, scale);
            }
        }
}

/* Attention of a layer in either form. states: (tokens, width), of which the first `active` are queries; weights: weight and
 * bias of queries, the weight of keys (whose bias the softmax cancels), weight and bias of values; query, folded: workspace, the
 * latter for (active, heads, width) numbers or for keys and values; context: (active, width), the output. */
static void attend_layer(row states, const row *weights, const layout *batch, int64_t absorbed, int64_t active, int64_t tokens,
                         int64_t width, int64_t heads, float scale, float *query, float *folded, float *context) {
    product(states, width, weights[0], weights[1], query, active, width, width);
    if (absorbed) {
        attend_absorbed(query, width, states, width, weights[2], weights[3], weights[4], batch, active, width, heads, scale,
                        folded, context);
    } else {
        float *keys = folded, *values = keys + tokens * width;
        product(states, width, weights[2], NULL, keys, tokens, width, width);
        product(states, width, weights[3], weights[4], values, tokens, width, width);
        attend_plain(query, keys, values, batch, width, heads, scale, context);
    }
}
