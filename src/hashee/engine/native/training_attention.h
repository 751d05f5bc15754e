/* Attention with dropout of its probabilities, forward and backward, one sequence and head at a time.
 *
 * Nothing is kept between the passes but the queries, keys and values: probabilities are computed again, in blocks of
 * queries, so that memory does not grow with the square of a text's length.
 */
#pragma once
#include "attention.h"
#include "training.h"

#define QUERIES 32 /* of a block */
#define TILE_ROWS 6
#if LANES == 16
#define TILE_VECTORS 4
#else
#define TILE_VECTORS 2
#endif

/* A matrix whose numbers (i, j) are at i * row_step + j * column_step, so it may be read transposed. */
typedef struct {
    row numbers;
    int64_t row_step, column_step;
} matrix;

/* c += a b for m rows and v vectors of columns. a: (m, inner); b: (inner, columns), rows b_step apart */
INLINE void tile(int m, int v, float *c, int64_t c_step, matrix a, row b, int64_t b_step, int64_t inner) {
    vec sums[TILE_ROWS][TILE_VECTORS];
    for (int i = 0; i < m; i++)
        for (int j = 0; j < v; j++) sums[i][j] = load(c + i * c_step + j * LANES);
    for (int64_t k = 0; k < inner; k++) {
        vec right[TILE_VECTORS];
        for (int j = 0; j < v; j++) right[j] = load(b + k * b_step + j * LANES);
        for (int i = 0; i < m; i++) {
            const vec left = splat(a.numbers[i * a.row_step + k * a.column_step]);
            for (int j = 0; j < v; j++) sums[i][j] += left * right[j];
        }
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < v; j++) store(c + i * c_step + j * LANES, sums[i][j]);
}

INLINE void tile_row(int m, float *c, int64_t c_step, matrix a, row b, int64_t b_step, int64_t columns, int64_t inner) {
    int64_t j = 0;
    for (; j + TILE_VECTORS * LANES <= columns; j += TILE_VECTORS * LANES)
        tile(m, TILE_VECTORS, c + j, c_step, a, b + j, b_step, inner);
    for (; j + 2 * LANES <= columns; j += 2 * LANES) tile(m, 2, c + j, c_step, a, b + j, b_step, inner);
    for (; j < columns; j += LANES) tile(m, 1, c + j, c_step, a, b + j, b_step, inner);
}

/* c += a b. c: (rows, columns), rows c_step apart; columns: a multiple of LANES */
static void add_product(float *c, int64_t c_step, matrix a, row b, int64_t b_step, int64_t rows, int64_t columns,
                        int64_t inner) {
    int64_t i = 0;
    for (; i + TILE_ROWS <= rows; i += TILE_ROWS, a.numbers += TILE_ROWS * a.row_step)
        tile_row(TILE_ROWS, c + i * c_step, c_step, a, b, b_step, columns, inner);
    c += i * c_step;
    switch (rows - i) {
        case 5: tile_row(5, c, c_step, a, b, b_step, columns, inner); break;
        case 4: tile_row(4, c, c_step, a, b, b_step, columns, inner); break;
        case 3: tile_row(3, c, c_step, a, b, b_step, columns, inner); break;
        case 2: tile_row(2, c, c_step, a, b, b_step, columns, inner); break;
        case 1: tile_row(1, c, c_step, a, b, b_step, columns, inner); break;
        default: break;
    }
}

/* The attention of a layer in training. All matrices have rows of heads * width numbers. */
typedef struct {
    const void *query, *key, *value; /* (active, .), (tokens, .), (tokens, .), rows one after the other */
    layout batch;
    int64_t heads, width;
    float scale;
    dropout drop;
} attention;

/* What one sequence and head needs, in float32; rows are padded to whole vectors. */
typedef struct {
    int64_t keys, key_step, step; /* number of keys; numbers in a row over keys, and in one over a head's width */
    float *key, *key_across, *value, *value_across; /* (keys, step) and, across, (width, key_step) */
    float *query, *grad, *out; /* (QUERIES, step) */
    float *share, *change; /* (QUERIES, key_step) */
    float *key_grad, *value_grad; /* (keys, step) */
} workspace;

INLINE int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

static float *workspace_of(workspace *w, int64_t longest, int64_t width) {
    const int64_t step = padded(width), key_step = padded(longest);
    const int64_t by_key = 4 * longest * step, across = 2 * width * key_step, by_query = 3 * QUERIES * step;
    const size_t size = sizeof(float) * (size_t)(by_key + across + by_query + 2 * QUERIES * key_step);
    float *memory = aligned_alloc(64, (size + 63) / 64 * 64);
    if (!memory) abort();
    memset(memory, 0, size); /* padding is multiplied too */
    w->step = step;
    w->key = memory;
    w->value = w->key + longest * step;
    w->key_grad = w->value + longest * step;
    w->value_grad = w->key_grad + longest * step;
    w->key_across = w->value_grad + longest * step;
    w->value_across = w->key_across + width * key_step;
    w->query = w->value_across + width * key_step;
    w->grad = w->query + QUERIES * step;
    w->out = w->grad + QUERIES * step;
    w->share = w->out + QUERIES * step;
    w->change = w->share + QUERIES * key_step;
    return memory;
}

/* Copy rows of a head: `to` gets (count, width) and, if not null, `across` (width, count). */
INLINE void take_head(const void *from, const int64_t *slot, int64_t count, int64_t head, const attention *a, float scale,
                 float *to, int64_t step, float *across, int64_t across_step, int half) {
    for (int64_t j = 0; j < count; j++) {
        const int64_t at = (slot[j] * a->heads + head) * a->width;
        for (int64_t k = 0; k < a->width; k += LANES)
            store_part(to + j * step + k, get(from, at + k, a->width - k, half) * scale, a->width - k);
        if (across)
            for (int64_t k = 0; k < a->width; k++) across[k * across_step + j] = to[j * step + k];
    }
}

/* value_across: where values are needed across too, or null */
INLINE void take_keys_and_values(workspace *w, const attention *a, int64_t sequence, int64_t head, float *value_across,
                                 int half) {
    const int64_t *slot = a->batch.slots + sequence * a->batch.longest;
    w->keys = a->batch.lengths[sequence];
    w->key_step = padded(w->keys);
    take_head(a->key, slot, w->keys, head, a, 1.0f, w->key, w->step, w->key_across, w->key_step, half);
    take_head(a->value, slot, w->keys, head, a, 1.0f, w->value, w->step, value_across, w->key_step, half);
}

INLINE void give_head(void *to, const int64_t *slot, int64_t count, int64_t head, const attention *a, float scale,
                 row from, int64_t step, int half) {
    for (int64_t j = 0; j < count; j++) {
        const int64_t at = (slot[j] * a->heads + head) * a->width;
        for (int64_t k = 0; k < a->width; k += LANES)
            put(to, at + k, a->width - k, load_part(from + j * step + k, a->width - k) * scale, half);
    }
}

INLINE void zero(float *numbers, int64_t count) { memset(numbers, 0, sizeof(float) * (size_t)count); }

/* share[i] = the probabilities of query i, before dropout */
static void probabilities(const workspace *w, int64_t rows, int64_t width) {
    zero(w->share, rows * w->key_step);
    const matrix query = {w->query, w->step, 1};
    add_product(w->share, w->key_step, query, w->key_across, w->key_step, rows, w->key_step, width);
    for (int64_t i = 0; i < rows; i++) softmax(w->share + i * w->key_step, w->keys, 1.0f);
}

INLINE uint32_t query_key(const attention *a, int64_t slot, int64_t head) {
    return row_key(a->drop.seed, slot * a->heads + head);
}

/* context: (active, heads * width) */
INLINE void attend_rows_in_training(const attention *a, void *context, int half) {
    workspace w;
    float *memory = workspace_of(&w, a->batch.longest, a->width);
#pragma omp for schedule(dynamic) collapse(2)
    for (int64_t s = 0; s < a->batch.sequences; s++)
        for (int64_t head = 0; head < a->heads; head++) {
            const int64_t *slot = a->batch.slots + s * a->batch.longest, queries = a->batch.queries[s];
            if (!queries) continue;
            take_keys_and_values(&w, a, s, head, NULL, half);
            for (int64_t first = 0; first < queries; first += QUERIES) {
                const int64_t rows = smaller(QUERIES, queries - first);
                take_head(a->query, slot + first, rows, head, a, a->scale, w.query, w.step, NULL, 0, half);
                probabilities(&w, rows, a->width);
                for (int64_t i = 0; a->drop.limit && i < rows; i++) {
                    const uint32_t key = query_key(a, slot[first + i], head);
                    for (int64_t j = 0; j < w.keys; j += LANES) {
                        float *share = w.share + i * w.key_step + j;
                        store(share, load(share) * kept(key, j, &a->drop));
                    }
                }
                zero(w.out, rows * w.step);
                const matrix share = {w.share, w.key_step, 1};
                add_product(w.out, w.step, share, w.value, w.step, rows, w.step, w.keys);
                give_head(context, slot + first, rows, head, a, 1.0f, w.out, w.step, half);
            }
        }
    free(memory);
}

/* grad: (active, heads * width), of the context; the others are those of queries, keys and values */
INLINE void attend_rows_back(const attention *a, const void *grad, void *query_grad, void *key_grad, void *value_grad,
                             int half) {
    workspace w;
    float *memory = workspace_of(&w, a->batch.longest, a->width);
#pragma omp for schedule(dynamic) collapse(2)
    for (int64_t s = 0; s < a->batch.sequences; s++)
        for (int64_t head = 0; head < a->heads; head++) {
            const int64_t *slot = a->batch.slots + s * a->batch.longest, queries = a->batch.queries[s];
            take_keys_and_values(&w, a, s, head, w.value_across, half);
            zero(w.key_grad, w.keys * w.step);
            zero(w.value_grad, w.keys * w.step);
            for (int64_t first = 0; first < queries; first += QUERIES) {
                const int64_t rows = smaller(QUERIES, queries - first);
                take_head(a->query, slot + first, rows, head, a, a->scale, w.query, w.step, NULL, 0, half);
                take_head(grad, slot + first, rows, head, a, 1.0f, w.grad, w.step, NULL, 0, half);
                probabilities(&w, rows, a->width);
                zero(w.change, rows * w.key_step);
                const matrix context_grad = {w.grad, w.step, 1};
                add_product(w.change, w.key_step, context_grad, w.value_across, w.key_step, rows, w.key_step, a->width);
                for (int64_t i = 0; i < rows; i++) {
                    const uint32_t key = query_key(a, slot[first + i], head);
                    float *share = w.share + i * w.key_step, *change = w.change + i * w.key_step;
                    vec sum = splat(0.0f);
                    for (int64_t j = 0; j < w.keys; j += LANES) {
                        if (a->drop.limit) store(change + j, load(change + j) * kept(key, j, &a->drop));
                        sum += load(share + j) * load(change + j); /* behind the last key probabilities are 0 */
                    }
                    const float expected = total(sum);
                    for (int64_t j = 0; j < w.keys; j += LANES) {
                        store(change + j, load(share + j) * (load(change + j) - expected));
                        /* Values were weighted by what dropout left of it. */
                        if (a->drop.limit) store(share + j, load(share + j) * kept(key, j, &a->drop));
                    }
                }
                const matrix weights = {w.share, 1, w.key_step}, change = {w.change, w.key_step, 1};
                const matrix change_across = {w.change, 1, w.key_step};
                add_product(w.value_grad, w.step, weights, w.grad, w.step, w.keys, w.step, rows);
                add_product(w.key_grad, w.step, change_across, w.query, w.step, w.keys, w.step, rows);
                zero(w.out, rows * w.step);
                add_product(w.out, w.step, change, w.key, w.step, rows, w.step, w.keys);
                give_head(query_grad, slot + first, rows, head, a, a->scale, w.out, w.step, half);
            }
            give_head(key_grad, slot, w.keys, head, a, 1.0f, w.key_grad, w.step, half);
            give_head(value_grad, slot, w.keys, head, a, 1.0f, w.value_grad, w.step, half);
        }
    free(memory);
}
