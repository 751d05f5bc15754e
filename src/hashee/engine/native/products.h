/* Products on few rows: the two shapes of inner loop that do all the work of the kernels.
 *
 * `dots` multiplies rows with rows along their length, and `sums` takes weighted sums of rows. Both keep a tile of results
 * in registers. All matrices are row-major float32; widths are multiples of 8.
 */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>

#define INLINE static inline __attribute__((always_inline))
#define TILE 4 /* rows or columns of a tile */

typedef const float *row;

INLINE float total(__m256 v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}

/* The totals of four vectors at once. */
INLINE __m128 totals(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}

/* result[i][j] = a[i] . b[j] for i < m, j < n, both at most TILE and known at compile time */
INLINE void dots(const int m, const int n, const row *a, const row *b, int64_t width, float result[TILE][TILE]) {
    __m256 sum[TILE][TILE];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) sum[i][j] = _mm256_setzero_ps();
    for (int64_t k = 0; k < width; k += 8) {
        __m256 right[TILE];
        for (int j = 0; j < n; j++) right[j] = _mm256_loadu_ps(b[j] + k);
        for (int i = 0; i < m; i++) {
            __m256 left = _mm256_loadu_ps(a[i] + k);
            for (int j = 0; j < n; j++) sum[i][j] = _mm256_fmadd_ps(left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < m; i++)
        if (n == TILE)
            _mm_storeu_ps(result[i], totals(sum[i][0], sum[i][1], sum[i][2], sum[i][3]));
        else
            for (int j = 0; j < n; j++) result[i][j] = total(sum[i][j]);
}

/* The same for m up to 3 and n up to 4: twelve sums and their operands just fit into the registers. */
INLINE void any_dots(int m, int n, const row *a, const row *b, int64_t width, float result[TILE][TILE]) {
#define CASE(M, N) \
    case (M) * 8 + (N): dots(M, N, a, b, width, result); break;
    switch (m * 8 + n) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4)
        CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4)
        CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4)
    }
#undef CASE
}

/* out[i] = sum over k of weight[i][k] b[k] in 16 columns, or in 8 if not wide, for i < m */
INLINE void sums(const int m, const int wide, const row *weight, const row *b, int64_t column, int64_t depth, float *const *out) {
    __m256 low[6], high[6];
    for (int i = 0; i < m; i++) low[i] = high[i] = _mm256_setzero_ps();
    for (int64_t k = 0; k < depth; k++) {
        __m256 left = _mm256_loadu_ps(b[k] + column), right = left;
        if (wide) right = _mm256_loadu_ps(b[k] + column + 8);
        for (int i = 0; i < m; i++) {
            __m256 factor = _mm256_broadcast_ss(weight[i] + k);
            low[i] = _mm256_fmadd_ps(factor, left, low[i]);
            if (wide) high[i] = _mm256_fmadd_ps(factor, right, high[i]);
        }
    }
    for (int i = 0; i < m; i++) {
        _mm256_storeu_ps(out[i] + column, low[i]);
        if (wide) _mm256_storeu_ps(out[i] + column + 8, high[i]);
    }
}

INLINE void any_sums(int m, int wide, const row *weight, const row *b, int64_t column, int64_t depth, float *const *out) {
#define CASE(M) \
    case M: \
        if (wide) sums(M, 1, weight, b, column, depth, out); \
        else sums(M, 0, weight, b, column, depth, out); \
        break;
    switch (m) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Prefetch one of several parts of n rows of w, of which `width` numbers each are needed. */
INLINE void fetch(row w, int64_t step, int n, int64_t width, int64_t part, int64_t parts) {
    const int64_t lines = (width + 15) / 16, last = lines * (part + 1) / parts;
    for (int q = 0; q < n; q++)
        for (int64_t line = lines * part / parts; line < last; line++)
            _mm_prefetch((const char *)(w + q * step + 16 * line), _MM_HINT_T1);
}

/* y = x w^T + bias. x: (rows, width), with row stride x_step; w: (features, width); y: (rows, features); bias may be
 * null */
static void product(row x, int64_t x_step, row w, row bias, float *y, int64_t rows, int64_t width, int64_t features) {
    /* This many numbers of four rows of w stay in the first-level cache while all rows of x are multiplied. */
    const int64_t stretch = 1024;
#pragma omp for schedule(static)
    for (int64_t j = 0; j < features; j += 4) {
        const int n = (int)smaller(4, features - j);
        for (int64_t start = 0; start < width; start += stretch) {
            row right[TILE];
            for (int q = 0; q < n; q++) right[q] = w + (j + q) * width + start;
            /* The next part of w is prefetched while this one is multiplied. */
            const int ends = start + stretch >= width;
            const row next = ends ? w + (j + 4) * width : right[0] + stretch;
            const int64_t next_width = ends ? smaller(stretch, width) : smaller(stretch, width - start - stretch);
            for (int64_t i = 0; i < rows; i += 3) {
                const int m = (int)smaller(3, rows - i);
                row left[TILE];
                float result[TILE][TILE];
                fetch(next, width, n, next_width, i / 3, (rows + 2) / 3);
                for (int p = 0; p < m; p++) left[p] = x + (i + p) * x_step + start;
                any_dots(m, n, left, right, smaller(stretch, width - start), result);
                for (int p = 0; p < m; p++)
                    for (int q = 0; q < n; q++) {
                        float *sum = y + (i + p) * features + j + q;
                        *sum = result[p][q] + (start ? *sum : bias ? bias[j + q] : 0.0f);
                    }
            }
        }
    }
}
