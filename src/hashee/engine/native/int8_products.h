/* Products of int8 weights with rows that are rounded as they come.
 *
 * A row x from l to l + s STEPS is rounded to bytes u with x = l + s u, so that x . w = s (u . w) + l (1 . w). The sums of
 * u . w are exact integers. Weights lie in blocks of 16 features: (features / 16, width / 4, 16, 4). Widths and numbers
 * of features are multiples of 16.
 */
#pragma once
#include "elementwise.h"
#include "vectors.h"

#if defined(__AVX512VNNI__)
#define STEPS 255
#else
#define STEPS 127 /* two products of more than 7 bits would overflow the 16 bits that they are added in */
#endif
#if LANES == 16
#define INT8_ROWS 6
#define INT8_BLOCKS 4
#else
#define INT8_ROWS 4
#define INT8_BLOCKS 1
#endif
#define BLOCK_VECS (16 / LANES) /* vectors of the sums of a block */

/* A weight: (features, width) in blocks. */
typedef struct {
    const int8_t *weight;
    row step, sums, bias; /* (features) each: what a step of the weight is worth, its row sums, what is added */
} int8_matrix;

/* Rows that were rounded: row r is at bytes + r * pitch. */
typedef struct {
    uint8_t *bytes;
    int64_t pitch;
    float *scale, *least; /* of each row */
} int8_rows;

INLINE int8_matrix matrix_at(const void *const *fields) {
    return (int8_matrix){fields[0], fields[1], fields[2], fields[3]};
}

/* sum[i] += the dot product of the i-th four bytes of u, unsigned, and of w, signed */
INLINE ints dot4(ints sum, ints u, ints w) {
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)u, (__m512i)w);
#elif LANES == 16
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)u, (__m512i)w);
    return sum + (ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif LANES == 8
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)u, (__m256i)w);
    return sum + (ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else /* seven bits are the same with and without a sign */
    return vdotq_s32(sum, (int8x16_t)u, (int8x16_t)w);
#endif
}

INLINE ints splat_bytes(const uint8_t *four) {
    int32_t word;
    memcpy(&word, four, 4);
#if LANES == 16
    return (ints)_mm512_set1_epi32(word);
#elif LANES == 8
    return (ints)_mm256_set1_epi32(word);
#else
    return vdupq_n_s32(word);
#endif
}

/* Round one row. `out` may be the memory of the row itself. */
static void round_row(row x, int64_t width, const int8_rows *to, int64_t r) {
    vec low = load(x), high = low, doubt = low - low;
    for (int64_t k = LANES; k < width; k += LANES) {
        const vec v = load(x + k);
        low = choose(v < low, v, low);
        high = larger(v, high);
        doubt += v - v; /* comparisons would hide NaN */
    }
    float least = low[0], most = high[0];
    for (int i = 1; i < LANES; i++) {
        least = low[i] < least ? low[i] : least;
        most = high[i] > most ? high[i] : most;
    }
    const float reach = most - least > 1e-30f ? most - least : 1e-30f, factor = STEPS / reach;
    uint8_t *out = to->bytes + r * to->pitch;
    for (int64_t k = 0; k < width; k += LANES) {
        const vec steps = (load(x + k) - least) * factor + 0.5f;
        *(loose_bytes *)(out + k) = __builtin_convertvector(__builtin_convertvector(steps, ints), bytes);
    }
    to->scale[r] = reach / STEPS + total(doubt);
    to->least[r] = least;
}

/* Round all rows. x: (rows, width), with row stride step */
static void round_rows(row x, int64_t step, int64_t rows, int64_t width, const int8_rows *to) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++) round_row(x + r * step, width, to, r);
}

/* result[i] = a[i] . w for m rows of bytes and n blocks of weights, both known at compile time */
INLINE void int8_tile(const int m, const int n, const uint8_t *a, int64_t pitch, const int8_t *w, int64_t width,
                      int32_t (*result)[16 * INT8_BLOCKS]) {
    ints sum[INT8_ROWS][INT8_BLOCKS * BLOCK_VECS];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n * BLOCK_VECS; j++) sum[i][j] = (ints){0};
    for (int64_t k = 0; k < width; k += 4) {
        ints right[INT8_BLOCKS * BLOCK_VECS];
        for (int j = 0; j < n; j++)
            for (int v = 0; v < BLOCK_VECS; v++)
                right[j * BLOCK_VECS + v] = *(const loose_ints *)(w + j * 16 * width + 16 * k + 4 * LANES * v);
        for (int i = 0; i < m; i++) {
            const ints left = splat_bytes(a + i * pitch + k);
            for (int j = 0; j < n * BLOCK_VECS; j++) sum[i][j] = dot4(sum[i][j], left, right[j]);
        }
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n * BLOCK_VECS; j++) *(loose_ints *)(result[i] + j * LANES) = sum[i][j];
}

static void any_int8_tile(int m, int n, const uint8_t *a, int64_t pitch, const int8_t *w, int64_t width,
                          int32_t (*result)[16 * INT8_BLOCKS]) {
#define CASE(M, N) \
    case (M) * 8 + (N): int8_tile(M, N, a, pitch, w, width, result); break;
    switch (m * 8 + n) {
        CASE(1, 1) CASE(2, 1) CASE(3, 1) CASE(4, 1)
#if LANES == 16
        CASE(5, 1) CASE(6, 1)
        CASE(1, 2) CASE(2, 2) CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2)
        CASE(1, 3) CASE(2, 3) CASE(3, 3) CASE(4, 3) CASE(5, 3) CASE(6, 3)
        CASE(1, 4) CASE(2, 4) CASE(3, 4) CASE(4, 4) CASE(5, 4) CASE(6, 4)
#endif
    }
#undef CASE
}

/* The features from `first` to `last` of rows from `start` to `end`. y: (rows, features), with row stride y_step */
static void int8_part(const int8_rows *x, const int8_matrix *w, float *y, int64_t y_step, int64_t width, int64_t start,
                      int64_t end, int64_t first, int64_t last) {
    for (int64_t j = first; j < last; j += 16 * INT8_BLOCKS)
        for (int64_t i = start; i < end; i += INT8_ROWS) {
            const int m = (int)smaller(INT8_ROWS, end - i), n = (int)(smaller(16 * INT8_BLOCKS, last - j) / 16);
            int32_t result[INT8_ROWS][16 * INT8_BLOCKS] __attribute__((aligned(64)));
            any_int8_tile(m, n, x->bytes + i * x->pitch, x->pitch, w->weight + j * width, width, result);
            for (int p = 0; p < m; p++) {
                const float scale = x->scale[i + p], least = x->least[i + p];
                for (int64_t q = 0; q < 16 * n; q += LANES) {
                    const vec sum = __builtin_convertvector(*(const loose_ints *)(result[p] + q), vec);
                    const vec offset = load(w->sums + j + q) * least + load(w->bias + j + q);
                    store(y + (i + p) * y_step + j + q, sum * (load(w->step + j + q) * scale) + offset);
                }
            }
        }
}

/* y = x w^T + bias. x: (rows, width); y: (rows, features) */
static void int8_product(const int8_rows *x, const int8_matrix *w, float *y, int64_t rows, int64_t width,
                         int64_t features) {
    const int64_t panel = 16 * INT8_BLOCKS, panels = (features + panel - 1) / panel;
    const int64_t chunk = 96, chunks = (rows + chunk - 1) / chunk;
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < panels * chunks; task++) {
        const int64_t first = task / chunks * panel, start = task % chunks * chunk;
        int8_part(x, w, y, features, width, start, smaller(start + chunk, rows), first, smaller(first + panel, features));
    }
}
