/* Layers of few rows, GELU, and absorbed attention over sequences of different lengths, for x86-64 with AVX2 and FMA.
 *
 * All matrices are row-major float32; widths are multiples of 8, those of heads of 4; products are in products.h. Threads
 * are those of the OpenMP runtime that the process has already loaded; static functions with an `omp for` are called by
 * all threads of a parallel region.
 */
#include "products.h"

void hashee_linear(row x, int64_t x_step, row w, row bias, float *y, int64_t rows, int64_t width, int64_t features,
                   int threads) {
#pragma omp parallel num_threads(threads)
    product(x, x_step, w, bias, y, rows, width, features);
}

/* folded[r][h] = query[r] of head h times the head's rows of w. query: (rows, width); folded: (rows, heads, width) */
static void fold(row query, int64_t query_step, row w, float *folded, int64_t rows, int64_t width, int64_t heads) {
    const int64_t size = width / heads, columns = 128, parts = (width + columns - 1) / columns;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < heads * parts; task++) {
        const int64_t head = task / parts, first = task % parts * columns, last = smaller(first + columns, width);
        row right[size];
        for (int64_t k = 0; k < size; k++) right[k] = w + (head * size + k) * width;
        for (int64_t column = first; column < last; column += 16)
            for (int64_t r = 0; r < rows; r += 6) {
                const int m = (int)smaller(6, rows - r);
                row left[6];
                float *out[6];
                for (int i = 0; i < m; i++) {
                    left[i] = query + (r + i) * query_step + head * size;
                    out[i] = folded + ((r + i) * heads + head) * width;
                }
                any_sums(m, last - column > 8, left, right, column, size, out);
            }
    }
}

/* e^x for x <= 0, to about one unit in the last place: 2^n times a polynomial in the remainder */
INLINE __m256 exponential(__m256 x) {
    x = _mm256_max_ps(_mm256_set1_ps(-87.0f), x); /* in this order NaN is propagated */
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    const float factors[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    __m256 sum = _mm256_set1_ps(1.9875691500e-4f);
    for (int i = 0; i < 5; i++) sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(factors[i]));
    sum = _mm256_add_ps(_mm256_fmadd_ps(sum, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(sum, _mm256_castsi256_ps(power));
}

/* x (1 + erf(x / sqrt 2)) / 2, with 1 - erf = e^(-x^2 / 2) times a polynomial (Abramowitz and Stegun 7.1.26) */
INLINE __m256 gelu(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    const __m256 t = _mm256_div_ps(one, _mm256_fmadd_ps(size, _mm256_set1_ps(0.3275911f * 0.70710678f), one));
    const float factors[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
    __m256 sum = _mm256_set1_ps(1.061405429f);
    for (int i = 0; i < 4; i++) sum = _mm256_fmadd_ps(sum, t, _mm256_set1_ps(factors[i]));
    const __m256 power = exponential(_mm256_mul_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(-0.5f)));
    const __m256 tail = _mm256_mul_ps(_mm256_mul_ps(sum, t), _mm256_mul_ps(power, _mm256_set1_ps(0.5f)));
    return _mm256_mul_ps(x, _mm256_blendv_ps(_mm256_sub_ps(one, tail), tail, x)); /* by the sign of x */
}

/* x = gelu(x + bias). x: (rows, width); bias: (width), may be null */
static void activate(float *x, row bias, int64_t rows, int64_t width) {
    const __m256 none = _mm256_setzero_ps();
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < width; k += 8) {
            float *out = x + r * width + k;
            _mm256_storeu_ps(out, gelu(_mm256_add_ps(_mm256_loadu_ps(out), bias ? _mm256_loadu_ps(bias + k) : none)));
        }
}

void hashee_gelu(float *x, row bias, int64_t rows, int64_t width, int threads) {
#pragma omp parallel num_threads(threads)
    activate(x, bias, rows, width);
}

/* y = layer norm of y + bias + residual. y: (rows, width); residual: the same, with row stride step; bias, gain, shift:
 * (width), of which the bias may be null */
static void add_and_norm(float *y, row bias, row residual, int64_t step, row gain, row shift, float epsilon,
                         int64_t rows, int64_t width) {
    const __m256 none = _mm256_setzero_ps();
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *out = y + r * width;
        __m256 sum = _mm256_setzero_ps(), squares = _mm256_setzero_ps();
        for (int64_t k = 0; k < width; k += 8) {
            __m256 x = _mm256_add_ps(_mm256_loadu_ps(out + k), bias ? _mm256_loadu_ps(bias + k) : none);
            x = _mm256_add_ps(x, _mm256_loadu_ps(residual + r * step + k));
            _mm256_storeu_ps(out + k, x);
            sum = _mm256_add_ps(sum, x);
        }
        const __m256 mean = _mm256_set1_ps(total(sum) / (float)width);
        for (int64_t k = 0; k < width; k += 8) {
            const __m256 x = _mm256_sub_ps(_mm256_loadu_ps(out + k), mean);
            squares = _mm256_fmadd_ps(x, x, squares);
        }
        const __m256 deviation = _mm256_sqrt_ps(_mm256_set1_ps(total(squares) / (float)width + epsilon));
        for (int64_t k = 0; k < width; k += 8) {
            const __m256 x = _mm256_div_ps(_mm256_sub_ps(_mm256_loadu_ps(out + k), mean), deviation);
            _mm256_storeu_ps(out + k, _mm256_fmadd_ps(x, _mm256_loadu_ps(gain + k), _mm256_loadu_ps(shift + k)));
        }
    }
}

void hashee_add_and_norm(float *y, row bias, row residual, int64_t step, row gain, row shift, float epsilon,
                         int64_t rows, int64_t width, int threads) {
#pragma omp parallel num_threads(threads)
    add_and_norm(y, bias, residual, step, gain, shift, epsilon, rows, width);
}

/* The post-attention part of a post-norm layer: output projection, norm, feed-forward, norm.
 *
 * context, states: (rows, width), with row strides context_step and states_step; weights: weight and bias of the
 * output projection, gain and shift of its norm, weight and bias of the two products of the feed-forward, gain and
 * shift of its norm; epsilons: of the two norms; attended: (rows, width) and expanded: (rows, inner), workspace;
 * updated: (rows, width), the output, which may be the states.
 */
static void post_attention(row context, int64_t context_step, row states, int64_t states_step, const row *weights,
                           const float *epsilons, float *attended, float *expanded, float *updated, int64_t rows,
                           int64_t width, int64_t inner) {
    product(context, context_step, weights[0], weights[1], attended, rows, width, width);
    add_and_norm(attended, NULL, states, states_step, weights[2], weights[3], epsilons[0], rows, width);
    product(attended, width, weights[4], weights[5], expanded, rows, width, inner);
    activate(expanded, NULL, rows, inner);
    product(expanded, inner, weights[6], weights[7], updated, rows, inner, width);
    add_and_norm(updated, NULL, attended, width, weights[8], weights[9], epsilons[1], rows, width);
}

void hashee_post_attention(row context, int64_t context_step, row states, int64_t states_step, const row *weights,
                           const float *epsilons, float *attended, float *expanded, float *updated, int64_t rows,
                           int64_t width, int64_t inner, int threads) {
#pragma omp parallel num_threads(threads)
    post_attention(context, context_step, states, states_step, weights, epsilons, attended, expanded, updated, rows,
                   width, inner);
}

/* scores: `count` numbers, in memory for a multiple of 8 */
INLINE void softmax(float *scores, int64_t count, float scale) {
    float most = scores[0], sum = 0.0f;
    for (int64_t j = 1; j < count; j++) most = scores[j] > most ? scores[j] : most;
    for (int64_t j = count; j % 8; j++) scores[j] = most;
    for (int64_t j = 0; j < count; j += 8) {
        const __m256 distance = _mm256_sub_ps(_mm256_loadu_ps(scores + j), _mm256_set1_ps(most));
        _mm256_storeu_ps(scores + j, exponential(_mm256_mul_ps(distance, _mm256_set1_ps(scale))));
    }
    for (int64_t j = 0; j < count; j++) sum += scores[j];
    const float share = 1.0f / sum;
    for (int64_t j = 0; j < count; j++) scores[j] *= share;
}

/* Attention of up to 12 queries over one sequence: out[i] = sum of values[j] weighted by the softmax of scale *
 * queries[i] . keys[j]. queries[i] and out[i] may be the same memory. All rows have `width` numbers, a multiple of 8 */
static void attend_rows(const row *queries, float *const *out, int rows, const row *keys, const row *values,
                        int64_t count, int64_t width, float scale) {
    const int64_t step = (count + 7) / 8 * 8;
    float *scores = malloc(sizeof(float) * (size_t)(12 * step));
    row weight[12];
    for (int i = 0; i < rows; i += 3) {
        const int m = (int)smaller(3, rows - i);
        row left[TILE];
        for (int p = 0; p < m; p++) left[p] = queries[i + p];
        for (int64_t j = 0; j < count; j += 4) {
            const int n = (int)smaller(4, count - j);
            float result[TILE][TILE];
            any_dots(m, n, left, keys + j, width, result);
            for (int p = 0; p < m; p++)
                for (int q = 0; q < n; q++) scores[(i + p) * step + j + q] = result[p][q];
        }
    }
    for (int i = 0; i < rows; i++) {
        softmax(scores + i * step, count, scale);
        weight[i] = scores + i * step;
    }
    for (int64_t column = 0; column < width; column += 16)
        for (int i = 0; i < rows; i += 6)
            any_sums((int)smaller(6, rows - i), width - column > 8, weight + i, values, column, count, out + i);
    free(scores);
}

/* context[r] of head h = weighted[r][h] times the head's rows of w, plus bias. weighted: (rows, heads, width) */
static void unfold(row weighted, row w, row bias, float *context, int64_t rows, int64_t width, int64_t heads) {
    const int64_t size = width / heads, chunk = 24, parts = (rows + chunk - 1) / chunk;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < heads * parts; task++) {
        const int64_t head = task / parts, first = task % parts * chunk, last = smaller(first + chunk, rows);
        for (int64_t j = head * size; j < (head + 1) * size; j += 4) {
            row right[TILE];
            for (int q = 0; q < 4; q++) right[q] = w + (j + q) * width;
            for (int64_t r = first; r < last; r += 3) {
                const int m = (int)smaller(3, last - r);
                row left[TILE];
                float result[TILE][TILE];
                for (int p = 0; p < m; p++) left[p] = weighted + ((r + p) * heads + head) * width;
                any_dots(m, 4, left, right, width, result);
                for (int p = 0; p < m; p++)
                    for (int q = 0; q < 4; q++) context[(r + p) * width + j + q] = result[p][q] + (bias ? bias[j + q] : 0.0f);
            }
        }
    }
}

/* The packed rows of the sequences of a batch. */
typedef struct {
    const int64_t *slots; /* (sequences, longest) packed row of each token of a sequence, active ones first */
    int64_t longest;
    const int64_t *lengths, *queries; /* (sequences) numbers of tokens and of queries */
    int64_t sequences;
} layout;

/* The absorbed form of attention.
 *
 * query: (active, width); states: (tokens, width), with row strides query_step and states_step; key_weight,
 * value_weight: (width, width); value_bias may be null; folded: (active, heads, width), workspace; context:
 * (active, width), the output.
 */
static void attend_absorbed(row query, int64_t query_step, row states, int64_t states_step, row key_weight,
                            row value_weight, row value_bias, const layout *batch, int64_t active, int64_t width,
                            int64_t heads, float scale, float *folded, float *context) {
    int64_t most = 0;
    for (int64_t s = 0; s < batch->sequences; s++) most = batch->queries[s] > most ? batch->queries[s] : most;
    /* Queries of one chunk share their loads; with few sequences chunks are smaller, so that every thread has one. */
    const int64_t chunk = batch->sequences < 4 ? 6 : 12, parts = (most * heads + chunk - 1) / chunk;
    fold(query, query_step, key_weight, folded, active, width, heads);
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
    unfold(folded, value_weight, value_bias, context, active, width, heads);
}

void hashee_attend(row query, int64_t query_step, row states, int64_t states_step, row key_weight, row value_weight,
                   row value_bias, const int64_t *slots, int64_t longest, const int64_t *lengths,
                   const int64_t *queries, int64_t sequences, int64_t active, int64_t width, int64_t heads,
                   float scale, float *folded, float *context, int threads) {
    const layout batch = {slots, longest, lengths, queries, sequences};
#pragma omp parallel num_threads(threads)
    attend_absorbed(query, query_step, states, states_step, key_weight, value_weight, value_bias, &batch, active, width,
                    heads, scale, folded, context);
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

/* Post-norm layers, one after the other.
 *
 * states: (tokens, width), of which layer l updates the first active[l]; weights: 15 of each layer, those of queries,
 * keys (without a bias, which the softmax cancels), values and `post_attention`; epsilons: two of each; absorbed: which
 * layers take the absorbed form; queries: (layers, sequences); workspace: active[0] rows of 3 width + inner, and as
 * many of heads * width or, if a layer takes the plain form, two times (tokens, width) if that is more.
 */
void hashee_layers(float *states, const row *weights, const float *epsilons, const int64_t *active,
                   const int64_t *absorbed, const int64_t *slots, int64_t longest, const int64_t *lengths,
                   const int64_t *queries, int64_t sequences, int64_t layers, int64_t tokens, int64_t width,
                   int64_t inner, int64_t heads, float scale, float *workspace, int threads) {
    float *query = workspace, *context = query + active[0] * width, *attended = context + active[0] * width;
    float *expanded = attended + active[0] * width, *folded = expanded + active[0] * inner;
#pragma omp parallel num_threads(threads)
    for (int64_t l = 0; l < layers; l++) {
        const layout batch = {slots, longest, lengths, queries + l * sequences, sequences};
        const row *own = weights + 15 * l;
        product(states, width, own[0], own[1], query, active[l], width, width);
        if (absorbed[l]) {
            attend_absorbed(query, width, states, width, own[2], own[3], own[4], &batch, active[l], width, heads, scale,
                            folded, context);
        } else {
            float *keys = folded, *values = keys + tokens * width;
            product(states, width, own[2], NULL, keys, tokens, width, width);
            product(states, width, own[3], own[4], values, tokens, width, width);
            attend_plain(query, keys, values, &batch, width, heads, scale, context);
        }
        post_attention(context, width, states, width, own + 5, epsilons + 2 * l, attended, expanded, states, active[l],
                       width, inner);
    }
}
