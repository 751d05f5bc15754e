/* What Python calls of the int8 kernels. Every function takes its workspace from the heap. */
#pragma once
#include "int8_layers.h"

/* Workspace of layers: parts of one block of memory. */
typedef struct {
    void *memory;
    float *query, *context, *attended, *expanded, *folded;
    int8_rows rounded;
} int8_workspace;

static float *take(char **next, int64_t numbers) {
    float *taken = (float *)*next;
    *next += (4 * numbers + 63) / 64 * 64;
    return taken;
}

/* active: rows of queries; folded: numbers for folded queries, or for keys and values; tokens: rows that are rounded */
static int8_workspace allocate(int64_t active, int64_t folded, int64_t tokens, int64_t width, int64_t inner, int64_t heads) {
    const int64_t slice = smaller(SLICE, active), wide = inner > width ? inner : width;
    const int64_t bytes = (slice * wide > tokens * width ? slice * wide : tokens * width), scales = active * heads + tokens;
    int8_workspace space = {0};
    const int64_t numbers = 2 * active * width + slice * (width + inner) + folded + bytes / 4 + 2 * scales;
    if (posix_memalign(&space.memory, 64, (size_t)(4 * numbers + 64 * 9))) abort();
    char *next = space.memory;
    space.query = take(&next, active * width);
    space.context = take(&next, active * width);
    space.attended = take(&next, slice * width);
    space.expanded = take(&next, slice * inner);
    space.folded = take(&next, folded);
    space.rounded = (int8_rows){(uint8_t *)take(&next, (bytes + 3) / 4), width, take(&next, scales), take(&next, scales)};
    return space;
}

/* Steps from the least to the largest entry of a row. */
int hashee_int8_steps(void) { return STEPS; }

void hashee_int8_linear(row x, int64_t x_step, const void *const *fields, float *y, int64_t rows, int64_t width,
                        int64_t features, int threads) {
    const int8_workspace space = allocate(0, 0, rows, width, 0, 0);
    const int8_matrix w = matrix_at(fields);
#pragma omp parallel num_threads(threads)
    {
        round_rows(x, x_step, rows, width, &space.rounded);
        int8_product(&space.rounded, &w, y, rows, width, features);
    }
    free(space.memory);
}

void hashee_int8_post_attention(row context, int64_t context_step, row states, int64_t states_step,
                                const void *const *fields, const float *epsilons, float *updated, int64_t rows,
                                int64_t width, int64_t inner, int threads) {
    const int8_workspace space = allocate(rows, 0, smaller(SLICE, rows), width, inner, 1);
#pragma omp parallel num_threads(threads)
    int8_post_attention(context, context_step, states, states_step, fields, epsilons, space.attended, space.expanded,
                        &space.rounded, updated, rows, width, inner);
    free(space.memory);
}

/* query: (active, width), which is overwritten; the rest as in `hashee_attend` and `int8_attend_absorbed` */
void hashee_int8_attend(float *query, row states, int64_t states_step, const void *const *fields, const int64_t *slots,
                        int64_t longest, const int64_t *lengths, const int64_t *queries, int64_t sequences,
                        int64_t active, int64_t width, int64_t heads, float scale, float *context, int threads) {
    const int8_workspace space = allocate(active, active * heads * width, active, width, 0, heads);
    const layout batch = {slots, longest, lengths, queries, sequences};
#pragma omp parallel num_threads(threads)
    int8_attend_absorbed(query, states, states_step, fields, &batch, active, width, heads, scale, space.folded,
                         &space.rounded, context);
    free(space.memory);
}

/* Post-norm layers, one after the other, as in `hashee_layers`. fields: 29 of each layer, those of the weights of queries,
 * keys and values, the column sums of the key's, and those of `int8_post_attention`; or, if the first is null, the five
 * weights of `attend_layer` after it */
void hashee_int8_layers(float *states, const void *const *fields, const float *epsilons, const int64_t *active,
                        const int64_t *absorbed, const int64_t *slots, int64_t longest, const int64_t *lengths,
                        const int64_t *queries, int64_t sequences, int64_t layers, int64_t tokens, int64_t width,
                        int64_t inner, int64_t heads, float scale, int threads) {
    int64_t folded = 0;
    for (int64_t l = 0; l < layers; l++) {
        const int64_t needed = absorbed[l] ? active[l] * heads * width : 2 * tokens * width;
        folded = needed > folded ? needed : folded;
    }
    const int8_workspace space = allocate(active[0], folded, tokens, width, inner, heads);
#pragma omp parallel num_threads(threads)
    for (int64_t l = 0; l < layers; l++) {
        const layout batch = {slots, longest, lengths, queries + l * sequences, sequences};
        const void *const *own = fields + 29 * l;
        if (own[0])
            int8_attend_layer(states, own, &batch, absorbed[l], active[l], tokens, width, heads, scale, space.query, space.folded,
                              &space.rounded, space.context);
        else
            attend_layer(states, (const row *)(own + 1), &batch, absorbed[l], active[l], tokens, width, heads, scale, space.query,
                         space.folded, space.context);
        int8_post_attention(space.context, width, states, width, own + 13, epsilons + 2 * l, space.attended,
                            space.expanded, &space.rounded, states, active[l], width, inner);
    }
    free(space.memory);
}
