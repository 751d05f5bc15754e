/* Layers of few rows, GELU, norms, and absorbed attention over sequences of different lengths.
 *
 * All matrices are row-major float32; widths are multiples of 8, those of heads of 4. Threads are those of the OpenMP
 * runtime that the process has already loaded; static functions with an `omp for` are called by all threads of a
 * parallel region. What an instruction set must provide is in vectors.h and, for int8, in int8_products.h.
 */
#include "vectors.h"
#include "products.h"
#include "elementwise.h"
#include "attention.h"
#include "int8_products.h"
#include "int8_layers.h"
#include "int8_kernels.h"

void hashee_linear(row x, int64_t x_step, row w, row bias, float *y, int64_t rows, int64_t width, int64_t features,
                   int threads) {
#pragma omp parallel num_threads(threads)
    product(x, x_step, w, bias, y, rows, width, features);
}

void hashee_gelu(float *x, row bias, int64_t rows, int64_t width, int threads) {
#pragma omp parallel num_threads(threads)
    activate(x, bias, rows, width);
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

void hashee_attend(row query, int64_t query_step, row states, int64_t states_step, row key_weight, row value_weight,
                   row value_bias, const int64_t *slots, int64_t longest, const int64_t *lengths,
                   const int64_t *queries, int64_t sequences, int64_t active, int64_t width, int64_t heads,
                   float scale, float *folded, float *context, int threads) {
    const layout batch = {slots, longest, lengths, queries, sequences};
#pragma omp parallel num_threads(threads)
    attend_absorbed(query, query_step, states, states_step, key_weight, value_weight, value_bias, &batch, active, width,
                    heads, scale, folded, context);
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
        attend_layer(states, own, &batch, absorbed[l], active[l], tokens, width, heads, scale, query, folded, context);
        post_attention(context, width, states, width, own + 5, epsilons + 2 * l, attended, expanded, states, active[l],
                       width, inner);
    }
}

#include "one_text.h"
#include "training.h"
#include "training_attention.h"
#include "training_kernels.h"
