/* Products of float32 matrices, which do most of the work of the kernels.
 *
 * `dots` multiplies rows with rows along their length, `sums` takes weighted sums of rows, and `panel_tile` multiplies rows
 * with a transposed part of a weight. All keep a tile of results in registers.
 */
#pragma once
#include "vectors.h"

#if LANES == 8 /* 16 registers */
#define DOT_ROWS 3
#define SUM_ROWS 6
#define PANEL_VECS 2
#define MANY_ROWS 192 /* from here on transposing a weight first pays */
#else /* 32 registers */
#define DOT_ROWS 6
#define SUM_ROWS 12
#define PANEL_VECS 4
#define MANY_ROWS 96
#endif
#define DOT_COLUMNS 4
#define PANEL_ROWS 6
#define PANEL (PANEL_VECS * LANES) /* columns of a panel */
#define PANEL_DEPTH 256            /* rows of a panel, which stays in the second-level cache */

/* result[i][j] = a[i] . b[j] for i < m, j < n, both known at compile time */
INLINE void dots(const int m, const int n, const row *a, const row *b, int64_t width, float (*result)[DOT_COLUMNS]) {
    vec sum[DOT_ROWS][DOT_COLUMNS];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) sum[i][j] = splat(0.0f);
    int64_t k = 0;
    for (; k + LANES <= width; k += LANES) {
        vec right[DOT_COLUMNS];
        for (int j = 0; j < n; j++) right[j] = load(b[j] + k);
        for (int i = 0; i < m; i++) {
            const vec left = load(a[i] + k);
            for (int j = 0; j < n; j++) sum[i][j] += left * right[j];
        }
    }
    if (LANES > 8 && k < width)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) sum[i][j] += load_part(a[i] + k, width - k) * load_part(b[j] + k, width - k);
    for (int i = 0; i < m; i++)
        if (n == DOT_COLUMNS)
            *(loose_quad *)result[i] = totals(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
        else
            for (int j = 0; j < n; j++) result[i][j] = total(sum[i][j]);
}

/* The same for any m up to DOT_ROWS and n up to DOT_COLUMNS. */
static void any_dots(int m, int n, const row *a, const row *b, int64_t width, float (*result)[DOT_COLUMNS]) {
#define CASE(M, N) \
    case (M) * 8 + (N): dots(M, N, a, b, width, result); break;
    switch (m * 8 + n) {
        CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4)
        CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4)
        CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4)
#if DOT_ROWS > 3
        CASE(4, 1) CASE(4, 2) CASE(4, 3) CASE(4, 4)
        CASE(5, 1) CASE(5, 2) CASE(5, 3) CASE(5, 4)
        CASE(6, 1) CASE(6, 2) CASE(6, 3) CASE(6, 4)
#endif
    }
#undef CASE
}

/* out[i] = sum over k of weight[i][k] b[k] in two vectors of columns, or in one of which `left` columns are there if not
 * wide, for i < m */
INLINE void sums(const int m, const int wide, const row *weight, const row *b, int64_t column, int64_t left, int64_t depth,
                 float *const *out) {
    vec low[SUM_ROWS], high[SUM_ROWS];
    for (int i = 0; i < m; i++) low[i] = high[i] = splat(0.0f);
    for (int64_t k = 0; k < depth; k++) {
        const vec first = wide ? load(b[k] + column) : load_part(b[k] + column, left);
        const vec second = wide ? load(b[k] + column + LANES) : first;
        for (int i = 0; i < m; i++) {
            const vec factor = splat(weight[i][k]);
            low[i] += factor * first;
            if (wide) high[i] += factor * second;
        }
    }
    for (int i = 0; i < m; i++) {
        store_part(out[i] + column, low[i], wide ? LANES : left);
        if (wide) store(out[i] + column + LANES, high[i]);
    }
}

/* out[i] = sum over k of weight[i][k] b[k] in the columns from first to last, for i < m, any number of rows */
static void all_sums(int m, const row *weight, const row *b, int64_t first, int64_t last, int64_t depth, float *const *out) {
#define CASE(M) \
    case M: \
        if (wide) sums(M, 1, weight + i, b, column, left, depth, out + i); \
        else sums(M, 0, weight + i, b, column, left, depth, out + i); \
        break;
    for (int64_t column = first; column < last;) {
        const int64_t left = last - column;
        const int wide = left >= 2 * LANES;
        for (int i = 0; i < m; i += SUM_ROWS) {
            switch (m - i < SUM_ROWS ? m - i : SUM_ROWS) {
                CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if SUM_ROWS > 6
                CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
            }
        }
        column += wide ? 2 * LANES : LANES;
    }
#undef CASE
}

/* Few rows: the weight is read once, row by row. */
static void product_of_few(row x, int64_t x_step, row w, row bias, float *y, int64_t rows, int64_t width,
                           int64_t features) {
    /* This many numbers of four rows of w stay in the first-level cache while all rows of x are multiplied. */
    const int64_t stretch = 1024;
#pragma omp for schedule(static)
    for (int64_t j = 0; j < features; j += DOT_COLUMNS) {
        const int n = (int)smaller(DOT_COLUMNS, features - j);
        for (int64_t start = 0; start < width; start += stretch) {
            row right[DOT_COLUMNS];
            for (int q = 0; q < n; q++) right[q] = w + (j + q) * width + start;
            /* The next part of w is prefetched while this one is multiplied. */
            const int ends = start + stretch >= width;
            const row next = ends ? w + (j + DOT_COLUMNS) * width : right[0] + stretch;
            const int64_t next_width = ends ? smaller(stretch, width) : smaller(stretch, width - start - stretch);
            for (int64_t i = 0; i < rows; i += DOT_ROWS) {
                const int m = (int)smaller(DOT_ROWS, rows - i);
                row left[DOT_ROWS];
                float result[DOT_ROWS][DOT_COLUMNS];
                fetch(next, 4 * width, n, 4 * next_width, i / DOT_ROWS, (rows + DOT_ROWS - 1) / DOT_ROWS);
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

/* y[i] += x[i] times a panel for i < m. panel: (depth, PANEL); y: rows of y_step numbers */
INLINE void panel_tile(const int m, row x, int64_t x_step, row panel, int64_t depth, float *y, int64_t y_step) {
    vec sum[PANEL_ROWS][PANEL_VECS];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < PANEL_VECS; j++) sum[i][j] = splat(0.0f);
    for (int64_t k = 0; k < depth; k++) {
        vec right[PANEL_VECS];
        for (int j = 0; j < PANEL_VECS; j++) right[j] = load(panel + k * PANEL + j * LANES);
        for (int i = 0; i < m; i++) {
            const vec left = splat(x[i * x_step + k]);
            for (int j = 0; j < PANEL_VECS; j++) sum[i][j] += left * right[j];
        }
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < PANEL_VECS; j++) {
            /* Added to what was there at the end, since short sums round less than long ones. */
            float *out = y + i * y_step + j * LANES;
            store(out, load(out) + sum[i][j]);
        }
}

static void any_panel_tile(int m, row x, int64_t x_step, row panel, int64_t depth, float *y, int64_t y_step) {
#define CASE(M) \
    case M: panel_tile(M, x, x_step, panel, depth, y, y_step); break;
    switch (m) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) }
#undef CASE
}

/* panel[k][q] = w[q][k] for k < depth and q < n, and 0 for the columns that are left. w: rows of `width` numbers */
INLINE void fill_panel(float *panel, row w, int64_t width, int64_t n, int64_t depth) {
    for (int64_t q = 0; q < PANEL; q += 4)
        if (q + 4 <= n)
            for (int64_t k = 0; k < depth; k += 4) transpose4(w + q * width + k, width, panel + k * PANEL + q, PANEL);
        else
            for (int64_t k = 0; k < depth; k++)
                for (int64_t p = q; p < q + 4; p++) panel[k * PANEL + p] = p < n ? w[p * width + k] : 0.0f;
}

/* Many rows: parts of the weight are transposed, and stay in cache while a chunk of rows is multiplied. */
static void product_of_many(row x, int64_t x_step, row w, row bias, float *y, int64_t rows, int64_t width,
                            int64_t features) {
    const int64_t panels = (features + PANEL - 1) / PANEL, chunk = 384, chunks = (rows + chunk - 1) / chunk;
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < panels * chunks; task++) {
        const int64_t j = task / chunks * PANEL, n = smaller(PANEL, features - j);
        const int64_t first = task % chunks * chunk, last = smaller(first + chunk, rows);
        float panel[PANEL_DEPTH * PANEL] __attribute__((aligned(64)));
        for (int64_t start = 0; start < width; start += PANEL_DEPTH) {
            const int64_t depth = smaller(PANEL_DEPTH, width - start), next = start + PANEL_DEPTH;
            fill_panel(panel, w + j * width + start, width, n, depth);
            for (int64_t i = first; i < last; i += PANEL_ROWS) {
                const int m = (int)smaller(PANEL_ROWS, last - i);
                float edge[PANEL_ROWS * PANEL] __attribute__((aligned(64))), *out = y + i * features + j;
                const int whole = n == PANEL;
                if (next < width)
                    fetch(w + j * width + next, 4 * width, n, 4 * smaller(PANEL_DEPTH, width - next),
                          (i - first) / PANEL_ROWS, (last - first + PANEL_ROWS - 1) / PANEL_ROWS);
                for (int p = 0; p < m; p++) {
                    float *to = whole ? out + p * features : edge + p * PANEL;
                    if (start == 0)
                        for (int64_t q = 0; q < n; q++) to[q] = bias ? bias[j + q] : 0.0f;
                    else if (!whole)
                        for (int64_t q = 0; q < n; q++) to[q] = out[p * features + q];
                }
                any_panel_tile(m, x + i * x_step + start, x_step, panel, depth, whole ? out : edge,
                               whole ? features : PANEL);
                if (!whole)
                    for (int p = 0; p < m; p++) memcpy(out + p * features, edge + p * PANEL, sizeof(float) * (size_t)n);
            }
        }
    }
}

/* y = x w^T + bias. x: (rows, width), with row stride x_step; w: (features, width); y: (rows, features); bias may be
 * null */
static void product(row x, int64_t x_step, row w, row bias, float *y, int64_t rows, int64_t width, int64_t features) {
    if (rows < MANY_ROWS)
        product_of_few(x, x_step, w, bias, y, rows, width, features);
    else
        product_of_many(x, x_step, w, bias, y, rows, width, features);
}
