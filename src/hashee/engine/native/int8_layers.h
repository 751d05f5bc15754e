/* Attention and whole layers with int8 weights; what lies between products is float32. */
#pragma once
#include "attention.h"
#include "int8_products.h"

#define SLICE 240 /* rows that pass the post-attention part together, so that what is between its products stays in cache */

/* Exchange rows and columns of 4 x 4 bytes in every 16 bytes. */
INLINE ints transpose_bytes(ints v) {
#if LANES >= 8
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#endif
#if LANES == 16
    return (ints)_mm512_shuffle_epi8((__m512i)v, _mm512_broadcast_i32x4(order));
#elif LANES == 8
    return (ints)_mm256_shuffle_epi8((__m256i)v, _mm256_broadcastsi128_si256(order));
#else
    const uint8x16_t order = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    return (ints)vqtbl1q_u8((uint8x16_t)v, order);
#endif
}

/* Four bytes of u for each 16 of a vector, repeated four times. */
INLINE ints spread_bytes(const uint8_t *u) {
#if LANES >= 8
#define FOUR(word) word, word, word, word
#endif
#if LANES == 16
    const __m512i order = _mm512_set_epi32(FOUR(0x0f0e0d0c), FOUR(0x0b0a0908), FOUR(0x07060504), FOUR(0x03020100));
    return (ints)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)u)), order);
#elif LANES == 8
    int64_t eight;
    memcpy(&eight, u, 8);
    return (ints)_mm256_shuffle_epi8(_mm256_set1_epi64x(eight), _mm256_set_epi32(FOUR(0x07060504), FOUR(0x03020100)));
#else
    return splat_bytes(u);
#endif
#undef FOUR
}

/* out[4 g + c] = the sum of the c-th numbers of every four of sum[g], for g < 4 */
INLINE void add_fours(const ints *sum, int32_t *out) {
#if LANES == 16
    const __m512i *s = (const __m512i *)sum;
    const __m512i a = _mm512_add_epi32(_mm512_shuffle_i32x4(s[0], s[1], 0x44), _mm512_shuffle_i32x4(s[0], s[1], 0xee));
    const __m512i b = _mm512_add_epi32(_mm512_shuffle_i32x4(s[2], s[3], 0x44), _mm512_shuffle_i32x4(s[2], s[3], 0xee));
    _mm512_storeu_si512(out, _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd)));
#else
    for (int g = 0; g < 4; g++)
        for (int c = 0; c < 4; c++) out[4 * g + c] = sum[g][c] + (LANES == 8 ? sum[g][(4 + c) % LANES] : 0);
#endif
}

/* folded[r][h] = query[r] of head h times the head's rows of w, whose steps are multiplied into the query before it is
 * rounded. query: (rows, width), which is overwritten; columns: (heads, width), the sums of w over the rows of a head;
 * rounded: (rows, width), with a scale for each head; folded: (rows, heads, width). Heads are multiples of 16 wide */
static void int8_fold(float *query, const int8_matrix *w, row columns, const int8_rows *rounded, float *folded,
                      int64_t rows, int64_t width, int64_t heads) {
    const int64_t size = width / heads, vecs = size / LANES, parts = (width + 127) / 128;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < width; k += LANES) store(query + r * width + k, load(query + r * width + k) * load(w->step + k));
        const int8_rows of_heads = {rounded->bytes, size, rounded->scale, rounded->least};
        for (int64_t h = 0; h < heads; h++) round_row(query + r * width + h * size, size, &of_heads, r * heads + h);
    }
#pragma omp for schedule(static)
    for (int64_t task = 0; task < heads * parts; task++) {
        const int64_t head = task / parts, first = task % parts * 128, last = smaller(first + 128, width);
        for (int64_t column = first; column < last; column += 16) {
            ints right[4][vecs];
            for (int g = 0; g < 4; g++)
                for (int64_t v = 0; v < vecs; v++) {
                    const int64_t feature = head * size + v * LANES;
                    const int8_t *block = w->weight + feature / 16 * 16 * width + 16 * (column + 4 * g);
                    right[g][v] = transpose_bytes(*(const loose_ints *)(block + 4 * (feature % 16)));
                }
            for (int64_t r = 0; r < rows; r++) {
                const int64_t own = r * heads + head;
                ints sum[4] = {{0}};
                int32_t added[16] __attribute__((aligned(64)));
                for (int64_t v = 0; v < vecs; v++) {
                    const ints left = spread_bytes(rounded->bytes + own * size + v * LANES);
                    for (int g = 0; g < 4; g++) sum[g] = dot4(sum[g], left, right[g][v]);
                }
                add_fours(sum, added);
                for (int64_t q = 0; q < 16; q += LANES) {
                    const vec found = __builtin_convertvector(*(const loose_ints *)(added + q), vec);
                    const vec offset = load(columns + head * width + column + q) * rounded->least[own];
                    store(folded + own * width + column + q, found * rounded->scale[own] + offset);
                }
            }
        }
    }
}

/* context[r] of head h = weighted[r][h] times the head's rows of w, plus bias. weighted: (rows, heads, width), which is
 * rounded in its own memory */
static void int8_unfold(float *weighted, const int8_matrix *w, const int8_rows *rounded, float *context, int64_t rows,
                        int64_t width, int64_t heads) {
    const int64_t size = width / heads, chunk = 24, parts = (rows + chunk - 1) / chunk, row_bytes = 4 * width;
    const int8_rows of_all = {(uint8_t *)weighted, row_bytes, rounded->scale, rounded->least};
    round_rows(weighted, width, rows * heads, width, &of_all);
#pragma omp for schedule(static)
    for (int64_t task = 0; task < heads * parts; task++) {
        const int64_t head = task / parts, first = task % parts * chunk, last = smaller(first + chunk, rows);
        float scale[24], least[24];
        for (int64_t r = first; r < last; r++) {
            scale[r - first] = rounded->scale[r * heads + head];
            least[r - first] = rounded->least[r * heads + head];
        }
        const int8_rows own = {(uint8_t *)weighted + (first * heads + head) * row_bytes, heads * row_bytes, scale, least};
        int8_part(&own, w, context + first * width, width, width, 0, last - first, head * size, (head + 1) * size);
    }
}

/* The absorbed form of attention. query: (active, width), which is overwritten; fields: those of the key and the value
 * weight, and the column sums of the former; folded, rounded: workspace; context: (active, width), the output */
static void int8_attend_absorbed(float *query, row states, int64_t states_step, const void *const *fields,
                                 const layout *batch, int64_t active, int64_t width, int64_t heads, float scale,
                                 float *folded, const int8_rows *rounded, float *context) {
    const int8_matrix key = matrix_at(fields), value = matrix_at(fields + 4);
    int8_fold(query, &key, fields[8], rounded, folded, active, width, heads);
    attend_folded(folded, states, states_step, batch, width, heads, scale);
    int8_unfold(folded, &value, rounded, context, active, width, heads);
}

/* Attention of a layer in either form, as in `attend_layer`. fields: those of the weights of queries, keys and values, and the
 * column sums of the key's. */
static void int8_attend_layer(row states, const void *const *fields, const layout *batch, int64_t absorbed, int64_t active,
                              int64_t tokens, int64_t width, int64_t heads, float scale, float *query, float *folded,
                              const int8_rows *rounded, float *context) {
    const int8_matrix queries = matrix_at(fields), keys = matrix_at(fields + 4), values = matrix_at(fields + 8);
    round_rows(states, width, absorbed ? active : tokens, width, rounded);
    int8_product(rounded, &queries, query, active, width, width);
    if (absorbed) {
        int8_attend_absorbed(query, states, width, fields + 4, batch, active, width, heads, scale, folded, rounded, context);
    } else {
        int8_product(rounded, &keys, folded, tokens, width, width);
        int8_product(rounded, &values, folded + tokens * width, tokens, width, width);
        attend_plain(query, folded, folded + tokens * width, batch, width, heads, scale, context);
    }
}

/* The post-attention part of a post-norm layer: output projection, norm, feed-forward, norm.
 *
 * context, states, updated: (rows, width), as in `post_attention`; fields: those of the three weights, and gain and shift
 * of the two norms; attended: (SLICE, width) and expanded: (SLICE, inner), workspace; rounded: SLICE rows of the wider
 */
static void int8_post_attention(row context, int64_t context_step, row states, int64_t states_step,
                                const void *const *fields, const float *epsilons, float *attended, float *expanded,
                                const int8_rows *rounded, float *updated, int64_t rows, int64_t width, int64_t inner) {
    const int8_matrix output = matrix_at(fields), expand = matrix_at(fields + 4), contract = matrix_at(fields + 8);
    const row *norms = (const row *)(fields + 12);
    const int8_rows narrow = {rounded->bytes, width, rounded->scale, rounded->least};
    const int8_rows broad = {rounded->bytes, inner, rounded->scale, rounded->least};
    for (int64_t start = 0; start < rows; start += SLICE) {
        const int64_t count = smaller(SLICE, rows - start);
        float *to = updated + start * width;
        round_rows(context + start * context_step, context_step, count, width, &narrow);
        int8_product(&narrow, &output, attended, count, width, width);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < count; r++) {
            const row residual = states + (start + r) * states_step;
            norm_row(attended + r * width, NULL, residual, norms[0], norms[1], epsilons[0], width);
            round_row(attended + r * width, width, &narrow, r);
        }
        int8_product(&narrow, &expand, expanded, count, width, inner);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < count; r++) {
            activate_row(expanded + r * inner, NULL, inner);
            round_row(expanded + r * inner, inner, &broad, r);
        }
        int8_product(&broad, &contract, to, count, inner, width);
        add_and_norm(to, NULL, attended, width, norms[2], norms[3], epsilons[1], count, width);
    }
}
